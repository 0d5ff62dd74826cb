//! Client of the agent's probe socket, for the kubelet's probes (run in the agent's container) and for commands.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// Kind of a container probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Liveness: false if a restart would help.
    Health,
    /// Readiness: true if a pod that requests a device can get it.
    Readiness,
}

/// Response of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResponse {
    /// True for HTTP status 200.
    pub is_ok: bool,
    /// Reasons, one per line.
    pub report: String,
}

/// Failed probe. The caller sets the timeout.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process listens on the socket.
    #[error("cannot reach the agent at {0}")]
    Unreachable(PathBuf, #[source] io::Error),
    /// The response is not an agent's.
    #[error("{0} is not the socket of an agent")]
    NotAnAgent(PathBuf),
}

/// Limit of a response. The state of a large node has some hundred kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// Probes the agent on a socket.
///
/// # Errors
///
/// The socket does not answer, or another program answers.
pub async fn probe_agent(socket: &Path, probe: Probe) -> Result<ProbeResponse, ProbeError> {
    let path = match probe {
        Probe::Health => "/healthz",
        Probe::Readiness => "/readyz",
    };
    get_page(socket, path).await
}

/// Requests a page by its path from the agent on a socket.
///
/// # Errors
///
/// As [`probe_agent`].
pub async fn get_page(socket: &Path, path: &str) -> Result<ProbeResponse, ProbeError> {
    let unreachable = |source| ProbeError::Unreachable(socket.to_owned(), source);
    let text = get(socket, path).await.map_err(unreachable)?;
    let answer = text.split_once("\r\n\r\n").and_then(|(head, report)| {
        let status = head.split(' ').nth(1).filter(|_| head.starts_with("HTTP/1.1 "))?;
        Some(ProbeResponse { is_ok: status == "200", report: report.to_owned() })
    });
    answer.ok_or_else(|| ProbeError::NotAnAgent(socket.to_owned()))
}

async fn get(socket: &Path, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: windlass\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
