//! Benchmark of the extender's answers over HTTP in clusters of 1,000 and 5,000 nodes with 8 GPUs, and of its start.
//!
//! `cargo bench -p windlass-control --bench extender`. Client and server share one thread, as they share the two cores
//! of the budget. The last column is the ratio to `/healthz` in the same run, a request without work. Exits with 1 if a
//! budget is missed.
//!
//! Pods with claims are ranked in separate clusters. Before each ranking a claim moves to another GPU. A row *new* has
//! claims of a new shape each time, which are first allocated for each node signature. The start in these clusters has
//! no budget.

mod claims;

use std::{
    fs,
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_cluster_sim::api::ApiServer;
use windlass_control::{Config, RunError, run};

/// Budgets for a number of nodes.
#[derive(Clone, Copy)]
struct Budget {
    nodes: usize,
    /// 99th percentile of rankings of all nodes.
    answer: Duration,
    /// 99th percentile of rankings for claims of a new shape.
    new_shape: Duration,
    /// Time from the start to a complete view.
    start: Duration,
}

const BUDGETS: [Budget; 2] = [
    Budget {
        nodes: 1_000,
        answer: Duration::from_millis(2),
        new_shape: Duration::from_millis(20),
        start: Duration::from_secs(2),
    },
    Budget {
        nodes: 5_000,
        answer: Duration::from_millis(5),
        new_shape: Duration::from_millis(60),
        start: Duration::from_secs(7),
    },
];
const GPUS: usize = 8;
/// Number of running pods per node.
const PODS: usize = 4;
const REQUESTS: usize = 300;
/// Number of pods of the waiting gang, with a GPU each.
const GANG: usize = 64;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut within_budget = true;
    print("nodes  request           p50 ms   p99 ms   budget ms  ratio of p50 to /healthz");
    for budget in BUDGETS {
        within_budget &= runtime.block_on(measure(budget));
        within_budget &= runtime.block_on(claims::measure(budget));
    }
    if within_budget { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure(budget: Budget) -> bool {
    let Budget { nodes, answer, .. } = budget;
    let server = ApiServer::start();
    fill(&server, nodes);
    let (mut extender, started) = Extender::start(&server).await;
    let names: Vec<_> = (0..nodes).map(name).collect();
    let body = json!({"Pod": pod("ranked", &share(6)), "NodeNames": names}).to_string();
    let client = &mut extender.client;
    let baseline = client.measure("GET", "/healthz", "").await.0;
    let mut within_budget = true;
    // Filter returns every name, which takes most of its time. It has no budget.
    for (verb, limit) in [("filter", None), ("prioritize", Some(answer))] {
        let times = client.measure("POST", &format!("/{verb}"), &body).await;
        within_budget &= row(nodes, verb, times, limit, baseline);
    }
    // Filter for one member plans all of them.
    let body = json!({"Pod": member(0), "NodeNames": names}).to_string();
    let times = client.measure("POST", "/filter", &body).await;
    row(nodes, &format!("filter, gang {GANG}"), times, None, baseline);
    within_budget &= started <= budget.start;
    extender.report(nodes, started, (Some(budget.start), &format!("{} pods", nodes * PODS)));
    extender.stop().await;
    within_budget
}

/// An extender, with the time from its start to a complete view.
struct Extender {
    client: Client,
    stop: CancellationToken,
    running: JoinSet<Result<(), RunError>>,
    folder: tempfile::TempDir,
    memory_mib: u64,
}

impl Extender {
    async fn start(server: &ApiServer) -> (Self, Duration) {
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig()).expect("written");
        let before = resident_mib();
        let (stop, (address_sender, address)) = (CancellationToken::new(), oneshot::channel());
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            metrics: None,
            page: None,
            tls: None,
            kubeconfig: Some(kubeconfig),
            namespace: Some("default".to_owned()),
            lease: "windlass-extender".to_owned(),
            identity: "bench".to_owned(),
            gang_wait: Duration::from_secs(Config::DEFAULT_GANG_WAIT_SECONDS),
        };
        let start = Instant::now();
        let mut running = JoinSet::new();
        let ready =
            move |address| address_sender.send(address).expect("the receiver is awaited below");
        running.spawn(run(config, stop.clone(), ready));
        let mut client = Client::connect(address.await.expect("it listens")).await;
        while client.request("GET", "/readyz", "").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let started = start.elapsed();
        let memory_mib = resident_mib().saturating_sub(before);
        (Self { client, stop, running, folder, memory_mib }, started)
    }

    /// Prints the duration of the start.
    fn report(
        &self,
        nodes: usize,
        duration: Duration,
        (limit, contents): (Option<Duration>, &str),
    ) {
        let budget_text =
            limit.map_or_else(String::new, |limit| format!(" of {} s", limit.as_secs()));
        let missed = if limit.is_some_and(|limit| duration > limit) { "  MISSED" } else { "" };
        print(&format!(
            "{nodes:<5}  start             {:.2} s{budget_text} with {contents}; {} MiB more, the lists of the embedded API server \
             included{missed}",
            duration.as_secs_f64(),
            self.memory_mib,
        ));
    }

    async fn stop(mut self) {
        self.stop.cancel();
        self.running.join_next().await;
        drop(self.folder);
    }
}

/// Prints a row. Returns true if its budget is met.
fn row(
    nodes: usize,
    request: &str,
    (p50, p99): (Duration, Duration),
    limit: Option<Duration>,
    baseline: Duration,
) -> bool {
    let is_within_budget = limit.is_none_or(|limit| p99 <= limit);
    let ratio = p50.as_secs_f64() / baseline.as_secs_f64();
    let missed = if is_within_budget { "" } else { "  MISSED" };
    let (p50, p99) = (p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
    let budget = limit.map_or_else(String::new, |limit| limit.as_millis().to_string());
    print(&format!(
        "{nodes:<5}  {request:<16}  {p50:>6.2}   {p99:>6.2}   {budget:>9}  {ratio:>5.1}{missed}"
    ));
    is_within_budget
}

/// Median and 99th percentile.
fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// A keep-alive connection.
struct Client {
    stream: TcpStream,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connected");
        stream.set_nodelay(true).expect("a socket");
        Self { stream }
    }

    /// Median and 99th percentile of the time of a request.
    async fn measure(&mut self, method: &str, path: &str, body: &str) -> (Duration, Duration) {
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            times.push(self.time(method, path, body).await.0);
        }
        percentiles(times)
    }

    /// Time and answer of one request.
    async fn time(&mut self, method: &str, path: &str, body: &str) -> (Duration, String) {
        let start = Instant::now();
        let (code, text) = self.request(method, path, body).await;
        assert_eq!(code, 200, "{text}");
        (start.elapsed(), text)
    }

    async fn request(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all((head + body).as_bytes()).await.expect("sent");
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let read = self.stream.read(&mut buffer).await.expect("read");
            assert!(read > 0, "the connection is open");
            answer.extend_from_slice(&buffer[..read]);
            let Some(head) = answer.windows(4).position(|it| it == b"\r\n\r\n") else { continue };
            let text = String::from_utf8_lossy(&answer[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|it| it.trim().parse().ok()).expect("a length");
            if answer.len() >= head + 4 + length {
                let code = text.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a code");
                return (code, String::from_utf8_lossy(&answer[head + 4..]).into_owned());
            }
        }
    }
}

fn fill(server: &ApiServer, nodes: usize) {
    let objects = server.objects();
    for n in 0..GANG {
        objects.put::<Pod>(&object(member(n)));
    }
    for n in 0..nodes {
        let gpu = |g: usize| json!({"id": format!("GPU-{n}-{g}"), "model": "NVIDIA A10", "memoryMib": 23028});
        let devices = json!({"devices": (0..GPUS).map(gpu).collect::<Vec<_>>()}).to_string();
        let node: Node = object(json!({
            "metadata": {"name": name(n), "annotations": {"windlass.dev/devices": devices}},
            "status": {"allocatable": {"cpu": "96", "memory": "768Gi", "pods": "110"}},
        }));
        objects.put(&node);
        for p in 0..PODS {
            let mut pod: Pod = object(pod(&format!("pod-{n}-{p}"), &share(4 + (n + p) % 12)));
            pod.spec.get_or_insert_default().node_name = Some(name(n));
            objects.put(&pod);
        }
    }
}

fn name(n: usize) -> String {
    format!("node-{n:05}.cluster.example")
}

fn share(gib: usize) -> Value {
    json!({"windlass.dev/gpu-memory": gib.to_string(), "cpu": "2"})
}

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
    })
}

fn member(n: usize) -> Value {
    let mut pod = pod(&format!("member-{n}"), &json!({"nvidia.com/gpu": "1", "cpu": "2"}));
    pod["metadata"]["uid"] = format!("member-{n}").into();
    pod["metadata"]["labels"] = json!({"windlass.dev/gang": "train"});
    pod["metadata"]["annotations"] = json!({"windlass.dev/gang-size": GANG.to_string()});
    pod
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}

/// Memory of this process that is in use.
fn resident_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[expect(clippy::print_stdout, reason = "a benchmark's result")]
fn print(text: &str) {
    println!("{text}");
}
