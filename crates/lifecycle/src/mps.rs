//! MPS: one control daemon per shared GPU, started, supervised, restarted and stopped by the agent.
//!
//! ```text
//!   reconciler ── wants: device -> replicas ──> Mps ──> one task per device ──> nvidia-cuda-mps-control
//!      ^                                     │
//!      └── states: device -> MpsState <──────┘      a device whose daemon is not ready is not handed out
//! ```
//!
//! One daemon per GPU and not per resource: a GPU or a daemon that fails takes no other along. A
//! program has one daemon, so a container can use MPS on one device only.
//!
//! Daemons outlive the agent, since the programs on a GPU die with its daemon. The next agent takes
//! over what it finds, and stops what is no longer wanted; [`stop_all`] is for when there is no next
//! one. The alternative, daemons that end with the agent, would make every restart of the agent an
//! outage of every pod that shares a GPU.
//!
//! What MPS limits is a process: a container that runs two has twice the share. What it shares is the
//! host's `/dev/shm`, or the folder that is given in its place (`MpsSettings::shm_dir`): client and
//! server talk through files there. NVIDIA's plugin mounts a tmpfs for it, for which an agent needs
//! the right to mount and a mount that reaches the host.

mod control;
mod daemon;
mod ground;
mod mode;
mod place;
mod process;
mod program;
mod state;
mod want;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::{
    Notify,
    mpsc::{self, UnboundedReceiver, UnboundedSender},
    watch,
};
use tokio_util::sync::CancellationToken;
use windlass_config::{MpsSettings, Places};
use windlass_core::device::DeviceId;
use windlass_host::{causes, keyed::Tasks, watch::publish};

pub use self::want::is_older_than_volta;
use self::{daemon::Daemon, ground::Ground};
pub use self::{
    place::MpsPlaces,
    want::{Mig, MpsWant},
};

/// What is wanted, by device. A device that is in it no longer has its daemon stopped.
pub type MpsWants = BTreeMap<DeviceId, MpsWant>;

/// Which devices need a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsDemand {
    /// Those that are shared.
    pub wanted: MpsWants,
    /// Those that are shared no longer, but of which containers still hold replicas: nothing is
    /// started for them, and nothing is stopped.
    pub kept: BTreeSet<DeviceId>,
}

/// How each wanted daemon fares.
pub type MpsStates = BTreeMap<DeviceId, MpsState>;

/// How a device's daemon fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsState {
    /// It is being started.
    Starting,
    /// It answers, and its limits are set.
    Ready,
    /// It does not run, and why; it is tried again.
    Failed(String),
}

/// Runs the daemons.
#[derive(Debug)]
pub struct Mps {
    ground: Arc<Ground>,
    wants: watch::Receiver<Arc<MpsDemand>>,
    states: watch::Sender<Arc<MpsStates>>,
    news: Arc<Notify>,
    /// By device, what its task is told to want.
    running: BTreeMap<DeviceId, watch::Sender<Option<MpsWant>>>,
    tasks: Tasks<DeviceId, ()>,
    reports: (UnboundedSender<Report>, UnboundedReceiver<Report>),
}

/// What a task says about its daemon.
type Report = (DeviceId, MpsState);

// === impl MpsState ===

impl MpsState {
    /// Why a device cannot be handed out; `None` when it can.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::Starting => Some("MPS daemon: starting".to_owned()),
            Self::Failed(why) => Some(format!("MPS daemon: {why}")),
        }
    }
}

// === impl Mps ===

impl Mps {
    /// Builds the part; nothing is started yet. `news` is notified of each change of a state, and of each
    /// daemon that is gone.
    pub fn new(
        places: &Places,
        settings: &MpsSettings,
        wants: watch::Receiver<Arc<MpsDemand>>,
        news: &Arc<Notify>,
    ) -> (Self, watch::Receiver<Arc<MpsStates>>) {
        let (states, receiver) = watch::channel(Arc::default());
        let mps = Self {
            ground: Arc::new(Ground::new(places, settings)),
            wants,
            states,
            news: news.clone(),
            running: BTreeMap::new(),
            tasks: Tasks::default(),
            reports: mpsc::unbounded_channel(),
        };
        (mps, receiver)
    }

    /// Runs the daemons until stopped, and then leaves them as they are. The value that `wants` has
    /// at the start is acted upon only once it has changed: before the first look at the node nothing
    /// is known to be unwanted.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                // Nothing is started any more once it is to end.
                biased;
                () = stop.cancelled() => break,
                Ok(()) = self.wants.changed() => self.follow(&stop),
                Some((device, state)) = self.reports.1.recv() => self.publish(device, state),
                Some((device, ())) = self.tasks.next() => {
                    self.running.remove(&device);
                    self.follow(&stop);
                    // What waited for the end of a daemon need wait no longer.
                    self.news.notify_one();
                }
            }
        }
        while self.tasks.next().await.is_some() {}
    }

    /// Tells each task what is wanted now, and starts those that are missing.
    fn follow(&mut self, stop: &CancellationToken) {
        let demand = self.wants.borrow_and_update().clone();
        let wants = &demand.wanted;
        for (device, want) in wants {
            self.tell(device, Some(want), stop);
        }
        let known = self.running.keys().cloned().chain(self.ground.places.left());
        for device in known.collect::<BTreeSet<_>>() {
            if !wants.contains_key(&device) && !demand.kept.contains(&device) {
                self.tell(&device, None, stop);
            }
        }
        let known = self.states.borrow().clone();
        let state = |device| known.get(device).cloned().unwrap_or(MpsState::Starting);
        self.send(wants.keys().map(|device| (device.clone(), state(device))).collect());
    }

    fn tell(&mut self, device: &DeviceId, want: Option<&MpsWant>, stop: &CancellationToken) {
        if let Some(task) = self.running.get(device) {
            publish(task, want.cloned());
            return;
        }
        let (sender, receiver) = watch::channel(want.cloned());
        let daemon = Daemon::new(device.clone(), &self.ground, receiver, self.reports.0.clone());
        self.tasks.begin(device.clone(), daemon.run(stop.clone()));
        self.running.insert(device.clone(), sender);
    }

    fn publish(&mut self, device: DeviceId, state: MpsState) {
        // A daemon that is being stopped is no one's concern any more.
        if self.wants.borrow().wanted.contains_key(&device) {
            let mut states = MpsStates::clone(&self.states.borrow());
            states.insert(device, state);
            self.send(states);
        }
    }

    /// Publishes if it says something new.
    fn send(&self, states: MpsStates) {
        if publish(&self.states, Arc::new(states)) {
            self.news.notify_one();
        }
    }
}

/// Stops every daemon that an agent has left running, as before Windlass is removed from a node. An
/// agent that still runs would start them again. Gives what came of it, by device.
pub async fn stop_all(
    places: &Places,
    settings: &MpsSettings,
) -> BTreeMap<DeviceId, Result<(), String>> {
    let ground = Arc::new(Ground::new(places, settings));
    let mut outcomes = BTreeMap::new();
    for device in ground.places.left() {
        let stopped = ground.stop(&mut ground.hold(device.clone())).await;
        outcomes.insert(device, stopped.map_err(|error| causes(&error)));
    }
    outcomes
}
