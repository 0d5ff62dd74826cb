//! Agent lifecycle: build from a configuration, then run until shutdown.

mod assembly;
mod lock;
mod policy;
mod reservation;
mod tasks;

use std::{collections::BTreeMap, io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc};

use assembly::Deps;
use lock::NodeLock;
use tasks::TaskSet;
use tokio::sync::{Notify, watch};
use windlass_allocations::ledger::SharedLedger;
use windlass_cluster::InvalidNodeName;
use windlass_config::{Config, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    health::HealthState,
    inventory::Inventory,
};
use windlass_discovery::mig::MigHandle;
use windlass_host::{clock::Clock, container::GpuProcess, deadline, directory::DirectoryWatch};
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, socket::SocketError};
use windlass_lifecycle::gpu_use::{DriverCache, GpuUse, ProcessError};
use windlass_resources::NodeState;

pub use lock::LockLost;
pub use reservation::{Reservation, StandbyMode};

use crate::{admin::ListenError, metrics, reconciler, reload::ReloadSource};
use policy::PolicySource;

/// An agent that is ready to run: everything that can fail at the start has succeeded.
#[derive(Debug)]
pub struct Agent {
    state: watch::Receiver<Arc<NodeState>>,
    partitions: MigHandle,
    admin_address: Option<SocketAddr>,
    tasks: TaskSet,
    lock: NodeLock,
    /// Events of the plugin directory: as received, and as forwarded after each lock check.
    directory_events: (watch::Receiver<u64>, watch::Sender<u64>),
}

/// Failed start. State of other agents is untouched.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder cannot be created or written.
    #[error("cannot write to {path}: run as root, or choose another folder with {flag}")]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Flag that sets the path.
        flag: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A listener for health and metrics cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another agent serves the same kubelet.
    #[error("another windlass node serves {0}: stop it first")]
    KubeletInUse(PathBuf),
    /// An agent of another kubelet uses the same state folder.
    #[error(
        "another windlass node keeps its records in {0}: stop it first, or choose another folder with \
         --state-dir"
    )]
    StateFolderInUse(PathBuf),
    /// The lock file of earlier versions cannot be locked.
    #[error("cannot lock {0}: remove it, and run as root")]
    Lock(PathBuf, #[source] io::Error),
    /// The configuration needs the API server, and the node name is invalid.
    #[error("cannot speak to the API server")]
    Cluster(#[from] InvalidNodeName),
    /// The path of a socket is too long.
    #[error("cannot serve a resource")]
    Socket(#[from] SocketError),
    /// The kubelet's folder or that of the configuration cannot be watched.
    #[error("cannot watch {0}")]
    Watch(PathBuf, #[source] io::Error),
}

// === impl Agent ===

impl Agent {
    /// Reserves the node and starts the tasks.
    pub fn start(config: &Config, clock: Clock) -> Result<Self, StartError> {
        let policy = watch::Sender::new(Arc::new(config.policy.clone()));
        Self::start_with_policy(config, Reservation::new(config)?, policy.subscribe(), clock)
    }

    /// Starts with a policy that the caller may replace at run time.
    pub fn start_with_policy(
        config: &Config,
        reservation: Reservation,
        policy: watch::Receiver<Arc<Policy>>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(config, reservation, PolicySource::Supplied(policy), clock)
    }

    /// Starts with a configuration that is reloaded on changes.
    pub fn start_with_reload(
        config: &Config,
        reservation: Reservation,
        reload: ReloadSource,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(config, reservation, PolicySource::Reloaded(reload), clock)
    }

    fn start_with(
        config: &Config,
        reservation: Reservation,
        source: PolicySource,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let dir = config.places.kubelet_dir.join(PLUGIN_DIR);
        let Reservation { lock, listeners } = reservation;
        let watch =
            DirectoryWatch::new(&dir).map_err(|source| StartError::Watch(dir.clone(), source))?;
        let admin_address = listeners.address();
        let cluster = source.client(config)?;
        let (registry, instruments) = metrics::registry(&clock);
        let mut tasks = TaskSet::default();
        let (event_sender, events) = watch::channel(0);
        let (forwarder, directory) = watch::channel(0);
        let event_watch = watch.run(event_sender, config.kubelet_limits.check_interval);
        let stop = tasks.stop_token();
        // `NodeLock::guard` waits for events until the agent ends, so only `stop` ends the watch.
        let event_watch = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = event_watch => {}
            }
        };
        tasks.spawn("watch of the kubelet's folder", event_watch);
        let reload = instruments.reload.clone();
        let policy = source.start(config, cluster.as_ref(), (clock, reload), &mut tasks)?;
        let ledger = SharedLedger::with_unknown_containers();
        let deps = Deps { dir, directory, listeners, cluster, policy, ledger, clock };
        let (state, partitions) =
            assembly::assemble(config, deps, registry, instruments, &mut tasks);
        let directory_events = (events, forwarder);
        Ok(Self { state, partitions, admin_address, tasks, lock, directory_events })
    }

    /// Snapshots of the node's state.
    pub fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.clone()
    }

    /// Handle for creating and removing MIG instances.
    pub fn partitions(&self) -> MigHandle {
        self.partitions.clone()
    }

    /// Bound address of health and metrics.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Runs until `shutdown`, or until a task fails or another agent locks the node; both are errors. The node stays
    /// locked until all tasks have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), TaskFailed> {
        let Self { mut tasks, lock, directory_events: (events, forwarder), .. } = self;
        // This future owns the locks, so the node stays locked until all tasks have ended.
        let mut guard = pin!(lock.guard(events, &forwarder));
        let (outcome, _locks) = tokio::select! {
            () = shutdown => (Ok(()), None),
            result = tasks.next_exit() => (Err(TaskFailed::from(result)), None),
            (locks, lost) = &mut guard => (Err(TaskFailed::Lost(lost)), Some(locks)),
        };
        tasks.stop().await;
        outcome
    }
}

// === impl StartError ===

impl StartError {
    fn is_held_by_other(&self) -> bool {
        matches!(self, Self::KubeletInUse(_) | Self::StateFolderInUse(_))
    }
}

/// Unexpected end of a task.
#[derive(Debug, thiserror::Error)]
pub enum TaskFailed {
    /// The task returned.
    #[error("the agent's {0} ended unexpectedly")]
    Ended(&'static str),
    /// The task panicked.
    #[error("a part of the agent panicked")]
    Panicked(#[from] tokio::task::JoinError),
    /// Another agent has taken the node.
    #[error(transparent)]
    Lost(#[from] LockLost),
}

impl From<Result<&'static str, tokio::task::JoinError>> for TaskFailed {
    fn from(result: Result<&'static str, tokio::task::JoinError>) -> Self {
        result.map_or_else(Self::Panicked, Self::Ended)
    }
}

/// Processes with memory of a GPU, or the reason that they are unknown.
pub type GpuProcesses = Result<Vec<GpuProcess>, ProcessError>;

/// Scans the host once. A source without an answer in time is `Starting`.
pub async fn scan_host(config: &Config, clock: Clock) -> NodeState {
    Box::pin(scan_host_with_processes(config, clock, |_| Vec::new())).await.0
}

/// Scans the host once, and asks the driver for the processes on these GPUs.
pub async fn scan_host_with_processes(
    config: &Config,
    clock: Clock,
    gpus: impl FnOnce(&NodeState) -> Vec<DeviceId>,
) -> (NodeState, BTreeMap<DeviceId, GpuProcesses>) {
    let (mut tasks, wake) = (TaskSet::default(), Arc::new(Notify::new()));
    let policy = watch::Sender::new(Arc::new(config.policy.clone())).subscribe();
    // A single scan needs no change notifications.
    let changes = watch::Sender::new(0).subscribe();
    let host = config.places.roots().host;
    let sources = windlass_discovery::sources(
        &config.places,
        &host,
        &policy,
        &changes,
        clock,
        &wake,
        &tasks.stop_token(),
    );
    let driver = sources.iter().find_map(|source| source.driver.clone());
    let snapshots = assembly::start_sources(sources, &mut tasks);
    let complete = async {
        while !has_answered(&reconciler::dry_run::merge(&snapshots), &config.policy) {
            wake.notified().await;
        }
    };
    // A source without an answer by now stays `Starting`.
    let _ = deadline::timeout(config.policy.health.call_deadline * 3, complete).await;
    let state = reconciler::dry_run::dry_run(config, &snapshots, driver.clone());
    let mut in_use = BTreeMap::new();
    for gpu in gpus(&state) {
        let Some(driver) = &driver else { break };
        let measurement = GpuUse::measure(driver, &gpu, DriverCache::default());
        let processes = deadline::timeout(config.policy.health.call_deadline, measurement);
        let answer = processes.await.unwrap_or(Err(ProcessError::Unresponsive));
        in_use.insert(gpu, answer.map(|answer| answer.processes));
    }
    // A task that hangs in a driver call is abandoned.
    tasks.stop().await;
    (state, in_use)
}

/// True if all sources and all configured probes have answered.
fn has_answered(inventory: &Inventory, policy: &Policy) -> bool {
    let is_probed = |device: &&Device| {
        let rule = policy.sources.iter().find(|rule| rule.name == device.source);
        rule.is_some_and(|rule| rule.probe.is_some())
    };
    let is_known = |device: &Device| device.health.state != HealthState::Unknown;
    inventory.is_complete() && inventory.devices.iter().filter(is_probed).all(is_known)
}

#[cfg(test)]
mod tests;
