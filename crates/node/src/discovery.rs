//! Finding devices: each source watches one family and publishes what it knows.

mod log;
mod nics;
mod nvidia;
mod policy;

use std::{pin::Pin, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_core::{device::Device, inventory::SourceState};

pub(crate) use nvidia::PROFILE;

use self::policy::PolicyWatch;
use crate::{
    clock::Clock,
    config::{Config, Policy},
    host::Host,
    telemetry::TelemetryReceiver,
};

/// What a source knows at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    /// How the source fares.
    pub state: SourceState,
    /// The profile, where the source is answered by a simulation.
    pub simulated: Option<String>,
    /// Its devices, those that failed or vanished included.
    pub devices: Vec<Device>,
}

/// A source that was built and waits to be run.
pub(crate) struct Source {
    /// Its name in the inventory, in logs and in `windlass devices`.
    pub(crate) name: &'static str,
    /// What it publishes.
    pub(crate) snapshots: watch::Receiver<SourceSnapshot>,
    /// What its devices measure, for a source whose devices measure something.
    pub(crate) telemetry: Option<TelemetryReceiver>,
    /// Its life; ends when the token is cancelled.
    pub(crate) run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Writes down what must outlive the agent, likewise; not for a look that changes nothing.
    pub(crate) keep: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Where a source publishes: the newest snapshot, and a notice that there is one.
#[derive(Debug)]
pub(crate) struct Publisher {
    snapshots: watch::Sender<SourceSnapshot>,
    news: Arc<Notify>,
}

/// Builds every source; nothing is read from the host yet. A new health policy takes effect while
/// they run. `news` is notified of each snapshot.
pub(crate) fn sources(
    config: &Config,
    policy: &watch::Receiver<Arc<Policy>>,
    clock: Clock,
    news: &Arc<Notify>,
    stop: &CancellationToken,
) -> Vec<Source> {
    let host = Host::new(&config.host_root, &config.host_root_on_node);
    let nvidia = nvidia::Nvidia::new(config, PolicyWatch::new(policy.clone()), host.clone(), clock);
    let nics = nics::Nics::new(host, clock);
    let (to_nvidia, nvidia_snapshots) = Publisher::new(news);
    let (to_nics, nics_snapshots) = Publisher::new(news);
    vec![
        Source {
            name: "nvidia",
            snapshots: nvidia_snapshots,
            keep: Some(Box::pin(nvidia.keep(stop.clone()))),
            telemetry: Some(nvidia.telemetry()),
            run: Box::pin(nvidia.run(to_nvidia, stop.clone())),
        },
        Source {
            name: "nics",
            snapshots: nics_snapshots,
            keep: None,
            telemetry: None,
            run: Box::pin(nics.run(PolicyWatch::new(policy.clone()), to_nics, stop.clone())),
        },
    ]
}

// === impl SourceSnapshot ===

impl SourceSnapshot {
    fn starting() -> Self {
        Self { state: SourceState::Starting, simulated: None, devices: Vec::new() }
    }
}

// === impl Publisher ===

impl Publisher {
    fn new(news: &Arc<Notify>) -> (Self, watch::Receiver<SourceSnapshot>) {
        let (snapshots, receiver) = watch::channel(SourceSnapshot::starting());
        (Self { snapshots, news: news.clone() }, receiver)
    }

    /// Publishes that the source does not answer; what it knew stays.
    fn publish_late(&self, why: String) {
        let known = self.snapshots.borrow().clone();
        self.publish(SourceSnapshot { state: SourceState::Failing(why), ..known });
    }

    /// Publishes a snapshot if it says something new.
    fn publish(&self, snapshot: SourceSnapshot) {
        let news = self.snapshots.send_if_modified(|known| {
            let news = *known != snapshot;
            *known = snapshot;
            news
        });
        if news {
            self.news.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
