//! The cluster's page, against the embedded API server.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use windlass_control::{PageSource, RunError, objects::Objects, run_page};

use crate::rig::{Answer, TIMEOUT, TestCluster, exchange};

struct Page {
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinSet<Result<(), RunError>>,
}

impl Page {
    async fn start(source: PageSource) -> Self {
        let (stop, (address_sender, address)) = (CancellationToken::new(), oneshot::channel());
        let ready =
            move |address| address_sender.send(address).expect("the receiver is awaited below");
        let mut running = JoinSet::new();
        running.spawn(run_page(
            ([127, 0, 0, 1], 0).into(),
            source,
            "windlass-system",
            stop.clone(),
            ready,
        ));
        Self { address: address.await.expect("it listens"), stop, running }
    }

    async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "localhost", "").await
    }

    async fn request(&self, method: &str, path: &str, host: &str, header: &str) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{header}connection: close\r\n\r\n"
        );
        exchange(self.address, &request).await
    }

    /// The state after a revision, once it satisfies a condition. The server delays its answer until the state changes.
    async fn wait_for_state(
        &self,
        after: Option<&str>,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let wait = async {
            loop {
                let state = self.state(after).await;
                if condition(&state) {
                    return state;
                }
                self.state(Some(revision(&state))).await;
            }
        };
        timeout(TIMEOUT, wait).await.expect("the state satisfies the condition in time")
    }

    /// The state after a revision.
    async fn state(&self, after: Option<&str>) -> Value {
        let path = after.map_or("/state".to_owned(), |after| format!("/state?after={after}"));
        let read = async {
            loop {
                let answer = self.get(&path).await;
                match answer.code {
                    200 => return serde_json::from_str(&answer.body).expect("JSON"),
                    503 => assert!(answer.head.contains("retry-after: 2"), "{}", answer.head),
                    code => panic!("{code}: {}", answer.body),
                }
            }
        };
        timeout(TIMEOUT, read).await.expect("all objects are seen in time")
    }

    async fn stop(mut self) {
        self.stop.cancel();
        let ended = timeout(TIMEOUT, self.running.join_next()).await.expect("it ends in time");
        ended.expect("started").expect("the task did not panic").expect("a clean end");
    }
}

fn revision(state: &Value) -> &str {
    state["revision"].as_str().expect("a revision")
}

#[tokio::test]
async fn the_page_shows_nodes_holders_and_pending_pods_and_then_what_changes() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.add_node("b", 2);
    let extender = cluster.extender("r").await;
    let half = cluster.add_pod("half", json!({"windlass.dev/gpu-memory": 12}));
    assert_eq!(extender.bind(&half, "a").await, "");
    cluster.add_pod("large", json!({"nvidia.com/gpu": 4}));

    let page = Page::start(PageSource::Cluster(Some(cluster.kubeconfig()))).await;
    // The pod's last change may arrive later than the other objects.
    let is_held = |state: &Value| !state["nodes"][0]["devices"][0]["holders"].is_null();
    let state = page.wait_for_state(None, is_held).await;
    assert_eq!(state["complete"], true);
    assert_eq!(state["source"], "cluster");
    assert_eq!(state["summary"]["gpus"], 3);
    assert_eq!(state["summary"]["freeGpus"], 2);
    let gpu = &state["nodes"][0]["devices"][0];
    assert_eq!(gpu["id"], "GPU-a-0");
    assert_eq!(gpu["idle"], 0.5);
    assert_eq!(gpu["holders"], json!([{"pod": "default/half", "memoryBytes": 12_u64 << 30}]));
    let pending = &state["pending"][0];
    assert_eq!(pending["pod"], "default/large");
    assert_eq!(pending["request"], "4 GPUs of one node");
    let refused = pending["reasons"].as_array().expect("reasons");
    assert_eq!(refused.iter().map(|it| it["nodes"].as_u64().expect("a number")).sum::<u64>(), 2);

    let first = revision(&state).to_owned();
    cluster.add_node("c", 4);
    let changes = page.wait_for_state(Some(&first), |state| state["nodes"] != json!([])).await;
    assert_eq!(changes["complete"], false);
    let names: Vec<_> = changes["nodes"].as_array().expect("nodes").iter().collect();
    assert_eq!(names.len(), 1, "{changes}");
    assert_eq!(changes["nodes"][0]["name"], "c");
    assert_eq!(changes["history"][0]["kind"], "appeared");
    let unknown = page.get("/node/a/state").await;
    assert_eq!(unknown.code, 502);
    assert!(unknown.body.starts_with("no agent of Windlass runs on node a in namespace"));
    assert_eq!(page.get("/node/a%2Fb/state").await.code, 404);
    page.stop().await;
    extender.stop().await;
}

#[tokio::test]
async fn the_page_of_a_recording_is_complete_at_once_and_serves_its_files() {
    let text = json!({"kind": "List", "items": [{
        "kind": "Node", "metadata": {"name": "n", "labels": {"nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.product": "T4", "nvidia.com/gpu.memory": "16384"}},
        "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "10", "nvidia.com/gpu": "1"}},
    }]});
    let objects = Objects::parse(&text.to_string(), "f".as_ref()).expect("a list");
    let page = Page::start(PageSource::Recording(Box::new(objects))).await;
    let state = page.state(None).await;
    assert_eq!(state["nodes"][0]["devices"][0]["product"], "T4", "{state}");
    assert_eq!(state["nodes"][0]["agent"], false);

    let index = page.get("/").await;
    assert_eq!(index.code, 200);
    for header in [
        "content-type: text/html",
        "content-security-policy: default-src 'none'; ",
        "x-content-type-options: nosniff",
        "cache-control: no-cache",
    ] {
        assert!(index.head.contains(header), "{header}: {}", index.head);
    }
    let etag = index.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let second = page.request("GET", "/", "localhost", &format!("if-none-match: {etag}\r\n")).await;
    assert_eq!((second.code, second.body.as_str()), (304, ""));
    assert_eq!(page.get("/../Cargo.toml").await.code, 404);
    page.stop().await;
}

#[tokio::test]
async fn other_methods_and_other_names_of_this_machine_are_refused() {
    let page = Page::start(PageSource::Recording(Box::default())).await;
    let port = page.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]", &format!("localhost:{port}")] {
        assert_eq!(page.request("GET", "/state", host, "").await.code, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""] {
        assert_eq!(page.request("GET", "/state", host, "").await.code, 403, "{host}");
    }
    assert_eq!(page.request("POST", "/state", "localhost", "").await.code, 405);
    page.stop().await;
}

#[tokio::test]
async fn readers_beyond_the_limit_are_answered_at_once_and_a_stop_ends_held_ones() {
    let page = Page::start(PageSource::Recording(Box::default())).await;
    let after = revision(&page.state(None).await).to_owned();
    let path = format!("/state?after={after}");
    let mut polls = JoinSet::new();
    let (address, request) =
        (page.address, format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    let (started, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..200 {
        let (request, started) = (request.clone(), started.clone());
        polls.spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            stream.write_all(request.as_bytes()).await.expect("sent");
            started.send(()).expect("awaited");
            let mut byte = [0];
            stream.read_exact(&mut byte).await.map(drop)
        });
    }
    for _ in 0..200 {
        timeout(TIMEOUT, waiting.recv()).await.expect("in time").expect("sent");
    }
    // A request beyond the limit is answered at once. A long poll would take 20 s.
    let answer = timeout(Duration::from_secs(15), page.get(&path)).await.expect("at once");
    assert_eq!(answer.code, 200);
    assert!(polls.try_join_next().is_none(), "the long polls still wait");
    page.stop().await;
    while let Some(ended) = timeout(TIMEOUT, polls.join_next()).await.expect("in time") {
        ended.expect("the task did not panic").expect("answered before the end");
    }
}
