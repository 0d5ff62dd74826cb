//! Who holds which device, asked from the kubelet's pod resources API when somebody wants to know.
//!
//! The kubelet turns callers away that ask too often, so an answer serves for a while. One that cannot
//! be had costs the labels of pods, not the metrics. It is not asked in the midst of an allocation
//! ([`LedgerDesk::lull`]).

mod ask;
mod owners;
mod record;
mod sight;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_core::{device::DeviceId, resource::ResourceName};

pub(crate) use ask::drivers;
pub use ask::{AskError, allocatable, ask};
pub use owners::{Owner, Owners, owners};
pub(crate) use record::{ByPod, RecordError, by_pod, checkpoint};
pub(crate) use sight::{Glance, Sight, patience};

use crate::{causes, ledger::LedgerDesk, offer::token};

/// What is known of the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// Whether the kubelet answered when it was last asked; `None` before it was asked.
    pub(crate) answered: Option<Result<(), String>>,
    /// The containers that hold a device, or a replica of it.
    pub(crate) by_device: ByDevice,
    /// How many pods the kubelet told of, with devices and without.
    pub(crate) pods: usize,
}

/// The containers that hold each device.
pub type ByDevice = BTreeMap<DeviceId, BTreeSet<Holder>>;

/// A container with a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The resource that the container asked for.
    pub resource: String,
    /// Which replica of a shared device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container in the pod.
    pub container: String,
}

/// The one who asks the kubelet.
pub(crate) struct Inquirer {
    kubelet_dir: PathBuf,
    ledger: LedgerDesk,
    requests: mpsc::Receiver<oneshot::Sender<()>>,
    publish: watch::Sender<Arc<Holders>>,
    asked: Option<Instant>,
    answered: Option<Instant>,
}

/// How others have the kubelet asked.
#[derive(Clone, Debug)]
pub(crate) struct HoldersDesk {
    requests: mpsc::Sender<oneshot::Sender<()>>,
    holders: watch::Receiver<Arc<Holders>>,
}

/// How long an answer serves. Prometheus asks every 15 seconds or more; several scrapers share one.
pub(crate) const SERVES: Duration = Duration::from_secs(5);

/// For how long the last answer stands in for one that cannot be had: a kubelet that restarts moves no
/// device, one that stays away may have been replaced with its pods.
const STANDS_IN: Duration = Duration::from_secs(60);

/// Scrapes that wait for the same answer.
const WAITING: usize = 16;

/// Makes the one who asks, and the way to have it asked.
pub(crate) fn inquiry(kubelet_dir: &Path, ledger: LedgerDesk) -> (Inquirer, HoldersDesk) {
    let kubelet_dir = kubelet_dir.to_owned();
    let (ask, requests) = mpsc::channel(WAITING);
    let (publish, holders) = watch::channel(Arc::default());
    let inquirer = Inquirer { kubelet_dir, ledger, requests, publish, asked: None, answered: None };
    (inquirer, HoldersDesk { requests: ask, holders })
}

// === impl Holders ===

impl Holders {
    /// Whether somebody has the device, or a replica of it; `None` if the kubelet does not answer.
    pub(crate) fn tells_of(&self, device: &DeviceId) -> Option<bool> {
        let answers = matches!(self.answered, Some(Ok(())));
        answers.then(|| self.by_device.contains_key(device))
    }

    /// Whether somebody has a token of a resource; `None` if the kubelet does not answer.
    pub(crate) fn tells_of_tokens(&self, resource: &ResourceName) -> Option<bool> {
        let is_it = |holder: &Holder| holder.resource == resource.as_str();
        let mut tokens = self.by_device.iter().filter(|(id, _)| token(id.as_str()).is_some());
        let answers = matches!(self.answered, Some(Ok(())));
        answers.then(|| tokens.any(|(_, holders)| holders.iter().any(is_it)))
    }

    /// Whether a container holds that id of that resource.
    pub(crate) fn holds(&self, resource: &str, id: &str) -> bool {
        let (device, replica) = ask::parts_of(id);
        let is_it = |holder: &Holder| holder.resource == resource && holder.replica == replica;
        self.by_device.get(device).is_some_and(|holders| holders.iter().any(is_it))
    }
}

// === impl HoldersDesk ===

impl HoldersDesk {
    /// Has the kubelet asked, unless it was a moment ago; returns when the answer is published, or is
    /// not to be had.
    pub(crate) async fn refresh(&self) {
        let (done, wait) = oneshot::channel();
        if self.requests.send(done).await.is_ok() {
            // An inquirer that ends leaves what was known.
            let _ = wait.await;
        }
    }

    pub(crate) fn holders(&self) -> watch::Receiver<Arc<Holders>> {
        self.holders.clone()
    }
}

// === impl Inquirer ===

impl Inquirer {
    /// Asks the kubelet when wanted, until stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let request = tokio::select! {
                () = stop.cancelled() => return,
                request = self.requests.recv() => request,
            };
            let Some(done) = request else { return stop.cancelled().await };
            if self.asked.is_none_or(|asked| asked.elapsed() >= SERVES) {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.ledger.lull() => {}
                }
                self.ask().await;
            }
            // A scrape that was given up waits no longer.
            let _ = done.send(());
        }
    }

    async fn ask(&mut self) {
        let answer = ask::pods(&self.kubelet_dir).await;
        self.asked = Some(Instant::now());
        let holders = match answer {
            Ok(pods) => {
                self.answered = self.asked;
                let count = pods.len();
                Holders { answered: Some(Ok(())), by_device: ask::by_device(pods), pods: count }
            }
            Err(error) => self.stand_in(causes(&error)),
        };
        self.publish.send_replace(Arc::new(holders));
    }

    /// What is told in place of an answer.
    fn stand_in(&self, why: String) -> Holders {
        let known = self.publish.borrow().clone();
        if known.answered.as_ref().is_none_or(Result::is_ok) {
            tracing::warn!(why, "the kubelet does not tell who holds what");
        }
        let recent = self.answered.is_some_and(|answered| answered.elapsed() < STANDS_IN);
        let by_device = if recent { known.by_device.clone() } else { ByDevice::new() };
        Holders { answered: Some(Err(why)), by_device, pods: 0 }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A container with a whole GPU.
    pub(crate) fn holder() -> Holder {
        Holder {
            resource: "nvidia.com/gpu".to_owned(),
            replica: None,
            namespace: "default".to_owned(),
            pod: "p".to_owned(),
            container: "main".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_is_away_is_said_and_what_it_told_stands_in_for_a_minute() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut inquirer, desk) = inquiry(folder.path(), LedgerDesk::default());
        let holder = holder();
        let known = ByDevice::from([("GPU-a".parse().expect("valid"), [holder].into())]);
        let told = Holders { answered: Some(Ok(())), by_device: known.clone(), pods: 1 };
        inquirer.publish.send_replace(Arc::new(told));
        inquirer.answered = Some(Instant::now());
        inquirer.ask().await;
        let holders = desk.holders().borrow().clone();
        let why = holders.answered.clone().expect("asked").expect_err("away");
        assert!(why.contains("pod-resources/kubelet.sock"), "{why}");
        assert_eq!(holders.by_device, known);
        tokio::time::advance(STANDS_IN).await;
        inquirer.ask().await;
        assert!(desk.holders().borrow().by_device.is_empty());
    }
}
