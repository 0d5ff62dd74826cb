//! One attempt: a file that says the right thing, a server that answers, a program that ends well.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::TcpStream, task::spawn_blocking};
use windlass_config::{Probe, Test};
use windlass_core::{
    device::{Device, DeviceId},
    health::Reason,
};
use windlass_host::{
    Host, causes, deadline,
    external::{GetError, Patience, get, run},
    template::{Missing, fill},
};

use super::{Answer, SHORTEST};

/// What is asked of a device, its own texts filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    test: Filled,
    pub(super) every: Duration,
    timeout: Duration,
    pub(super) failures: u32,
}

/// A test of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Filled {
    Attribute { file: PathBuf, equals: Vec<String> },
    Http(String),
    Tcp(String),
    Command(Vec<String>),
}

/// What an attempt needs besides the question.
pub(super) struct Bench {
    pub(super) host: Host,
    pub(super) leftover: Leftover,
}

/// A file that has not been read to its end when its time was over: a device's firmware may never answer,
/// and is not asked twice at once.
pub(super) type Leftover = Patience<(), Option<String>>;

/// Tries once.
pub(super) async fn ask(
    device: &DeviceId,
    question: &Question,
    bench: Bench,
) -> (Answer, Leftover) {
    let limit = question.timeout;
    let late =
        || Err((Reason::Unresponsive, format!("{} within {limit:?}", question.test.silence())));
    let answer = match &question.test {
        Filled::Attribute { file, equals } => {
            return read(bench, file, equals, (limit, late())).await;
        }
        Filled::Http(url) => {
            let asked = deadline::timeout(limit, get(url)).await;
            asked.map_or_else(|_| late(), |answer| answer.map_err(|it| refused(url, &it)))
        }
        Filled::Tcp(address) => {
            let connected = deadline::timeout(limit, TcpStream::connect(address)).await;
            let failed = |error| (Reason::Unreachable, format!("{address}: {error}"));
            connected.map_or_else(|_| late(), |it| it.map(drop).map_err(failed))
        }
        Filled::Command(words) => {
            let ran = deadline::timeout(limit, run(device, words)).await;
            let failed = |error| (Reason::ProbeFailed, causes(&error));
            ran.map_or_else(|_| late(), |it| it.map_err(failed))
        }
    };
    (answer, bench.leftover)
}

fn refused(url: &str, error: &GetError) -> (Reason, String) {
    let reason = match error {
        GetError::Unreachable(..) | GetError::Broken(_) => Reason::Unreachable,
        GetError::Url | GetError::NoHttp | GetError::Refused(_) => Reason::ProbeFailed,
    };
    (reason, format!("{url}: {}", causes(error)))
}

async fn read(
    Bench { host, mut leftover }: Bench,
    file: &Path,
    equals: &[String],
    (limit, late): (Duration, Answer),
) -> (Answer, Leftover) {
    let path = file.to_owned();
    let reading = spawn_blocking(move || {
        let text = leftover.ask((), limit, move || host.line(path));
        leftover.rest(|()| true);
        (text, leftover)
    });
    let (text, leftover) = reading.await.expect("asking neither panics nor is cancelled");
    let Ok(text) = text else { return (late, leftover) };
    let file = file.display();
    let answer = match text {
        Some(text) if equals.contains(&text) => Ok(()),
        Some(text) => {
            let expected = equals.join(" or ");
            Err((Reason::ProbeFailed, format!("{file} says {text:?}, not {expected:?}")))
        }
        None => Err((Reason::ProbeFailed, format!("{file} cannot be read"))),
    };
    (answer, leftover)
}

// === impl Question ===

impl Question {
    /// What a probe asks of a device; `None` where its nodes are all there is to see.
    pub(crate) fn of(
        probe: &Probe,
        device: &Device,
        usual: Duration,
    ) -> Result<Option<Self>, Missing> {
        let fill = |text: &String| fill(text, device);
        let test = match &probe.test {
            Test::Nodes => return Ok(None),
            Test::Attribute { file, equals } => Filled::Attribute {
                file: device.folder.clone().unwrap_or_default().join(file),
                equals: equals.iter().map(fill).collect::<Result<_, _>>()?,
            },
            Test::Http(url) => Filled::Http(fill(url)?),
            Test::Tcp(address) => Filled::Tcp(fill(address)?),
            Test::Command(words) => {
                Filled::Command(words.iter().map(fill).collect::<Result<_, _>>()?)
            }
        };
        let every = probe.every.unwrap_or(usual).max(SHORTEST);
        Ok(Some(Self { test, every, timeout: probe.timeout, failures: probe.failures }))
    }
}

// === impl Filled ===

impl Filled {
    /// What it means that it takes too long.
    fn silence(&self) -> String {
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
