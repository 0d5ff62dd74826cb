//! The API server: HTTP/1 on a loopback port, in front of a [`Cluster`].
//!
//! It differs from the one of crate `cluster-sim`, which has no `NodeFeature`s, leases or bookmarks, and never gives an
//! answer that an API server would not give.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, time::Duration};

use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Bytes, Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
};
use tokio_stream::{StreamExt as _, wrappers::WatchStream};
use tokio_util::sync::CancellationToken;
use windlass_cluster::{Client, ClientTimeouts};
use windlass_config::{ClusterAccess, PodIdentity};
use windlass_testkit::{until_value, within_timeout};

use crate::cluster_api::objects::{Answer, Cluster, Kind, NODE, RecordedRequest, Refusal};

/// An API server, and the agent's tasks that use it. Server and tasks end when dropped.
pub(crate) struct ApiServer {
    /// The objects; a test may change them directly, without a request.
    pub(crate) cluster: watch::Sender<Cluster>,
    /// Running tasks of the agent.
    pub(crate) tasks: JoinSet<()>,
    pub(crate) stop: CancellationToken,
    /// Never listens: it reserves the port while the server is down.
    port: TcpSocket,
    folder: TempDir,
    server: JoinSet<()>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

// === impl ApiServer ===

impl ApiServer {
    /// A server that answers.
    pub(crate) fn start() -> Self {
        let mut server = Self::unstarted();
        server.start_serving();
        server
    }

    /// A server that refuses connections until [`Self::start_serving`] is called.
    pub(crate) fn unstarted() -> Self {
        let port = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = port.local_addr().expect("bound");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u, namespace: gpu}}}}]\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("written");
        Self {
            cluster: watch::Sender::new(Cluster::default()),
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
            port,
            folder,
            server: JoinSet::new(),
        }
    }

    /// Starts to accept connections.
    pub(crate) fn start_serving(&mut self) {
        let socket = bind(self.port.local_addr().expect("bound"));
        let listener = socket.listen(16).expect("a listener");
        self.server.spawn(serve(listener, self.cluster.clone()));
    }

    /// Closes all connections, and refuses new ones until [`Self::start_serving`] is called.
    pub(crate) async fn stop_serving(&mut self) {
        self.server.shutdown().await;
    }

    /// Kubeconfig of the server.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A client of the server, with short pauses between its attempts.
    pub(crate) fn client(&self) -> Client {
        self.client_in(None)
    }

    /// A client of an agent that runs in a pod.
    pub(crate) fn client_in(&self, pod: Option<PodIdentity>) -> Client {
        self.client_on(NODE, pod)
    }

    /// A client on any node.
    pub(crate) fn client_on(&self, node: &str, pod: Option<PodIdentity>) -> Client {
        let access = ClusterAccess {
            kubeconfig: Some(self.kubeconfig()),
            node_name: Some(node.to_owned()),
            pod,
            ..ClusterAccess::default()
        };
        let timeouts = ClientTimeouts {
            response_timeout: Duration::from_secs(5),
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(50),
            lease_duration: Duration::from_secs(1),
            ..ClientTimeouts::default()
        };
        Client::new(&access).expect("a good name").with_timeouts(timeouts)
    }

    /// Refuses requests.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.cluster.send_modify(|cluster| cluster.refusals.push(refusal));
    }

    /// Waits until the objects, or the log of requests, fulfil a condition.
    pub(crate) async fn until(&self, condition: impl FnMut(&Cluster) -> bool) -> Cluster {
        until_value("the objects of the API server", &self.cluster.subscribe(), condition).await
    }

    /// Stops the agent's tasks, and waits until each has ended by itself.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = async {
            while let Some(result) = self.tasks.join_next().await {
                result.expect("no task panics");
            }
        };
        within_timeout("the agent's tasks end", ended).await;
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket's option");
    // The port is bound twice: by the socket that reserves it and by the one that listens.
    socket.set_reuseport(true).expect("a socket's option");
    socket.bind(address).expect("a free port");
    socket
}

/// Waits for a value in a channel.
pub(crate) async fn until_equal<T: Clone + PartialEq + std::fmt::Debug>(
    channel: &watch::Receiver<T>,
    expected: &T,
) {
    until_value(&format!("{expected:?}"), channel, |it| it == expected).await;
}

async fn serve(listener: TcpListener, cluster: watch::Sender<Cluster>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a listener");
        let cluster = cluster.clone();
        let answer = service_fn(move |request| answer(cluster.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        // A client that closes its connection is no failure.
        connections.spawn(async move { drop(connection.await) });
    }
}

async fn answer(
    cluster: watch::Sender<Cluster>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let request = read(request).await?;
    let mut answer = Answer::Text(500, "");
    cluster.send_modify(|cluster| answer = cluster.answer(&request));
    let complete_response = |code, kind, text: String| {
        let body = Full::new(Bytes::from(text)).boxed_unsync();
        response(code, kind, body)
    };
    Ok(match answer {
        Answer::Json(code, value) => complete_response(code, "application/json", value.to_string()),
        Answer::Text(code, text) => {
            complete_response(code, "text/plain; charset=utf-8", text.to_owned())
        }
        Answer::Watch(kind, from) => {
            response(200, "application/json", changes(&cluster, (kind, from)))
        }
    })
}

fn response(code: u16, kind: &str, body: Body) -> Response<Body> {
    let response = Response::builder().status(code).header(header::CONTENT_TYPE, kind);
    response.body(body).expect("a response")
}

async fn read(request: Request<Incoming>) -> Result<RecordedRequest, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|p| p.split_once('='));
    Ok(RecordedRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: pairs
            .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=").replace("%2C", ",")))
            .collect(),
        content_type: header(header::CONTENT_TYPE),
        accept: header(header::ACCEPT),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

/// The changes after a version, a line each, until all watches are cut.
fn changes(cluster: &watch::Sender<Cluster>, (kind, from): (Kind, u64)) -> Body {
    let ended_watches = cluster.borrow().ended_watches;
    let snapshots = cluster.subscribe();
    let mut last = from;
    let updates = WatchStream::new(snapshots).map_while(move |cluster| {
        let history = cluster.history(kind);
        let lines = history.iter().filter(|(version, _)| *version > last);
        let lines: String =
            lines.flat_map(|(_, event)| [event.to_string(), "\n".to_owned()]).collect();
        last = history.last().map_or(last, |(version, _)| last.max(*version));
        (cluster.ended_watches == ended_watches).then_some(lines)
    });
    let frames =
        updates.filter(|lines| !lines.is_empty()).map(|lines| Ok(Frame::data(lines.into())));
    StreamBody::new(frames).boxed_unsync()
}
