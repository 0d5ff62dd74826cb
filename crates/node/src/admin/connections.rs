//! Bounded connections of one listener; silent clients cannot block others.
//!
//! The listener never stops accepting, so silent clients cannot lock others out. At the limit it closes the oldest
//! connection that has sent no request, or the oldest of all if each has sent one.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    task::{AbortHandle, JoinSet, yield_now},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Pages,
    http::{self, RequestError, Response, StatusCode},
    page,
};

pub(super) trait Accept: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Open connections, oldest first.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: VecDeque<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// True once the request was read.
    has_request: watch::Receiver<bool>,
}

/// Limit of open connections, with room for scrapers beside silent clients. Each costs a descriptor and about two
/// kilobytes.
const MAX_CONNECTIONS: usize = 64;

/// Timeout of the request head. A local client needs a millisecond.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of the response. A scrape takes milliseconds, and a slow reader must not occupy a connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failed accept: without file descriptors the next one fails too.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Shutdown deadline of open requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves connections until stopped; returns at once without a listener.
pub(super) async fn serve(
    listener: Option<&impl Accept>,
    pages: &Arc<Pages>,
    stop: &CancellationToken,
) {
    let Some(listener) = listener else { return };
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => connections.add(stream, pages),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
        // Before the next accept, the closed connection's task ends and the new connection's task reads its request.
        yield_now().await;
    }
    // The set aborts connections that miss the deadline.
    let _ =
        timeout(DRAIN_TIMEOUT, async { while connections.tasks.join_next().await.is_some() {} })
            .await;
}

/// Handles one request. Connection errors are dropped: only the client can act on them.
async fn handle(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    pages: Arc<Pages>,
    request_sender: watch::Sender<bool>,
) {
    let Ok(request) = timeout(HEAD_TIMEOUT, http::read(&mut stream)).await else { return };
    request_sender.send_replace(true);
    let exchange = async {
        let (method, response) = match request {
            Ok(request) => (request.method.clone(), page::respond(&pages, &request).await),
            Err(RequestError::Disconnected) => return Ok(()),
            Err(RequestError::Malformed) => (
                String::new(),
                Response::text(StatusCode::BAD_REQUEST, "not a request of HTTP/1\n"),
            ),
            Err(RequestError::TooLarge) => (
                String::new(),
                Response::text(
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                    "the request is too long\n",
                ),
            ),
        };
        http::send_response(&mut stream, &method, &response).await
    };
    let _: Result<io::Result<()>, _> = timeout(RESPONSE_TIMEOUT, exchange).await;
}

// === impl Connections ===

impl Connections {
    fn add(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        pages: &Arc<Pages>,
    ) {
        self.make_room();
        let (request_sender, has_request) = watch::channel(false);
        let task = self.tasks.spawn(handle(stream, pages.clone(), request_sender));
        self.open.push_back(Connection { task, has_request });
    }

    fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|connection| !connection.task.is_finished());
        if self.open.len() < MAX_CONNECTIONS {
            return;
        }
        let is_silent = |connection: &Connection| !*connection.has_request.borrow();
        let evicted = self.open.iter().position(is_silent).unwrap_or(0);
        if let Some(connection) = self.open.remove(evicted) {
            connection.task.abort();
        }
    }
}

// === impl Accept ===

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}
