//! HTTP server under silent and aggressive clients.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::Instant,
};
use windlass_allocations::ledger::SharedLedger;

use super::*;

fn admin() -> Admin {
    let holders = windlass_allocations::podresources::PodResourcesPoller::new(
        Path::new("/nowhere"),
        SharedLedger::default(),
    )
    .1;
    let sources = MetricSources {
        state: watch::channel(Arc::default()).1,
        telemetry: Vec::new(),
        registrations: watch::channel(RegistrationStates::new()).1,
        holders: holders.holders(),
        ledger: SharedLedger::default().watch(),
        memory: watch::channel(Arc::default()).1,
        disclosed: BTreeSet::new(),
        clock: Clock::starting_at(jiff::Timestamp::UNIX_EPOCH),
    };
    Admin {
        registry: Registry::default(),
        state: sources.state.clone(),
        last_round: watch::channel(Instant::now()).1,
        registrations: sources.registrations.clone(),
        holders,
        disclosed: BTreeSet::new(),
        board: Arc::new(NodeDashboard::new(sources, "n".to_owned())),
    }
}

/// Pages on both listeners.
struct TestServer {
    address: SocketAddr,
    socket: PathBuf,
    stop: CancellationToken,
    server: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl TestServer {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("probe.sock");
        let listeners =
            Listeners::bind(Some(([127, 0, 0, 1], 0).into()), Some(&socket)).expect("bound");
        let (address, stop) = (listeners.address().expect("an address"), CancellationToken::new());
        let mut server = JoinSet::new();
        let token = stop.clone();
        server.spawn(async move { serve(&listeners, Pages::Serving(admin()), &token).await });
        Self { address, socket, stop, server, _folder: folder }
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects clients that send nothing.
    async fn connect_silent(&self, count: usize) -> Vec<TcpStream> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(TcpStream::connect(self.address).await.expect("connected"));
        }
        clients
    }

    async fn get(&self, path: &str) -> String {
        let mut client = TcpStream::connect(self.address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("sent");
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("answered");
        text
    }

    async fn stop(mut self) {
        self.stop.cancel();
        self.server.join_next().await.expect("a server").expect("the server ends without a panic");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_clients_do_not_lock_other_clients_out() {
    let server = TestServer::new();
    let mut silent = server.connect_silent(500).await;
    let start = Instant::now();
    let answer = server.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    // The paused clock advances only if every task waits, for example for a timeout.
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    let mut answer_bytes = Vec::new();
    silent[0].read_to_end(&mut answer_bytes).await.expect("the oldest was closed");
    assert!(answer_bytes.is_empty() && start.elapsed() < Duration::from_millis(100));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_reconnect_after_each_close_do_not_delay_the_probe_socket() {
    let server = TestServer::new();
    let (mut attackers, address) = (JoinSet::new(), server.address);
    for _ in 0..200 {
        attackers.spawn(async move {
            loop {
                let mut stream = TcpStream::connect(address).await.expect("connected");
                stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.ok();
                stream.read_to_end(&mut Vec::new()).await.ok();
            }
        });
    }
    let start = Instant::now();
    for probe in [Probe::Health, Probe::Readiness].repeat(20) {
        let answer = probe_agent(server.socket(), probe).await.expect("answered");
        assert!(answer.report.contains("ok"), "{answer:?}");
    }
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    attackers.shutdown().await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_request_is_closed_after_a_second() {
    let server = TestServer::new();
    let mut stream = server.connect_silent(1).await.pop().expect("a client");
    stream.write_all(b"GET / HT").await.expect("sent");
    let start = Instant::now();
    assert_eq!(stream.read(&mut [0; 64]).await.expect("closed"), 0);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(2), "{waited:?}");
    server.stop().await;
}

#[tokio::test]
async fn the_probe_socket_is_for_root_only_and_is_not_taken_from_a_serving_agent() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = TestServer::new();
    let mode = std::fs::metadata(server.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Listeners::bind(None, Some(server.socket())).expect_err("the first one answers");
    assert!(second.to_string().contains("--probe-socket"), "{second}");
    UnixStream::connect(server.socket()).await.expect("the first one answers");
    server.stop().await;
}

#[tokio::test]
async fn a_socket_of_an_earlier_agent_is_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("probe.sock");
    let earlier = Listeners::bind(None, Some(&socket)).expect("bound").probes.expect("a socket");
    // A test that forks may inherit the descriptor until it executes its program, so the socket is shut down.
    rustix::net::shutdown(&earlier, rustix::net::Shutdown::Both).expect("shut down");
    drop(earlier);
    Listeners::bind(None, Some(&socket)).expect("no process listens");
}
