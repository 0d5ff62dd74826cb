//! Health, readiness, metrics and the inventory over HTTP, for probes, scrapers and people.
//!
//! What is answered comes from snapshots: no request waits for a driver, and the worst scraper costs
//! connections, of which there are few. One request per connection: a scrape every 15 seconds gains
//! nothing from one that stays open, and none is left open by a client that went away.

mod page;
mod probe;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    holders::HoldersDesk,
    metrics::{self, Instruments, Sights},
    registration::Standings,
    state::NodeState,
    telemetry::TelemetryReceiver,
};

/// What the agent shows of itself.
pub(crate) struct Seen {
    pub(crate) clock: Clock,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    /// When the keeper of the state last came round.
    pub(crate) rounds: watch::Receiver<Instant>,
    pub(crate) telemetry: Vec<TelemetryReceiver>,
    pub(crate) holders: HoldersDesk,
    pub(crate) registry: Registry,
    pub(crate) instruments: Instruments,
}

/// The pages that there are.
#[derive(Debug)]
enum Pages {
    All(Admin),
    /// Another agent has them.
    StandingBy,
}

/// What the pages are made from.
#[derive(Debug)]
struct Admin {
    registry: Registry,
    state: watch::Receiver<Arc<NodeState>>,
    rounds: watch::Receiver<Instant>,
    standings: watch::Receiver<Standings>,
    holders: HoldersDesk,
}

/// Takes the address: a wrong one is told before anything starts.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Connections at a time: a kubelet's two probes, and a few scrapers. More wait in the kernel.
const MOST_CONNECTIONS: usize = 16;

/// How long a client may take to say what it wants.
const HEADER_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection may last in all; a scrape takes milliseconds, a slow reader does not keep its
/// place.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);

/// The pause after the system refused a connection: without file descriptors it refuses the next too.
const PAUSE: Duration = Duration::from_secs(1);

/// How long open requests may take when the agent stops.
const DRAIN: Duration = Duration::from_secs(1);

/// Serves until stopped, and keeps what only the pages need.
pub(crate) async fn run(listener: TcpListener, seen: Seen, stop: CancellationToken) {
    let Seen { clock, state, rounds, telemetry, holders, mut registry, instruments } = seen;
    let sights = Sights {
        state: state.clone(),
        telemetry,
        standings: instruments.standings(),
        holders: holders.holders(),
        clock,
    };
    metrics::add_pages(&mut registry, &sights);
    let standings = sights.standings;
    let admin = Admin { registry, state: state.clone(), rounds, standings, holders };
    let pages = Pages::All(admin);
    tokio::join!(serve(listener, pages, stop), instruments.count_transitions(state));
}

/// Answers in place of an agent that waits for another to end, until stopped.
pub(crate) async fn stand_by(listener: TcpListener, stop: CancellationToken) {
    serve(listener, Pages::StandingBy, stop).await;
}

/// Answers until stopped.
async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) {
    let pages = Arc::new(pages);
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < MOST_CONNECTIONS;
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, pages.clone()))),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    // Those that are late are cut off with the set.
    let _ = timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
}

/// One request and its answer. What goes wrong on the way is the client's business.
async fn converse(stream: TcpStream, pages: Arc<Pages>) {
    let answer = service_fn(move |request: hyper::Request<_>| {
        let pages = pages.clone();
        async move {
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(match &*pages {
                Pages::All(admin) => page::answer(admin, &head.method, head.uri.path()).await,
                Pages::StandingBy => page::standing_by(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    let _: Result<_, _> = timeout(CONNECTION_LIMIT, connection).await;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::ledger::LedgerDesk;

    fn admin() -> Admin {
        Admin {
            registry: Registry::default(),
            state: watch::channel(Arc::default()).1,
            rounds: watch::channel(Instant::now()).1,
            standings: watch::channel(Standings::new()).1,
            holders: crate::holders::inquiry(Path::new("/nowhere"), LedgerDesk::default()).1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_say_nothing_keep_others_out_for_seconds_only() {
        let listener = bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let address = listener.local_addr().expect("an address");
        let (stop, mut server) = (CancellationToken::new(), JoinSet::new());
        server.spawn(serve(listener, Pages::All(admin()), stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..MOST_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.expect("connected"));
        }
        let (begun, mut text) = (Instant::now(), String::new());
        let mut client = TcpStream::connect(address).await.expect("connected");
        client.write_all(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n").await.expect("sent");
        client.read_to_string(&mut text).await.expect("answered");
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        let waited = begun.elapsed();
        assert!(waited >= HEADER_LIMIT && waited < CONNECTION_LIMIT, "{waited:?}");
        stop.cancel();
        server.join_next().await.expect("it ran").expect("it ends");
    }
}
