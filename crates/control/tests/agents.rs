//! Access to agents through the API server's pod proxy.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use windlass_control::agents::{AgentClient, AgentError};

/// An API server with the pods of some agents.
struct Server {
    agents: AgentClient,
    requests: Arc<Mutex<Vec<String>>>,
    _folder: TempDir,
    _tasks: JoinSet<()>,
}

const DOCUMENT: &str = r#"{"nodes":[]}"#;
const PODS: &str = "/api/v1/namespaces/windlass-system/pods";

/// Pods of a node. The node's name selects them.
fn pods(node: &str) -> Vec<Value> {
    let pod = |name: &str, phase: &str, ports: Value| {
        json!({
            "metadata": {"name": name, "namespace": "windlass-system"},
            "spec": {"nodeName": node, "containers": [
                {"name": "helper", "ports": [{"name": "other", "containerPort": 1}]},
                {"name": "agent", "ports": ports},
            ]},
            "status": {"phase": phase},
        })
    };
    let http = json!([{"name": "http", "containerPort": 9400}]);
    match node {
        "renewed" => {
            let mut ending = pod("ending", "Running", http.clone());
            ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            let pending = pod("pending", "Pending", http.clone());
            vec![ending, pending, pod("renewed", "Running", http)]
        }
        "pending" => vec![pod("pending", "Pending", http)],
        "portless" => vec![pod("portless", "Running", json!([]))],
        "empty" => Vec::new(),
        name => vec![pod(name, "Running", http)],
    }
}

async fn respond(path: &str, query: &str) -> (u16, String) {
    if path == PODS {
        assert!(query.contains("labelSelector=app.kubernetes.io"), "{query}");
        let (_, node) = query.split_once("fieldSelector=spec.nodeName%3D").expect("one node");
        let node = node.split('&').next().expect("a name");
        let list =
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods(node)});
        return (200, list.to_string());
    }
    let agent = path.strip_prefix(PODS).and_then(|it| it.strip_prefix('/'));
    let agent = agent.and_then(|it| it.strip_suffix(":9400/proxy/page/state"));
    let failure = |code: u16, reason: &str| {
        (
            code,
            json!({"kind": "Status", "status": "Failure", "code": code, "message": reason, "reason": reason}),
        )
    };
    let (code, status) = match agent {
        Some("renewed") => return (200, DOCUMENT.to_owned()),
        Some("silent") => std::future::pending().await,
        Some("forbidden") => failure(403, "Forbidden"),
        Some("unready") => failure(503, "ServiceUnavailable"),
        other => panic!("unexpected path {path}: {other:?}"),
    };
    (code, status.to_string())
}

// === impl Server ===

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (mut tasks, requests) = (JoinSet::new(), Arc::<Mutex<Vec<String>>>::default());
        let request_log = requests.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let request_log = request_log.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let uri = request.uri().clone();
                    request_log
                        .lock()
                        .expect("the lock is not poisoned")
                        .push(uri.path().to_owned());
                    async move {
                        let (code, text) =
                            respond(uri.path(), uri.query().unwrap_or_default()).await;
                        let builder = Response::builder().status(code);
                        let builder = builder.header("content-type", "application/json");
                        let body = Full::new(Bytes::from(text));
                        Ok::<_, Infallible>(builder.body(body).expect("a constant header"))
                    }
                });
                let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move { drop(serve.await) });
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).expect("written");
        let agents = AgentClient::connect(Some(path), "windlass-system").await.expect("a client");
        Self { agents, requests, _folder: folder, _tasks: tasks }
    }

    /// The error for a node.
    async fn refusal(&self, node: &str) -> AgentError {
        self.agents.state(node).await.expect_err(node)
    }
}

#[tokio::test]
async fn a_nodes_document_comes_from_its_agent() {
    let server = Server::start().await;
    assert_eq!(server.agents.state("renewed").await.expect("it runs"), DOCUMENT);
    let requests = server.requests.lock().expect("the lock is not poisoned").clone();
    assert_eq!(requests, [PODS.to_owned(), format!("{PODS}/renewed:9400/proxy/page/state")]);
}

#[tokio::test]
async fn an_unreachable_agent_is_reported_with_its_reason() {
    let server = Server::start().await;
    for node in ["empty", "pending"] {
        let error = server.refusal(node).await;
        assert!(
            matches!(&error, AgentError::NoAgent { node: named, .. } if named == node),
            "{error:?}"
        );
    }
    let reasons = tokio::join!(
        server.refusal("portless"),
        server.refusal("forbidden"),
        server.refusal("unready"),
        server.refusal("silent"),
    );
    let (
        AgentError::NoPort(portless),
        AgentError::Forbidden(forbidden, _),
        AgentError::Unreachable(unready, _),
        AgentError::RequestTimedOut(silent),
    ) = &reasons
    else {
        panic!("{reasons:?}");
    };
    assert_eq!(
        [portless, forbidden, unready, silent],
        ["portless", "forbidden", "unready", "silent"]
    );
}

#[tokio::test]
async fn an_invalid_node_name_is_refused_before_any_request() {
    let server = Server::start().await;
    for name in ["", "a/b", "..%2f", "a?b", "a b", "n\u{e9}"] {
        let error = server.refusal(name).await;
        assert!(matches!(&error, AgentError::InvalidNode(named) if named == name), "{error:?}");
    }
    assert!(server.requests.lock().expect("the lock is not poisoned").is_empty());
}
