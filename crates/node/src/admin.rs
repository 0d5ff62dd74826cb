//! HTTP server of the agent: health, readiness, metrics, the inventory and the page.
//!
//! ```text
//!   0.0.0.0:9400  ──> connections ──┐
//!                                   ├──> http ──> page ──> snapshots
//!   probe socket  ──> connections ──┘
//! ```
//!
//! Pages are built from snapshots, so no request waits for a driver. Network clients can exhaust the connection
//! limit of the TCP address. The probe socket has its own limit, and only root can open it.

mod board;
mod connections;
mod http;
mod page;
mod probe;
mod probe_client;

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
use windlass_allocations::{ledger::Ledger, podresources::PodResourcesCache};
use windlass_config::Disclosed;
use windlass_deviceplugin::registration::RegistrationStates;
use windlass_discovery::telemetry::TelemetryReceiver;
use windlass_host::clock::Clock;
use windlass_kubelet_api::socket::{SocketError, SocketPath};
use windlass_resources::NodeState;

pub(crate) use probe::Standby;
pub use probe_client::{Probe, ProbeError, ProbeResponse, get_page, probe_agent};

use self::board::NodeDashboard;
use crate::metrics::{self, Instruments, MetricSources, SharedGpus};

/// Inputs of the HTTP server.
pub(crate) struct Deps {
    pub(crate) clock: Clock,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    /// Time of the reconciler's latest round.
    pub(crate) last_round: watch::Receiver<Instant>,
    pub(crate) telemetry: Vec<TelemetryReceiver>,
    pub(crate) holders: PodResourcesCache,
    /// Memory on shared GPUs.
    pub(crate) memory: watch::Receiver<Arc<SharedGpus>>,
    pub(crate) registry: Registry,
    pub(crate) instruments: Instruments,
    pub(crate) disclosed: BTreeSet<Disclosed>,
    /// Devices that claims and shares hold.
    pub(crate) ledger: watch::Receiver<Ledger>,
    pub(crate) node: String,
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    network: Option<TcpListener>,
    probes: Option<UnixListener>,
}

/// Failure to bind a listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The TCP address cannot be bound.
    #[error("cannot listen on {0}: choose another with --listen")]
    Address(SocketAddr, #[source] io::Error),
    /// The probe socket cannot be bound.
    #[error("cannot answer probes: choose another socket with --probe-socket")]
    Socket(#[from] SocketError),
    /// Another process serves the probe socket.
    #[error("another process answers on {0}: choose another socket with --probe-socket")]
    SocketInUse(PathBuf),
}

/// Pages of a serving agent, or of one on standby.
#[derive(Debug)]
enum Pages {
    Serving(Admin),
    /// The agent does not serve the node yet.
    StandingBy(Standby),
}

/// Data behind the pages of a serving agent.
#[derive(Debug)]
struct Admin {
    registry: Registry,
    state: watch::Receiver<Arc<NodeState>>,
    last_round: watch::Receiver<Instant>,
    registrations: watch::Receiver<RegistrationStates>,
    holders: PodResourcesCache,
    disclosed: BTreeSet<Disclosed>,
    board: Arc<NodeDashboard>,
}

/// Serves the pages, counts health transitions and records the page's history, until stopped.
pub(crate) async fn run(listeners: Listeners, deps: Deps, stop: CancellationToken) {
    let Deps { clock, state, last_round, telemetry, holders, memory, .. } = deps;
    let (mut registry, instruments, disclosed) = (deps.registry, deps.instruments, deps.disclosed);
    let sources = MetricSources {
        state: state.clone(),
        telemetry,
        registrations: instruments.plugins.states(),
        holders: holders.holders(),
        ledger: deps.ledger,
        memory,
        disclosed: disclosed.clone(),
        clock,
    };
    metrics::register_collectors(&mut registry, &sources);
    let registrations = sources.registrations.clone();
    let board = Arc::new(NodeDashboard::new(sources, deps.node));
    let admin = Admin {
        registry,
        state: state.clone(),
        last_round,
        registrations,
        holders,
        disclosed,
        board: board.clone(),
    };
    let history = stop.clone();
    let history = history.run_until_cancelled(board.record_changes());
    tokio::join!(
        serve(&listeners, Pages::Serving(admin), &stop),
        instruments.transitions.count(state),
        history
    );
}

/// Serves probes on behalf of an agent on standby, until stopped.
pub(crate) async fn stand_by(listeners: &Listeners, standby: Standby, stop: &CancellationToken) {
    serve(listeners, Pages::StandingBy(standby), stop).await;
}

async fn serve(listeners: &Listeners, pages: Pages, stop: &CancellationToken) {
    let pages = Arc::new(pages);
    tokio::join!(
        connections::serve(listeners.network.as_ref(), &pages, stop),
        connections::serve(listeners.probes.as_ref(), &pages, stop)
    );
}

// === impl Listeners ===

impl Listeners {
    /// Binds the configured listeners, so that a wrong address fails before anything starts.
    pub(crate) fn bind(
        network: Option<SocketAddr>,
        probes: Option<&Path>,
    ) -> Result<Self, ListenError> {
        let network = network
            .map(|address| listen(address).map_err(|source| ListenError::Address(address, source)));
        let probes = probes.map(listen_for_probes);
        Ok(Self { network: network.transpose()?, probes: probes.transpose()? })
    }

    /// True without a listener.
    pub(crate) fn is_empty(&self) -> bool {
        self.network.is_none() && self.probes.is_none()
    }

    /// Bound TCP address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.network.as_ref().and_then(|listener| listener.local_addr().ok())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Binds the probe socket, unless a serving agent answers on it.
fn listen_for_probes(path: &Path) -> Result<UnixListener, ListenError> {
    let socket = SocketPath::new(path)?;
    if UnixStream::connect(path).is_ok() {
        return Err(ListenError::SocketInUse(path.to_owned()));
    }
    Ok(socket.bind()?)
}

#[cfg(test)]
mod tests;
