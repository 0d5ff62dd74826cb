//! Probes against real files, servers and programs.

use std::{fs, path::Path};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};
use windlass_config::{Probe, ProbeTest};
use windlass_core::device::DeviceKind;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn device() -> Device {
    let (id, source) = ("board-1".parse(), "board".parse());
    let (id, source) = (id.expect("valid"), source.expect("valid"));
    Device::new(id, DeviceKind::Other, source, jiff::Timestamp::UNIX_EPOCH)
}

fn probe(test: ProbeTest, failures: u32) -> Probe {
    let limit = Duration::from_millis(300);
    Probe { test, every: Some(MIN_PROBE_INTERVAL), timeout: limit, failures, quiet_period: None }
}

/// A prober on this thread, with its handle.
struct RunningProber {
    handle: ProbeHandle,
    _tasks: JoinSet<()>,
}

impl RunningProber {
    fn new(root: &Path) -> Self {
        let (handle, prober) = channel(Host::new(root, "/"));
        let mut tasks = JoinSet::new();
        tasks.spawn(prober.run(CancellationToken::new()));
        Self { handle, _tasks: tasks }
    }

    fn probe_with(&self, probe: &Probe, folder: &str) {
        let device = Device { folder: Some(folder.into()), ..device() };
        let spec = ProbeSpec::resolve(probe, &device, TIMEOUT);
        let spec =
            spec.expect("nothing is missing").expect("a test other than the nodes' presence");
        self.handle.set([(device.id, spec)].into());
    }

    async fn wait_for(&self, expected: &str) {
        let observed = async {
            loop {
                let change = self.handle.change_notifier.clone();
                let observed = match self.handle.observation(&device()) {
                    Observation::Passed => "passed".to_owned(),
                    Observation::Failed(reason, detail) => format!("{reason}, {detail}"),
                    _ => "awaited".to_owned(),
                };
                if observed == expected {
                    return;
                }
                change.notified().await;
            }
        };
        let last = || self.handle.observation(&device());
        timeout(TIMEOUT, observed).await.unwrap_or_else(|_| panic!("{expected}: {:?}", last()));
    }
}

#[tokio::test]
async fn a_file_with_an_unexpected_value_fails_and_recovers() {
    let root = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir_all(root.path().join("sys/x")).expect("made");
    let file = root.path().join("sys/x/state");
    fs::write(&file, "booting\n").expect("written");
    let prober = RunningProber::new(root.path());
    let test = ProbeTest::Attribute { file: "state".into(), equals: vec!["online".to_owned()] };
    prober.probe_with(&probe(test, 1), "/sys/x");
    prober.wait_for("probe failed, /sys/x/state has \"booting\", not \"online\"").await;
    fs::write(&file, "online\n").expect("written");
    prober.wait_for("passed").await;
    fs::remove_file(&file).expect("removed");
    prober.wait_for("probe failed, /sys/x/state cannot be read").await;
    prober.handle.set(ProbeSpecs::new());
    fs::write(&file, "online\n").expect("written");
    prober.probe_with(
        &probe(ProbeTest::Attribute { file: "state".into(), equals: vec!["online".into()] }, 1),
        "/sys/x",
    );
    prober.wait_for("passed").await;
}

#[tokio::test]
async fn a_probe_fails_after_enough_failures_in_a_row() {
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
    let prober = RunningProber::new(root.path());
    let url = format!("http://{address}/state");
    prober.probe_with(&probe(ProbeTest::Http(url.clone()), 3), "");
    prober.wait_for("passed").await;
    prober.wait_for(&format!("probe failed, {url}: the answer is 503 Busy")).await;
}

#[tokio::test]
async fn a_hanging_probe_is_unresponsive_and_delays_no_other() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let fifo = root.path().join("fifo");
    let prober = RunningProber::new(root.path());
    let script = format!("mkfifo {0}; read line <>{0}", fifo.display());
    let words = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    prober.probe_with(&probe(ProbeTest::Command(words), 1), "");
    prober.wait_for("unresponsive, /bin/sh did not end within 300ms").await;
    prober.probe_with(&probe(ProbeTest::Command(vec!["/bin/true".to_owned()]), 1), "");
    prober.wait_for("passed").await;
}

#[tokio::test]
async fn a_port_is_open_or_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address").to_string();
    let root = tempfile::tempdir().expect("a temporary folder");
    let prober = RunningProber::new(root.path());
    prober.probe_with(&probe(ProbeTest::Tcp(address.clone()), 1), "");
    prober.wait_for("passed").await;
    drop(listener);
    let refused = "Connection refused (os error 111)";
    prober.wait_for(&format!("unreachable, {address}: {refused}")).await;
}
