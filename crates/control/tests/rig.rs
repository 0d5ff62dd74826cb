//! Test cluster: an API server, and extenders that watch it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use windlass_cluster_sim::api::ApiServer;
use windlass_control::{Config, RunError, run};

/// Time limit of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Time within which all pods of a gang must arrive: long enough for a busy machine, and short enough for a test.
pub(crate) const GANG_WAIT: Duration = Duration::from_secs(5);

pub(crate) struct TestCluster {
    pub(crate) server: ApiServer,
    folder: TempDir,
}

pub(crate) struct Extender {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    running: JoinSet<Result<(), RunError>>,
}

impl TestCluster {
    pub(crate) fn start() -> Self {
        let (server, folder) = (ApiServer::start(), tempfile::tempdir().expect("a folder"));
        std::fs::write(folder.path().join("kubeconfig"), server.kubeconfig()).expect("written");
        Self { server, folder }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Starts an extender and waits until it is ready.
    pub(crate) async fn extender(&self, identity: &str) -> Extender {
        let extender = self.start_extender(identity).await;
        extender.wait_until("/readyz", |(code, _)| *code == 200).await;
        extender
    }

    pub(crate) async fn start_extender(&self, identity: &str) -> Extender {
        Extender::start(self.config(identity)).await
    }

    /// Configuration of an extender without a page and without TLS.
    pub(crate) fn config(&self, identity: &str) -> Config {
        Config {
            listen: ([127, 0, 0, 1], 0).into(),
            metrics: None,
            page: None,
            tls: None,
            kubeconfig: Some(self.kubeconfig()),
            namespace: Some("default".to_owned()),
            lease: "windlass-extender".to_owned(),
            identity: identity.to_owned(),
            gang_wait: GANG_WAIT,
        }
    }

    /// Adds a node with GPUs of 24 GiB each.
    pub(crate) fn add_node(&self, name: &str, gpus: usize) {
        self.add_node_with(name, gpus, false, &json!({}));
    }

    /// Adds a node with labels.
    pub(crate) fn add_labelled_node(&self, name: &str, gpus: usize, labels: &Value) {
        self.add_node_with(name, gpus, false, labels);
    }

    /// Adds a node that counts virtual GPUs.
    pub(crate) fn add_virtual_node(&self, name: &str, gpus: usize) {
        self.add_node_with(name, gpus, true, &json!({}));
    }

    fn add_node_with(&self, name: &str, gpus: usize, virtual_gpus: bool, labels: &Value) {
        let gpu =
            |n: usize| json!({"id": format!("GPU-{name}-{n}"), "model": "A10", "memoryMib": 24576});
        let devices: Vec<_> = (0..gpus).map(gpu).collect();
        let devices = json!({"devices": devices, "virtualGpus": virtual_gpus}).to_string();
        let node: Node = object(json!({
            "metadata": {"name": name, "labels": labels,
                         "annotations": {"windlass.dev/devices": devices}},
            "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
        }));
        self.server.objects().put(&node);
    }

    /// Adds a pod with these limits, and returns it as kube-scheduler sends it.
    #[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
    pub(crate) fn add_pod(&self, name: &str, limits: Value) -> Value {
        self.add_pod_with(name, &limits, &json!({}))
    }

    pub(crate) fn add_pod_with(&self, name: &str, limits: &Value, annotations: &Value) -> Value {
        self.add_labelled_pod(name, limits, annotations, &json!({}))
    }

    /// Adds a pod of a gang that requests whole GPUs.
    pub(crate) fn add_member(
        &self,
        name: &str,
        gang: &str,
        gpus: usize,
        annotations: &Value,
    ) -> Value {
        let limits = json!({"nvidia.com/gpu": gpus.to_string()});
        self.add_labelled_pod(name, &limits, annotations, &json!({"windlass.dev/gang": gang}))
    }

    fn add_labelled_pod(
        &self,
        name: &str,
        limits: &Value,
        annotations: &Value,
        labels: &Value,
    ) -> Value {
        let pod: Pod = object(json!({
            "metadata": {"name": name, "namespace": "default", "annotations": annotations,
                         "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        }));
        json!(self.server.objects().create(&pod).expect("created"))
    }

    /// The pod's node and its annotation `windlass.dev/placement`; `None` before the pod is bound.
    pub(crate) fn placement(&self, name: &str) -> Option<(String, String)> {
        let pod: Pod = self.server.objects().get("default", name)?;
        let node = pod.spec?.node_name?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        Some((node, annotations.get("windlass.dev/placement").cloned().unwrap_or_default()))
    }
}

impl Extender {
    pub(crate) async fn start(config: Config) -> Self {
        let (stop, (address_sender, address)) = (CancellationToken::new(), oneshot::channel());
        let ready =
            move |address| address_sender.send(address).expect("the receiver is awaited below");
        let mut running = JoinSet::new();
        running.spawn(run(config, stop.clone(), ready));
        Self { address: address.await.expect("it listens"), stop, running }
    }

    /// Calls a verb of the extender.
    pub(crate) async fn call(&self, verb: &str, body: &Value) -> Value {
        let (code, text) = self.post(verb, &body.to_string()).await;
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    pub(crate) async fn post(&self, verb: &str, body: &str) -> (u16, String) {
        let head = format!("POST /scheduler/{verb} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        self.request(&(head + "connection: close\r\nhost: x\r\n\r\n" + body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.1\r\nconnection: close\r\nhost: x\r\n\r\n");
        self.request(&head).await
    }

    /// Names of the nodes that fit, and the reasons of the other nodes. A reason that preemption cannot resolve begins
    /// with `unresolvable: `.
    pub(crate) async fn filter(&self, pod: &Value, nodes: &[&str]) -> (Vec<String>, Value) {
        let answer = self.call("filter", &json!({"Pod": pod, "NodeNames": nodes})).await;
        assert_eq!(answer["Error"], "", "{answer}");
        let names = answer["NodeNames"].as_array().expect("names").iter();
        let names = names.map(|name| name.as_str().expect("a name").to_owned()).collect();
        let mut reasons = answer["FailedNodes"].clone();
        for (name, reason) in answer["FailedAndUnresolvableNodes"].as_object().expect("a map") {
            reasons[name] = format!("unresolvable: {}", reason.as_str().expect("text")).into();
        }
        (names, reasons)
    }

    /// The nodes with a score, best first. Fails if two scores are equal.
    pub(crate) async fn ranked(&self, pod: &Value, nodes: &[&str]) -> Vec<String> {
        let scores = self.call("prioritize", &json!({"Pod": pod, "NodeNames": nodes})).await;
        let score = |it: &Value| {
            let host = it["Host"].as_str().expect("a name").to_owned();
            (it["Score"].as_i64().expect("a number"), host)
        };
        let mut scores: Vec<_> = scores.as_array().expect("scores").iter().map(score).collect();
        scores.sort_unstable();
        assert!(scores.windows(2).all(|pair| pair[0].0 < pair[1].0), "{scores:?}");
        scores.into_iter().rev().map(|(_, host)| host).collect()
    }

    /// Binds a pod. Returns the answer's error.
    pub(crate) async fn bind(&self, pod: &Value, node: &str) -> String {
        let metadata = &pod["metadata"];
        let args = json!({
            "PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"],
            "Node": node,
        });
        self.call("bind", &args).await["Error"].as_str().expect("a text").to_owned()
    }

    /// Waits until the answer for a path satisfies a condition.
    pub(crate) async fn wait_until(&self, path: &str, condition: impl Fn(&(u16, String)) -> bool) {
        let wait = async { while !condition(&self.get(path).await) {} };
        timeout(TIMEOUT, wait)
            .await
            .unwrap_or_else(|_| panic!("{path} does not satisfy the condition in time"));
    }

    /// Waits until a gauge of the view has this value.
    pub(crate) async fn wait_for_gauge(&self, gauge: &str, value: &str) {
        let line = format!("windlass_cluster_{gauge} {value}\n");
        self.wait_until("/metrics", |(_, page)| page.contains(&line)).await;
    }

    pub(crate) fn request_stop(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn stop(mut self) {
        self.request_stop();
        let ended = timeout(TIMEOUT, self.running.join_next()).await.expect("it ends in time");
        ended.expect("started").expect("the task did not panic").expect("a clean end");
    }

    async fn request(&self, text: &str) -> (u16, String) {
        let answer = exchange(self.address, text).await;
        (answer.code, answer.body)
    }
}

/// An answer over HTTP, with its head in lower case.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
        Self { code, head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// Sends a request with `Connection: close`.
pub(crate) async fn exchange(address: SocketAddr, request: &str) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    };
    Answer::parse(&timeout(TIMEOUT, exchange).await.expect("an answer in time"))
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}
