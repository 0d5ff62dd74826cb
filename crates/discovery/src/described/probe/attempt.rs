//! One probe attempt: file content, HTTP request, TCP connection or program.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpStream;
use windlass_config::{Probe, ProbeTest};
use windlass_core::{
    device::{Device, DeviceId},
    health::Reason,
};
use windlass_host::{
    Host, blocking, causes, deadline,
    external::{DeadlinePool, GetError, get, run},
    template::{MissingValue, fill},
};

use super::{MIN_PROBE_INTERVAL, ProbeResult};

/// Probe of one device, with the device's values in place of template variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeSpec {
    test: ResolvedTest,
    pub(super) interval: Duration,
    timeout: Duration,
    pub(super) failure_threshold: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ResolvedTest {
    Attribute { file: PathBuf, equals: Vec<String> },
    Http(String),
    Tcp(String),
    Command(Vec<String>),
}

pub(super) struct AttemptEnv {
    pub(super) host: Host,
    pub(super) pending: PendingRead,
}

/// A read that missed its deadline and may still run: the next attempt waits for it instead of starting a second.
pub(super) type PendingRead = DeadlinePool<(), Option<String>>;

pub(super) async fn run_attempt(
    device: &DeviceId,
    spec: &ProbeSpec,
    env: AttemptEnv,
) -> (ProbeResult, PendingRead) {
    let limit = spec.timeout;
    let timeout_error =
        || Err((Reason::Unresponsive, format!("{} within {limit:?}", spec.test.timeout_subject())));
    let result = match &spec.test {
        ResolvedTest::Attribute { file, equals } => {
            return read(env, file, equals, limit, timeout_error()).await;
        }
        ResolvedTest::Http(url) => {
            let result = deadline::timeout(limit, get(url)).await;
            result.map_or_else(
                |_| timeout_error(),
                |result| result.map_err(|error| http_failure(url, &error)),
            )
        }
        ResolvedTest::Tcp(address) => {
            let connection = deadline::timeout(limit, TcpStream::connect(address)).await;
            let connect_failure = |error| (Reason::Unreachable, format!("{address}: {error}"));
            connection.map_or_else(
                |_| timeout_error(),
                |result| result.map(drop).map_err(connect_failure),
            )
        }
        ResolvedTest::Command(words) => {
            let exit = deadline::timeout(limit, run(device, words)).await;
            let program_failure = |error| (Reason::ProbeFailed, causes(&error));
            exit.map_or_else(|_| timeout_error(), |result| result.map_err(program_failure))
        }
    };
    (result, env.pending)
}

fn http_failure(url: &str, error: &GetError) -> (Reason, String) {
    let reason = match error {
        GetError::Unreachable(..) | GetError::Interrupted(_) => Reason::Unreachable,
        GetError::InvalidUrl | GetError::NotHttp | GetError::BadStatus(_) => Reason::ProbeFailed,
    };
    (reason, format!("{url}: {}", causes(error)))
}

async fn read(
    AttemptEnv { host, mut pending }: AttemptEnv,
    file: &Path,
    equals: &[String],
    limit: Duration,
    timeout_error: ProbeResult,
) -> (ProbeResult, PendingRead) {
    let path = file.to_owned();
    let read_file = blocking(move || {
        let text = pending.call((), limit, move || host.read_line(path));
        pending.end_round(|()| true);
        (text, pending)
    });
    let (text, pending) = read_file.await;
    let Ok(text) = text else { return (timeout_error, pending) };
    let file = file.display();
    let result = match text {
        Some(text) if equals.contains(&text) => Ok(()),
        Some(text) => {
            let expected = equals.join(" or ");
            Err((Reason::ProbeFailed, format!("{file} has {text:?}, not {expected:?}")))
        }
        None => Err((Reason::ProbeFailed, format!("{file} cannot be read"))),
    };
    (result, pending)
}

// === impl ProbeSpec ===

impl ProbeSpec {
    /// Probe of a device; `None` if the presence of its nodes suffices.
    pub(crate) fn resolve(
        probe: &Probe,
        device: &Device,
        default_interval: Duration,
    ) -> Result<Option<Self>, MissingValue> {
        let fill = |text: &String| fill(text, device);
        let test = match &probe.test {
            ProbeTest::Nodes => return Ok(None),
            ProbeTest::Attribute { file, equals } => ResolvedTest::Attribute {
                file: device.folder.clone().unwrap_or_default().join(file),
                equals: equals.iter().map(fill).collect::<Result<_, _>>()?,
            },
            ProbeTest::Http(url) => ResolvedTest::Http(fill(url)?),
            ProbeTest::Tcp(address) => ResolvedTest::Tcp(fill(address)?),
            ProbeTest::Command(words) => {
                ResolvedTest::Command(words.iter().map(fill).collect::<Result<_, _>>()?)
            }
        };
        let interval = probe.every.unwrap_or(default_interval).max(MIN_PROBE_INTERVAL);
        Ok(Some(Self { test, interval, timeout: probe.timeout, failure_threshold: probe.failures }))
    }
}

// === impl ResolvedTest ===

impl ResolvedTest {
    /// Start of the message about a missed deadline.
    fn timeout_subject(&self) -> String {
        match self {
            Self::Attribute { file, .. } => format!("{} was not read", file.display()),
            Self::Http(url) => format!("{url} did not answer"),
            Self::Tcp(address) => format!("{address} did not answer"),
            Self::Command(words) => {
                format!("{} did not end", words.first().map_or("the program", String::as_str))
            }
        }
    }
}
