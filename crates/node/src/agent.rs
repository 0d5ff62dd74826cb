//! The agent: built from a configuration, then run until told to stop.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::FlockOperation;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use windlass_core::inventory::Inventory;
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, socket::SocketError};

use crate::{
    admin::{self, Seen},
    clock::Clock,
    config::{Config, Resources},
    directory::DirectoryWatch,
    discovery,
    host::Host,
    metrics,
    plugin::{self, Plugins},
    state::{self, Keeper, NodeState, Notices},
    telemetry::TelemetryReceiver,
};

/// An agent with everything it needs in hand: nothing that can be wrong at the start is left to the
/// run.
#[derive(Debug)]
pub struct Agent {
    state: watch::Receiver<Arc<NodeState>>,
    admin_address: Option<SocketAddr>,
    stop: CancellationToken,
    parts: Parts,
    _lock: File,
}

/// Why an agent cannot start. Nothing of another agent's was touched.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder cannot be made or written to.
    #[error("cannot write to {path}: run as root, or choose another folder with {flag}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The flag that names it.
        flag: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The address for health and metrics cannot be had.
    #[error("cannot listen on {address}: choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Another agent serves the same kubelet.
    #[error("another windlass node serves {0}: stop it first")]
    Taken(PathBuf),
    /// A socket's path does not fit.
    #[error("cannot serve a resource")]
    Socket(#[from] SocketError),
    /// The kubelet's directory cannot be watched.
    #[error("cannot watch {path}")]
    Watch {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What runs, each part giving its name when it ends.
type Parts = JoinSet<&'static str>;

/// Keeps a second agent away. A dot file, because a kubelet takes a directory with any other file
/// for the sign of an earlier life; a file, because the kubelet deletes sockets only.
const LOCK: &str = ".windlass.lock";

/// How long the parts may take to end; systemd and the kubelet allow longer.
const GRACE: Duration = Duration::from_secs(5);

// === impl Agent ===

impl Agent {
    /// Takes the kubelet's directory, checks everything, and starts the parts.
    pub fn start(config: &Config, clock: Clock) -> Result<Self, StartError> {
        let dir = config.kubelet_dir.join(PLUGIN_DIR);
        check_sockets(&dir, &config.policy.resources)?;
        let lock = lock(&dir)?;
        if config.policy.delivery.uses_cdi() {
            writable(&config.cdi_dir)?;
        }
        let watched = DirectoryWatch::new(&dir)
            .map_err(|source| StartError::Watch { path: dir.clone(), source })?;

        let listener = config.listen.map(listen).transpose()?;
        let admin_address = listener.as_ref().and_then(|listener| listener.local_addr().ok());

        let stop = CancellationToken::new();
        let mut parts = JoinSet::new();
        let (registry, instruments) = metrics::registry(&clock);
        let (changes, directory) = watch::channel(0);
        let look_interval = config.session.look_interval;
        spawn(&mut parts, "watch of the kubelet's folder", watched.run(changes, look_interval));
        let (state, telemetry) =
            start_discovery(config, clock, (&mut parts, &stop), directory.clone());
        let plugins = Plugins {
            host: Host::new(&config.host_root, &config.host_root_on_node),
            delivery: Arc::new(config.policy.delivery.clone()),
            limits: config.session,
            state: state.clone(),
            instruments: instruments.clone(),
            directory,
            dir,
        };
        spawn(&mut parts, "device plugin", plugins.run(stop.clone()));
        if let Some(listener) = listener {
            let kubelet_dir = config.kubelet_dir.clone();
            let state = state.clone();
            let seen = Seen { kubelet_dir, clock, state, telemetry, registry, instruments };
            spawn(&mut parts, "HTTP server", admin::run(listener, seen, stop.clone()));
        }
        Ok(Self { state, admin_address, stop, parts, _lock: lock })
    }

    /// The node's state, for whoever wants to watch it.
    pub fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.clone()
    }

    /// Where health and metrics are served, if they are.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Runs until `shutdown`, or until a part fails, which is reported.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), PartFailed> {
        let outcome = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended) = self.parts.join_next() => Err(PartFailed::from(ended)),
        };
        self.stop.cancel();
        let ended = timeout(GRACE, async { while self.parts.join_next().await.is_some() {} });
        if ended.await.is_err() {
            tracing::warn!(limit = ?GRACE, "not everything ended in time");
        }
        outcome
    }
}

/// A part of the agent ended though it should not.
#[derive(Debug, thiserror::Error)]
pub enum PartFailed {
    /// It came to an end.
    #[error("the agent's {0} ended unexpectedly")]
    Ended(&'static str),
    /// It panicked.
    #[error("a part of the agent panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

impl From<Result<&'static str, tokio::task::JoinError>> for PartFailed {
    fn from(ended: Result<&'static str, tokio::task::JoinError>) -> Self {
        ended.map_or_else(Self::Panicked, Self::Ended)
    }
}

/// Looks at the host once. A source that does not answer in time is `Starting` in the answer.
pub async fn survey(config: &Config, clock: Clock) -> Inventory {
    let (stop, news) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (mut parts, mut snapshots) = (JoinSet::new(), Vec::new());
    for source in discovery::sources(config, clock, &news, &stop) {
        snapshots.push((source.name, source.snapshots));
        parts.spawn(source.run);
    }
    let complete = async {
        while !state::merge(&snapshots).is_complete() {
            news.notified().await;
        }
    };
    // Late answers are in the merge below, or are not.
    let _ = timeout(config.policy.health.call_deadline * 3, complete).await;
    let inventory = state::merge(&snapshots);
    stop.cancel();
    // A part that hangs in a driver is left behind.
    let _ = timeout(GRACE, async { while parts.join_next().await.is_some() {} }).await;
    inventory
}

fn start_discovery(
    config: &Config,
    clock: Clock,
    (parts, stop): (&mut Parts, &CancellationToken),
    kubelet_writes: watch::Receiver<u64>,
) -> (watch::Receiver<Arc<NodeState>>, Vec<TelemetryReceiver>) {
    let (publish, state) = watch::channel(Arc::new(NodeState::default()));
    let news = Arc::new(Notify::new());
    let (mut snapshots, mut telemetry) = (Vec::new(), Vec::new());
    for source in discovery::sources(config, clock, &news, stop) {
        snapshots.push((source.name, source.snapshots));
        telemetry.extend(source.telemetry);
        spawn(parts, source.name, source.run);
    }
    let notices = Notices { news, kubelet_writes };
    let keeper = Keeper::new(config, snapshots, notices, publish);
    spawn(parts, "keeper", keeper.run(stop.clone()));
    (state, telemetry)
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    admin::bind(address).map_err(|source| StartError::Listen { address, source })
}

fn spawn(parts: &mut Parts, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
    parts.spawn(async move {
        part.await;
        name
    });
}

/// Makes the folder if need be, and proves that files can be made in it.
fn writable(path: &Path) -> Result<(), StartError> {
    let probe = path.join(".windlass.probe");
    fs::create_dir_all(path)
        .and_then(|()| File::create(&probe))
        .and_then(|_| fs::remove_file(&probe))
        .map_err(|source| StartError::Folder { path: path.to_owned(), flag: "--cdi-dir", source })
}

/// Makes the folder if need be, and takes it. The lock lives as long as the file is open; the kernel
/// releases it even when the agent is killed.
fn lock(dir: &Path) -> Result<File, StartError> {
    let refused =
        |source| StartError::Folder { path: dir.to_owned(), flag: "--kubelet-dir", source };
    fs::create_dir_all(dir).map_err(refused)?;
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(dir.join(LOCK));
    let file = file.map_err(refused)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::Taken(dir.to_owned())),
        Err(error) => Err(refused(error.into())),
    }
}

/// Every socket whose name is known beforehand must fit.
fn check_sockets(dir: &Path, resources: &Resources) -> Result<(), SocketError> {
    plugin::kubelet_path(dir)?;
    resources.known_names().iter().try_for_each(|name| plugin::socket_path(dir, name).map(drop))
}
