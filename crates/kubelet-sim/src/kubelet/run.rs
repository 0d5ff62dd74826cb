//! One run of the kubelet, from start to stop: its tasks and sockets, as of a process.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    net::UnixListener,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_kubelet_api::socket::SocketPath;

use super::KubeletError;
use crate::{
    checkpoint::ClaimsFile,
    config::Config,
    directory,
    dra::{self, Claims},
    event::Event,
    manager::{Manager, PodRecord},
    manager_task::{ManagerHandle, ManagerTask, TaskContext},
    podresources,
    registration::{self, ServerContext},
};

/// Pods by UID.
pub(super) type Pods = BTreeMap<String, PodRecord>;

/// State that outlives a run: the part that the API server and the container runtime hold.
#[derive(Debug, Default)]
pub(super) struct SurvivingState {
    /// Pods bound to the node, with their running containers.
    pub(super) pods: Pods,
    /// Capacities of extended resources in the node's status.
    capacities: BTreeMap<String, usize>,
}

/// Both sockets, bound after the cleanup of the plugin folder, and the claims of the previous run.
/// Only this part of a start can fail.
pub(super) struct Sockets {
    registration: UnixListener,
    pod_resources: UnixListener,
    claims: Claims,
    /// True if the plugin folder had no file of a previous run.
    should_reset_capacities: bool,
}

/// Tasks of a running kubelet. A drop cancels them.
#[derive(Debug)]
pub(super) struct Run {
    /// Handle of the manager task.
    pub(super) handle: ManagerHandle,
    /// Cancels all tasks.
    pub(super) ended: CancellationToken,
    manager_task: JoinSet<Manager>,
    servers: JoinSet<()>,
    /// Inputs of the current registration server.
    registration: ServerContext,
    _end_on_drop: DropGuard,
}

// === impl SurvivingState ===

impl SurvivingState {
    /// Active pods, which a new run admits again.
    pub(super) fn pods_to_readmit(&self) -> Vec<crate::pod::Pod> {
        let active = self.pods.values().filter(|record| record.is_active());
        active.map(|record| record.pod.clone()).collect()
    }

    fn of(manager: Manager) -> Self {
        let counts = manager.counts().into_iter();
        let capacities = counts.map(|(resource, (capacity, _))| (resource, capacity)).collect();
        Self { pods: manager.pods, capacities }
    }

    /// Sets the capacities to 0. The real kubelet takes an empty plugin folder as the sign of a new
    /// machine with the former node's name.
    fn with_capacities_reset(mut self) -> Self {
        self.capacities.values_mut().for_each(|capacity| *capacity = 0);
        self
    }

    /// The device manager's state in a new run, before the checkpoint is read.
    fn into_manager(self, context: &TaskContext) -> Manager {
        let mut pods = self.pods;
        for record in pods.values_mut() {
            record.running_at_start = record.running.clone();
        }
        Manager {
            release: context.config.release,
            policy: context.config.topology,
            numa_nodes: context.config.numa_nodes.clone(),
            // The first run has no pods to admit again.
            sources_ready: pods.is_empty(),
            pods,
            status_only_capacities: self.capacities,
            ..Manager::default()
        }
    }
}

// === impl Sockets ===

impl Sockets {
    /// Reads the claims, cleans up the plugin folder, and binds the kubelet's own sockets.
    pub(super) fn bind(config: &Config) -> Result<Self, KubeletError> {
        let claims = Claims::restore(ClaimsFile::in_dir(&config.dir).read_or_create()?);
        let should_reset_capacities = directory::is_empty(&config.plugin_dir())?;
        directory::clean_up(&config.plugin_dir(), config.plugin_dir_cleanup)?;
        Ok(Self {
            registration: bind(config.registration_socket())?,
            pod_resources: bind(config.pod_resources_socket())?,
            claims,
            should_reset_capacities,
        })
    }
}

// === impl Run ===

impl Run {
    /// Reads the device manager's checkpoint, and spawns the tasks.
    pub(super) fn begin(context: TaskContext, sockets: Sockets, surviving: SurvivingState) -> Self {
        let config = Arc::clone(&context.config);
        let ended = context.ended.clone();
        let Sockets { registration: listener, pod_resources, claims, should_reset_capacities } =
            sockets;
        let surviving =
            if should_reset_capacities { surviving.with_capacities_reset() } else { surviving };
        let (handle, commands) = ManagerHandle::new();
        let registration = ServerContext {
            handle: handle.clone(),
            config: Arc::clone(&config),
            faults: context.faults.clone(),
            ended: ended.child_token(),
        };
        let events = context.events.clone();
        let manager = surviving.into_manager(&context);
        let mut manager_task = JoinSet::new();
        let faults = context.faults.clone();
        manager_task.spawn(ManagerTask::restore(context, manager, claims).run(commands));
        let mut servers = JoinSet::new();
        servers.spawn(registration::serve(listener, registration.clone()));
        let reconciler = dra::reconcile_periodically(handle.clone(), config.dra.reconcile_period);
        servers.spawn(run_until_cancelled(ended.clone(), reconciler));
        let registry_watcher = dra::watch_registry(handle.clone(), Arc::clone(&config), faults);
        servers.spawn(run_until_cancelled(ended.clone(), registry_watcher));
        let pod_resources_server =
            podresources::serve(pod_resources, handle.clone(), config, ended.child_token());
        servers.spawn(pod_resources_server);
        events.push(Event::Started);
        events.push(Event::SlicesWiped { driver: None });
        let guard = ended.clone().drop_guard();
        Self { handle, ended, manager_task, servers, registration, _end_on_drop: guard }
    }

    /// Cancels all tasks. Ready when the last task has ended. Fails if the manager task panicked. The
    /// caller polls no further after `Ready`.
    pub(super) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SurvivingState, JoinError>> {
        self.ended.cancel();
        while let Some(result) = ready!(self.servers.poll_join_next(cx)) {
            if let Err(error) = result {
                tracing::error!(%error, "a server of the embedded kubelet failed");
            }
        }
        // The set has a single task: the manager task.
        let manager = ready!(self.manager_task.poll_join_next(cx)).transpose();
        Poll::Ready(manager.map(|manager| manager.map(SurvivingState::of).unwrap_or_default()))
    }

    /// Serves registrations on a new socket file with the same name.
    pub(super) fn replace_registration_socket(&mut self) -> Result<(), KubeletError> {
        self.registration.ended.cancel();
        self.registration.ended = self.ended.child_token();
        let listener = bind(self.registration.config.registration_socket())?;
        self.servers.spawn(registration::serve(listener, self.registration.clone()));
        Ok(())
    }
}

async fn run_until_cancelled(ended: CancellationToken, work: impl Future<Output = ()>) {
    ended.run_until_cancelled(work).await.unwrap_or(());
}

fn bind(path: PathBuf) -> Result<UnixListener, KubeletError> {
    Ok(SocketPath::new(path)?.bind()?)
}
