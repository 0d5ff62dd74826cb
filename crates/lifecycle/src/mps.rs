//! MPS: one control daemon per shared GPU, started, supervised, restarted and stopped by the agent.
//!
//! ```text
//!   reconciler ── demand: device -> spec ─────> Mps ──> one task per device ──> nvidia-cuda-mps-control
//!      ^                                     │
//!      └── states: device -> MpsState <──────┘      a device without a ready daemon is not allocatable
//! ```
//!
//! A daemon serves one GPU, not one resource, so that a failure affects one GPU. A program connects to one
//! daemon, so a container can use MPS on one device only.
//!
//! Daemons outlive the agent. The programs on a GPU die with its daemon, so each restart of the agent would otherwise
//! be an outage of every pod on a shared GPU. A daemon has its own control group, so that it outlives the agent's
//! container too. The next agent adopts running daemons, and stops those that are no longer required. [`stop_all`] is
//! for a node without a next agent.
//!
//! MPS limits each process: a container with two processes has twice the share. Client and server share files in the
//! host's `/dev/shm`, or in `MpsSettings::shm_dir`. NVIDIA's plugin mounts a tmpfs for these files instead, which
//! needs the right to mount, and mount propagation to the host.

mod cgroup;
mod control;
mod daemon;
mod env;
mod mode;
mod place;
mod process;
mod program;
mod spec;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{
    Notify,
    mpsc::{self, UnboundedReceiver, UnboundedSender},
    watch,
};
use tokio_util::sync::CancellationToken;
use windlass_config::{HostPaths, MpsSettings};
use windlass_core::device::DeviceId;
use windlass_host::{
    Host, causes, container::GpuProcess, deadline, keyed::KeyedTasks, watch::publish_if_changed,
};

use self::{daemon::Daemon, env::Env};
pub use self::{
    place::MpsFolders,
    spec::{MigRole, MpsSpec, is_older_than_volta},
};

/// Required daemons by device. A device that is missing here has its daemon stopped.
pub type MpsSpecs = BTreeMap<DeviceId, MpsSpec>;

/// Demand for daemons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsDemand {
    /// Devices that are shared by MPS.
    pub required: MpsSpecs,
    /// Devices that are no longer shared, but whose replicas containers still use. Their daemons are neither started
    /// nor stopped.
    pub retained: BTreeSet<DeviceId>,
}

/// State of each required daemon.
pub type MpsStates = BTreeMap<DeviceId, MpsState>;

/// State of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsState {
    /// The daemon is being started.
    Starting,
    /// The daemon answers, and its limits are set.
    Ready,
    /// The daemon failed for this reason, and is started again after a delay.
    Failed(String),
}

/// Supervisor of the daemons.
#[derive(Debug)]
pub struct Mps {
    env: Arc<Env>,
    demand: watch::Receiver<Arc<MpsDemand>>,
    states: watch::Sender<Arc<MpsStates>>,
    wake: Arc<Notify>,
    /// Sender of the spec to each device's task; `None` stops the daemon.
    spec_senders: BTreeMap<DeviceId, watch::Sender<Option<MpsSpec>>>,
    tasks: KeyedTasks<DeviceId, ()>,
    reports: (UnboundedSender<Report>, UnboundedReceiver<Report>),
}

type Report = (DeviceId, MpsState);

// === impl MpsState ===

impl MpsState {
    /// Reason why the device cannot be allocated, without a ready daemon.
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::Starting => Some("MPS daemon: starting".to_owned()),
            Self::Failed(reason) => Some(format!("MPS daemon: {reason}")),
        }
    }
}

// === impl Mps ===

impl Mps {
    /// Creates the supervisor, and starts no daemon yet. `wake` is notified of each change of a state, and of
    /// each daemon that ended.
    pub fn new(
        paths: &HostPaths,
        settings: &MpsSettings,
        demand: watch::Receiver<Arc<MpsDemand>>,
        wake: &Arc<Notify>,
    ) -> (Self, watch::Receiver<Arc<MpsStates>>) {
        let (states, receiver) = watch::channel(Arc::default());
        let mps = Self {
            env: Arc::new(Env::new(paths, settings)),
            demand,
            states,
            wake: wake.clone(),
            spec_senders: BTreeMap::new(),
            tasks: KeyedTasks::default(),
            reports: mpsc::unbounded_channel(),
        };
        (mps, receiver)
    }

    /// Supervises the daemons until stopped, and leaves them running. The first demand is ignored until it changes:
    /// before the first inventory, any running daemon may be required.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                // A stopping agent starts nothing.
                biased;
                () = stop.cancelled() => break,
                Ok(()) = self.demand.changed() => self.apply_demand(&stop),
                Some((device, state)) = self.reports.1.recv() => self.publish(device, state),
                Some((device, ())) = self.tasks.join_next() => {
                    self.spec_senders.remove(&device);
                    self.apply_demand(&stop);
                    // Plans may have waited for the end of a daemon.
                    self.wake.notify_one();
                }
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Passes each task its spec, and starts the tasks of new devices and of leftover daemons.
    fn apply_demand(&mut self, stop: &CancellationToken) {
        let demand = self.demand.borrow_and_update().clone();
        let specs = &demand.required;
        for (device, spec) in specs {
            self.set_spec(device, Some(spec), stop);
        }
        let daemons = self.spec_senders.keys().cloned().chain(self.env.folders.recorded_devices());
        for device in daemons.collect::<BTreeSet<_>>() {
            if !specs.contains_key(&device) && !demand.retained.contains(&device) {
                self.set_spec(&device, None, stop);
            }
        }
        let current_states = self.states.borrow().clone();
        let state = |device| current_states.get(device).cloned().unwrap_or(MpsState::Starting);
        self.publish_states(specs.keys().map(|device| (device.clone(), state(device))).collect());
    }

    fn set_spec(&mut self, device: &DeviceId, spec: Option<&MpsSpec>, stop: &CancellationToken) {
        if let Some(spec_sender) = self.spec_senders.get(device) {
            publish_if_changed(spec_sender, spec.cloned());
            return;
        }
        let (sender, receiver) = watch::channel(spec.cloned());
        let daemon = Daemon::new(device.clone(), &self.env, receiver, self.reports.0.clone());
        self.tasks.submit(device.clone(), daemon.run(stop.clone()));
        self.spec_senders.insert(device.clone(), sender);
    }

    fn publish(&mut self, device: DeviceId, state: MpsState) {
        // States of daemons that are being stopped are not published.
        if self.demand.borrow().required.contains_key(&device) {
            let mut states = MpsStates::clone(&self.states.borrow());
            states.insert(device, state);
            self.publish_states(states);
        }
    }

    /// Publishes changed states.
    fn publish_states(&self, states: MpsStates) {
        if publish_if_changed(&self.states, Arc::new(states)) {
            self.wake.notify_one();
        }
    }
}

/// Handle to the clients of running daemons.
#[derive(Clone, Debug)]
pub struct MpsClients(Arc<Env>);

/// Stops every daemon that an agent left running, before Windlass is removed from a node. A running agent
/// would restart them. Returns the outcome by device.
pub async fn stop_all(
    paths: &HostPaths,
    settings: &MpsSettings,
) -> BTreeMap<DeviceId, Result<(), String>> {
    let env = Arc::new(Env::new(paths, settings));
    let mut outcomes = BTreeMap::new();
    for device in env.folders.recorded_devices() {
        let outcome = env.stop(&mut env.instance(device.clone())).await;
        outcomes.insert(device, outcome.map_err(|error| causes(&error)));
    }
    outcomes
}

// === impl MpsClients ===

impl MpsClients {
    /// A handle for the daemons in the configured folders.
    pub fn new(paths: &HostPaths, settings: &MpsSettings) -> Self {
        Self(Arc::new(Env::new(paths, settings)))
    }

    /// Makes the daemon of a device destroy the contexts of these client processes, one after the other, within the
    /// limit. The processes continue without the device. Without this, killing a client during its work can end
    /// the programs of other clients. A process whose id now belongs to another container is skipped.
    ///
    /// # Errors
    ///
    /// Fails if the daemon refuses, has no such client, or does not answer. The other clients are terminated all the
    /// same, and the error is that of the first failure. If the time limit is reached, the error names only the limit.
    pub async fn terminate(
        &self,
        device: &DeviceId,
        host: &Host,
        clients: &[&GpuProcess],
        limit: Duration,
    ) -> Result<(), String> {
        if clients.is_empty() {
            return Ok(());
        }
        let program = self.0.program().map_err(|error| causes(&error))?;
        let (folder, answer_deadline) =
            (self.0.folders.daemon_folder(device), self.0.settings.answer_deadline);
        let terminate_all = async {
            let mut outcome = Ok(());
            for client in clients {
                let container = host.container_of(client.pid).ok().flatten();
                if container.as_ref() != Some(&client.container) {
                    continue;
                }
                if let Err(error) = program.terminate(&folder, client.pid, answer_deadline).await {
                    outcome = outcome.and(Err(causes(&error)));
                }
            }
            outcome
        };
        let timeout_error = |_| Err(format!("not all are terminated within {limit:?}"));
        deadline::timeout(limit, terminate_all).await.unwrap_or_else(timeout_error)
    }
}
