//! The other end of the probe socket: for a probe that a kubelet runs inside the agent's container.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// What a kubelet wants to know of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether the agent should go on, or be restarted.
    Health,
    /// Whether a pod that asks for a device can get it.
    Readiness,
}

/// An agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Whether the answer is yes.
    pub is_good: bool,
    /// The reasons, a line each.
    pub report: String,
}

/// Why there is no answer. The time limit is the caller's.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nobody is there.
    #[error("cannot reach the agent at {0}")]
    Unreachable(PathBuf, #[source] io::Error),
    /// Somebody else is.
    #[error("{0} is not the socket of an agent")]
    Stranger(PathBuf),
}

/// A report has a line for each resource; what is longer is cut.
const MOST_BYTES: u64 = 1 << 20;

/// Asks the agent that answers on a socket.
///
/// # Errors
///
/// Nobody answers there, or not as an agent does.
pub async fn probe_agent(socket: &Path, probe: Probe) -> Result<ProbeAnswer, ProbeError> {
    let path = match probe {
        Probe::Health => "/healthz",
        Probe::Readiness => "/readyz",
    };
    let unreachable = |source| ProbeError::Unreachable(socket.to_owned(), source);
    let text = get(socket, path).await.map_err(unreachable)?;
    let answer = text.split_once("\r\n\r\n").and_then(|(head, report)| {
        let status = head.split(' ').nth(1).filter(|_| head.starts_with("HTTP/1.1 "))?;
        Some(ProbeAnswer { is_good: status == "200", report: report.to_owned() })
    });
    answer.ok_or_else(|| ProbeError::Stranger(socket.to_owned()))
}

async fn get(socket: &Path, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: windlass\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
