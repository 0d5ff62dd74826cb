//! MPS: one control daemon per shared GPU, started, supervised, restarted and stopped by the agent.
//!
//! ```text
//!   keeper ── wants: device -> replicas ──> Mps ──> one task per device ──> nvidia-cuda-mps-control
//!      ^                                     │
//!      └── states: device -> MpsState <──────┘      a device whose daemon is not ready is not handed out
//! ```
//!
//! One daemon per GPU and not per resource: a GPU or a daemon that fails takes no other along.

mod place;
mod want;

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;

pub use self::{
    place::{MpsGrant, MpsPlaces},
    want::{Mig, MpsWant},
};
use crate::config::Config;

/// What is wanted, by device. A device that is in it no longer has its daemon stopped.
pub type MpsWants = BTreeMap<DeviceId, MpsWant>;

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
    wants: watch::Receiver<Arc<MpsWants>>,
    states: watch::Sender<Arc<MpsStates>>,
    news: Arc<Notify>,
}

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
    /// Builds the part; nothing is started yet. `news` is notified of each change of a state.
    pub fn new(
        _config: &Config,
        wants: watch::Receiver<Arc<MpsWants>>,
        news: &Arc<Notify>,
    ) -> (Self, watch::Receiver<Arc<MpsStates>>) {
        let (states, receiver) = watch::channel(Arc::default());
        (Self { wants, states, news: news.clone() }, receiver)
    }

    /// Runs the daemons until stopped. The value that `wants` has at the start is acted upon only
    /// once it has changed: before the first look at the node nothing is known to be unwanted.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.wants.changed() => {
                    let wants = self.wants.borrow_and_update().clone();
                    let failed = MpsState::Failed("not started".to_owned());
                    let states = wants.keys().map(|id| (id.clone(), failed.clone())).collect();
                    self.states.send_replace(Arc::new(states));
                    self.news.notify_one();
                }
            }
        }
    }
}
