//! Health, readiness, metrics and the inventory over HTTP, for probes, scrapers and people.
//!
//! ```text
//!   0.0.0.0:9400  ──> connections ──┐
//!                                   ├──> http ──> page ──> snapshots
//!   probe socket  ──> connections ──┘
//! ```
//!
//! Pages are made from snapshots: no request waits for a driver. Whoever reaches the address can fill its places;
//! the socket has places of its own, which only root of the same node or pod can reach.

mod ask;
mod connections;
mod http;
mod page;
mod probe;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::podresources::HoldersDesk;
use windlass_config::Disclosed;
use windlass_deviceplugin::registration::Standings;
use windlass_discovery::telemetry::TelemetryReceiver;
use windlass_host::clock::Clock;
use windlass_kubelet_api::socket::{SocketError, SocketPath};
use windlass_resources::NodeState;

pub use ask::{Probe, ProbeAnswer, ProbeError, probe_agent};
pub(crate) use probe::Waiting;

use crate::metrics::{self, Instruments, Sights};

/// What the agent shows of itself.
pub(crate) struct Seen {
    pub(crate) clock: Clock,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    /// When the reconciler last came round.
    pub(crate) rounds: watch::Receiver<Instant>,
    pub(crate) telemetry: Vec<TelemetryReceiver>,
    pub(crate) holders: HoldersDesk,
    pub(crate) registry: Registry,
    pub(crate) instruments: Instruments,
    pub(crate) disclosed: BTreeSet<Disclosed>,
}

/// Where pages are served.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    network: Option<TcpListener>,
    probes: Option<UnixListener>,
}

/// Why pages cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: choose another with --listen")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("cannot answer probes: choose another socket with --probe-socket")]
    Socket(#[from] SocketError),
    /// Another agent has the socket.
    #[error("another process answers on {0}: choose another socket with --probe-socket")]
    Answered(PathBuf),
}

/// The pages that there are.
#[derive(Debug)]
enum Pages {
    All(Admin),
    /// The agent serves nobody yet.
    StandingBy(Waiting),
}

/// What the pages are made from.
#[derive(Debug)]
struct Admin {
    registry: Registry,
    state: watch::Receiver<Arc<NodeState>>,
    rounds: watch::Receiver<Instant>,
    standings: watch::Receiver<Standings>,
    holders: HoldersDesk,
    disclosed: BTreeSet<Disclosed>,
}

/// Serves until stopped, and keeps what only the pages need.
pub(crate) async fn run(doors: Doors, seen: Seen, stop: CancellationToken) {
    let Seen { clock, state, rounds, telemetry, holders, mut registry, instruments, disclosed } =
        seen;
    let sights = Sights {
        state: state.clone(),
        telemetry,
        standings: instruments.standings(),
        holders: holders.holders(),
        disclosed: disclosed.clone(),
        clock,
    };
    metrics::add_pages(&mut registry, &sights);
    let standings = sights.standings;
    let admin = Admin { registry, state: state.clone(), rounds, standings, holders, disclosed };
    tokio::join!(serve(doors, Pages::All(admin), stop), instruments.count_transitions(state));
}

/// Answers in place of an agent that serves nobody yet, until stopped.
pub(crate) async fn stand_by(doors: Doors, waiting: Waiting, stop: CancellationToken) {
    serve(doors, Pages::StandingBy(waiting), stop).await;
}

async fn serve(doors: Doors, pages: Pages, stop: CancellationToken) {
    let pages = Arc::new(pages);
    tokio::join!(
        connections::serve(doors.network, &pages, &stop),
        connections::serve(doors.probes, &pages, &stop)
    );
}

// === impl Doors ===

impl Doors {
    /// Takes what the configuration names: a wrong address is told before anything starts.
    pub(crate) fn bind(
        network: Option<SocketAddr>,
        probes: Option<&Path>,
    ) -> Result<Self, DoorError> {
        let network = network.map(|address| {
            listen(address).map_err(|source| DoorError::Address { address, source })
        });
        let probes = probes.map(listen_for_probes);
        Ok(Self { network: network.transpose()?, probes: probes.transpose()? })
    }

    /// Whether nobody can ask for a page.
    pub(crate) fn is_none(&self) -> bool {
        self.network.is_none() && self.probes.is_none()
    }

    /// Where the network finds them.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.network.as_ref().and_then(|listener| listener.local_addr().ok())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// An agent that stands by must not take the socket of the one that serves.
fn listen_for_probes(path: &Path) -> Result<UnixListener, DoorError> {
    let socket = SocketPath::new(path)?;
    if UnixStream::connect(path).is_ok() {
        return Err(DoorError::Answered(path.to_owned()));
    }
    Ok(socket.bind()?)
}

#[cfg(test)]
mod tests;
