//! The connections of one listener: a bounded number, in which clients that say nothing never stand in the way.
//!
//! A listener that stops to accept while its places are taken can be starved by whoever connects and is silent. So it
//! accepts always, and where all places are taken the oldest connection gives way that has not said yet what it
//! wants; if all have, the oldest of them.

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
    http::{self, NoRequest, Page, Status},
    page,
};

/// A place where clients connect.
pub(super) trait Listen: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Connections that are open, oldest first.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: VecDeque<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// Whether its client has said what it wants.
    is_heard: watch::Receiver<bool>,
}

/// Connections at a time: some scrapers, and room for an honest client to speak while silent ones come and go. Each
/// costs a descriptor and about two kilobytes.
const MOST: usize = 64;

/// How long a client may take to say what it wants. One that is near takes a millisecond.
const HEAD_LIMIT: Duration = Duration::from_secs(1);

/// How long an answer may take in all: a scrape takes milliseconds, a slow reader does not keep its place.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The pause after the system refused a connection: without file descriptors it refuses the next too.
const PAUSE: Duration = Duration::from_millis(100);

/// How long open requests may take when the agent stops.
const DRAIN: Duration = Duration::from_secs(1);

/// Answers whoever connects until stopped; without a listener nobody.
pub(super) async fn serve(
    listener: Option<impl Listen>,
    pages: &Arc<Pages>,
    stop: &CancellationToken,
) {
    let Some(listener) = listener else { return };
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.next() => accepted,
        };
        match accepted {
            Ok(stream) => connections.add(stream, pages),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
        // Whoever was cut is gone before the next one comes, and whoever came has been listened to.
        yield_now().await;
    }
    // Those that are late are cut off with the set.
    let _ = timeout(DRAIN, async { while connections.tasks.join_next().await.is_some() {} }).await;
}

/// One request and its answer. What goes wrong on the way is the client's business.
async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    pages: Arc<Pages>,
    heard: watch::Sender<bool>,
) {
    let Ok(request) = timeout(HEAD_LIMIT, http::read(&mut stream)).await else { return };
    heard.send_replace(true);
    let answer = async {
        let (method, page) = match request {
            Ok(request) => (request.method.clone(), page::answer(&pages, &request).await),
            Err(NoRequest::Gone) => return Ok(()),
            Err(NoRequest::Malformed) => {
                (String::new(), Page::text(Status::BadRequest, "not a request of HTTP/1\n"))
            }
            Err(NoRequest::TooLarge) => {
                (String::new(), Page::text(Status::HeadTooLarge, "the request is too long\n"))
            }
        };
        http::answer(&mut stream, &method, &page).await
    };
    let _: Result<io::Result<()>, _> = timeout(ANSWER_LIMIT, answer).await;
}

// === impl Connections ===

impl Connections {
    fn add(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        pages: &Arc<Pages>,
    ) {
        self.make_room();
        let (heard, is_heard) = watch::channel(false);
        let task = self.tasks.spawn(converse(stream, pages.clone(), heard));
        self.open.push_back(Connection { task, is_heard });
    }

    fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|connection| !connection.task.is_finished());
        if self.open.len() < MOST {
            return;
        }
        let is_silent = |it: &Connection| !*it.is_heard.borrow();
        let leaves = self.open.iter().position(is_silent).unwrap_or(0);
        if let Some(connection) = self.open.remove(leaves) {
            connection.task.abort();
        }
    }
}

// === impl Listen ===

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}
