//! An API server that knows claims: HTTP/1 on a loopback port.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use crate::common::running::LIMIT;

/// Claims by the path under which they are asked for, and how often anybody asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) claims: BTreeMap<String, Value>,
    pub(crate) asked: usize,
    /// Nobody gets an answer.
    pub(crate) hangs: bool,
}

/// An API server. It ends when dropped.
pub(crate) struct ApiServer {
    pub(crate) objects: watch::Sender<Objects>,
    pub(crate) kubeconfig: PathBuf,
    address: SocketAddr,
    server: JoinSet<()>,
}

// === impl ApiServer ===

impl ApiServer {
    /// One that answers, with its kubeconfig in a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = socket.local_addr().expect("bound");
        let kubeconfig = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).expect("written");
        let objects = watch::Sender::new(Objects::default());
        let mut server = JoinSet::new();
        server.spawn(serve(socket.listen(16).expect("a listener"), objects.clone()));
        Self { objects, kubeconfig, address, server }
    }

    /// Dies with all its connections.
    pub(crate) async fn die(&mut self) {
        self.server.shutdown().await;
    }

    /// Answers again.
    pub(crate) fn come(&mut self) {
        let listener = bind(self.address).listen(16).expect("a listener");
        self.server.spawn(serve(listener, self.objects.clone()));
    }

    /// Puts a claim of namespace `ns`, in place of another of the name.
    pub(crate) fn put(&self, claim: &Value) {
        let name = claim["metadata"]["name"].as_str().expect("a name");
        let path = path(name);
        self.objects.send_modify(|it| drop(it.claims.insert(path, claim.clone())));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.objects.send_modify(|it| drop(it.claims.remove(&path(name))));
    }

    /// Waits until it was asked so often.
    pub(crate) async fn asks(&self, times: usize) {
        let mut objects = self.objects.subscribe();
        let asked = timeout(LIMIT, objects.wait_for(|it| it.asked >= times)).await.map(drop);
        asked.expect("in time");
    }
}

fn path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}")
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket's option");
    socket.bind(address).expect("a free port");
    socket
}

async fn serve(listener: TcpListener, objects: watch::Sender<Objects>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a listener");
        let objects = objects.clone();
        let answer = service_fn(move |request| answer(objects.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        // A client that goes away is no failure.
        connections.spawn(async move { drop(connection.await) });
    }
}

async fn answer(
    objects: watch::Sender<Objects>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    objects.send_modify(|it| it.asked += 1);
    let mut readers = objects.subscribe();
    let answering = readers.wait_for(|it| !it.hangs).await.expect("it is there").clone();
    let found = answering.claims.get(request.uri().path());
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let (code, value) = found.map_or_else(|| (404, not_found(name)), |it| (200, it.clone()));
    let response =
        Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::new(value.to_string().into())).expect("a response"))
}

fn not_found(name: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
        "reason": "NotFound", "message": format!("resourceclaims {name:?} not found"),
        "details": {"kind": "resourceclaims", "group": "resource.k8s.io", "name": name},
    })
}
