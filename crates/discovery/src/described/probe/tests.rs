//! Probes against real files, servers and programs.

use std::{fs, path::Path};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};
use windlass_config::{Probe, Test};
use windlass_core::device::DeviceKind;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn device() -> Device {
    let (id, source) = ("board-1".parse(), "board".parse());
    let (id, source) = (id.expect("valid"), source.expect("valid"));
    Device::new(id, DeviceKind::Other, source, jiff::Timestamp::UNIX_EPOCH)
}

fn probe(test: Test, failures: u32) -> Probe {
    let limit = Duration::from_millis(300);
    Probe { test, every: Some(SHORTEST), timeout: limit, failures, quiet_period: None }
}

/// A prober on this thread, with its handle.
struct Rig {
    desk: ProbeHandle,
    _tasks: JoinSet<()>,
}

impl Rig {
    fn new(root: &Path) -> Self {
        let (desk, prober) = channel(Host::new(root, "/"));
        let mut tasks = JoinSet::new();
        tasks.spawn(prober.run(CancellationToken::new()));
        Self { desk, _tasks: tasks }
    }

    fn ask(&self, probe: &Probe, folder: &str) {
        let device = Device { folder: Some(folder.into()), ..device() };
        let spec = ProbeSpec::of(probe, &device, LIMIT);
        let spec = spec.expect("nothing is missing").expect("it asks");
        self.desk.set([(device.id, spec)].into());
    }

    async fn until(&self, expected: &str) {
        let told = async {
            loop {
                let news = self.desk.news.clone();
                let told = match self.desk.observation(&device()) {
                    Observation::Passed => "passed".to_owned(),
                    Observation::Failed(reason, detail) => format!("{reason}, {detail}"),
                    _ => "awaited".to_owned(),
                };
                if told == expected {
                    return;
                }
                news.notified().await;
            }
        };
        let last = || self.desk.observation(&device());
        timeout(LIMIT, told).await.unwrap_or_else(|_| panic!("{expected}: {:?}", last()));
    }
}

#[tokio::test]
async fn a_file_that_says_the_wrong_thing_fails_and_recovers() {
    let root = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir_all(root.path().join("sys/x")).expect("made");
    let file = root.path().join("sys/x/state");
    fs::write(&file, "booting\n").expect("written");
    let rig = Rig::new(root.path());
    let test = Test::Attribute { file: "state".into(), equals: vec!["online".to_owned()] };
    rig.ask(&probe(test, 1), "/sys/x");
    rig.until("probe failed, /sys/x/state has \"booting\", not \"online\"").await;
    fs::write(&file, "online\n").expect("written");
    rig.until("passed").await;
    fs::remove_file(&file).expect("removed");
    rig.until("probe failed, /sys/x/state cannot be read").await;
    rig.desk.set(ProbeSpecs::new());
    fs::write(&file, "online\n").expect("written");
    rig.ask(
        &probe(Test::Attribute { file: "state".into(), equals: vec!["online".into()] }, 1),
        "/sys/x",
    );
    rig.until("passed").await;
}

#[tokio::test]
async fn failures_count_when_there_are_enough_in_a_row() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let mut server = JoinSet::new();
    // Two failures, a success, then failures only.
    server.spawn(async move {
        for attempt in 0_u32.. {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await;
            let status = if attempt == 2 { "200 OK" } else { "503 Busy" };
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
        }
    });
    let root = tempfile::tempdir().expect("a temporary folder");
    let rig = Rig::new(root.path());
    let url = format!("http://{address}/state");
    rig.ask(&probe(Test::Http(url.clone()), 3), "");
    rig.until("passed").await;
    rig.until(&format!("probe failed, {url}: the answer is 503 Busy")).await;
}

#[tokio::test]
async fn what_hangs_is_told_and_keeps_no_other_waiting() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let fifo = root.path().join("fifo");
    let rig = Rig::new(root.path());
    let script = format!("mkfifo {0}; read line <>{0}", fifo.display());
    let words = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    rig.ask(&probe(Test::Command(words), 1), "");
    rig.until("unresponsive, /bin/sh did not end within 300ms").await;
    rig.ask(&probe(Test::Command(vec!["/bin/true".to_owned()]), 1), "");
    rig.until("passed").await;
}

#[tokio::test]
async fn a_port_is_open_or_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address").to_string();
    let root = tempfile::tempdir().expect("a temporary folder");
    let rig = Rig::new(root.path());
    rig.ask(&probe(Test::Tcp(address.clone()), 1), "");
    rig.until("passed").await;
    drop(listener);
    let refused = "Connection refused (os error 111)";
    rig.until(&format!("unreachable, {address}: {refused}")).await;
}
