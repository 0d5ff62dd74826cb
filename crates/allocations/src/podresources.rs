//! Who holds which device, asked from the kubelet's pod resources API when somebody wants to know.
//!
//! The kubelet turns callers away that ask too often, so an answer serves for a while. One that cannot
//! be had costs the labels of pods, not the metrics. It is not asked in the midst of an allocation
//! ([`LedgerDesk::lull`]).

pub mod ask;
mod doubts;

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
use windlass_core::{device::DeviceId, replica::ReplicaId, resource::ResourceName};
use windlass_host::causes;

pub use ask::drivers;
pub use ask::{AskError, allocatable, ask};
pub(crate) use doubts::patience;

use self::doubts::{Doubts, HeldId, Untold};
use crate::{Held, ledger::LedgerDesk};

/// What is known of the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Whether the kubelet answered when it was last asked; `None` before it was asked.
    pub answered: Option<Result<(), String>>,
    /// The containers that hold a device, or a replica of it.
    pub by_device: ByDevice,
    /// What the kubelet told of before and tells of no longer, and since when: only where it cannot be made to write
    /// its record anew.
    let_go: Untold,
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
#[derive(Debug)]
pub struct Inquirer {
    kubelet_dir: PathBuf,
    ledger: LedgerDesk,
    requests: mpsc::Receiver<Request>,
    publish: watch::Sender<Arc<Holders>>,
    asked: Option<Instant>,
    answered: Option<Instant>,
    doubts: Doubts,
    rewrites: watch::Sender<u64>,
}

/// How others have the kubelet asked.
#[derive(Clone, Debug)]
pub struct HoldersDesk {
    requests: mpsc::Sender<Request>,
    holders: watch::Receiver<Arc<Holders>>,
    rewrites: watch::Sender<u64>,
}

/// Somebody wants to know.
struct Request {
    review: Option<Review>,
    done: oneshot::Sender<()>,
}

/// What the kubelet's record has, and for how long it must not be told of.
struct Review {
    recorded: Held,
    patience: Duration,
}

/// How long an answer serves. Prometheus asks every 15 seconds or more; several scrapers share one.
pub(crate) const SERVES: Duration = Duration::from_secs(5);

/// For how long the last answer stands in for one that cannot be had: a kubelet that restarts moves no
/// device, one that stays away may have been replaced with its pods.
const STANDS_IN: Duration = Duration::from_secs(60);

/// Scrapes that wait for the same answer.
const WAITING: usize = 16;

/// Makes the one who asks, and the way to have it asked.
pub fn inquiry(kubelet_dir: &Path, ledger: LedgerDesk) -> (Inquirer, HoldersDesk) {
    let kubelet_dir = kubelet_dir.to_owned();
    let (ask, requests) = mpsc::channel(WAITING);
    let (publish, holders) = watch::channel(Arc::default());
    let rewrites = watch::Sender::new(0);
    let inquirer = Inquirer {
        kubelet_dir,
        ledger,
        requests,
        publish,
        asked: None,
        answered: None,
        doubts: Doubts::default(),
        rewrites: rewrites.clone(),
    };
    (inquirer, HoldersDesk { requests: ask, holders, rewrites })
}

// === impl Holders ===

impl Holders {
    /// What a kubelet tells that answers.
    pub fn telling(by_device: ByDevice) -> Self {
        Self { answered: Some(Ok(())), by_device, let_go: Untold::new() }
    }

    /// Whether the holder of an id that the record has let go of it, as far as the kubelet has to be believed; whoever
    /// was given it later has it.
    pub fn has_let_go(
        &self,
        (resource, id): (&ResourceName, &str),
        given: Option<Instant>,
        (now, patience): (Instant, Duration),
    ) -> bool {
        let since = self.let_go.get(&(resource.to_string(), id.to_owned())).copied();
        since
            .is_some_and(|since| given.is_none_or(|given| given < since) && now - since >= patience)
    }

    /// All that it tells of.
    fn ids(&self) -> impl Iterator<Item = HeldId> {
        let each = self.by_device.iter().flat_map(|(id, all)| all.iter().map(move |it| (id, it)));
        each.map(|(device, holder)| {
            let id = match holder.replica {
                Some(number) => ReplicaId { device: device.clone(), number }.to_string(),
                None => device.to_string(),
            };
            (holder.resource.clone(), id)
        })
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
    pub async fn refresh(&self) {
        self.ask(None).await;
    }

    /// Likewise, and has the kubelet write its record anew where that has had for a while what the kubelet does not
    /// tell of.
    pub async fn review(&self, recorded: Held, look_interval: Duration) {
        self.ask(Some(Review { recorded, patience: patience(look_interval) })).await;
    }

    async fn ask(&self, review: Option<Review>) {
        let (done, wait) = oneshot::channel();
        if self.requests.send(Request { review, done }).await.is_ok() {
            // An inquirer that ends leaves what was known.
            let _ = wait.await;
        }
    }

    /// Counts how often the kubelet is to write its record, which it does when it reads a list of devices.
    pub fn rewrites(&self) -> watch::Receiver<u64> {
        self.rewrites.subscribe()
    }

    /// Who holds what, as it was last told.
    pub fn holders(&self) -> watch::Receiver<Arc<Holders>> {
        self.holders.clone()
    }
}

// === impl Inquirer ===

impl Inquirer {
    /// Asks the kubelet when wanted, until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let request = tokio::select! {
                () = stop.cancelled() => return,
                request = self.requests.recv() => request,
            };
            let Some(Request { review, done }) = request else { return stop.cancelled().await };
            if self.asked.is_none_or(|asked| asked.elapsed() >= SERVES) {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.ledger.lull() => {}
                }
                self.ask().await;
            }
            if let Some(review) = review {
                self.review(&review);
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
                let by_device = ask::by_device(pods);
                let holders = Holders::telling(by_device);
                self.doubts.told(ask::identity(&self.kubelet_dir), &holders);
                Holders { let_go: self.publish.borrow().let_go.clone(), ..holders }
            }
            Err(error) => self.stand_in(causes(&error)),
        };
        self.publish.send_replace(Arc::new(holders));
    }

    /// Compares what the record has with what the kubelet told last.
    fn review(&mut self, review: &Review) {
        let mut holders = Holders::clone(&self.publish.borrow());
        if !matches!(holders.answered, Some(Ok(()))) {
            return self.doubts.forget();
        }
        let now = (Instant::now(), review.patience);
        let is_due = self.doubts.fold(&review.recorded, &holders, now);
        // Each list that the kubelet reads is a receiver.
        let is_read = self.rewrites.receiver_count() > 0;
        if is_due && is_read {
            tracing::debug!(
                "the kubelet's record has what it tells of no longer: lists are sent again"
            );
            self.rewrites.send_modify(|count| *count += 1);
        }
        holders.let_go = if is_read { Untold::new() } else { self.doubts.let_go() };
        self.publish.send_if_modified(|known| {
            let is_news = known.let_go != holders.let_go;
            *known = Arc::new(holders);
            is_news
        });
    }

    /// What is told in place of an answer.
    fn stand_in(&self, why: String) -> Holders {
        let known = self.publish.borrow().clone();
        if known.answered.as_ref().is_none_or(Result::is_ok) {
            tracing::warn!(why, "the kubelet does not tell who holds what");
        }
        let recent = self.answered.is_some_and(|answered| answered.elapsed() < STANDS_IN);
        let by_device = if recent { known.by_device.clone() } else { ByDevice::new() };
        Holders { answered: Some(Err(why)), by_device, let_go: Untold::new() }
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

    impl Holders {
        /// What a kubelet told of before, and no longer since then.
        pub(crate) fn of_one_let_go(resource: &ResourceName, id: &str, since: Instant) -> Self {
            let let_go = [((resource.to_string(), id.to_owned()), since)].into();
            Self { let_go, ..Self::default() }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_is_away_is_said_and_what_it_told_stands_in_for_a_minute() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut inquirer, desk) = inquiry(folder.path(), LedgerDesk::default());
        let holder = holder();
        let known = ByDevice::from([("GPU-a".parse().expect("valid"), [holder].into())]);
        inquirer.publish.send_replace(Arc::new(Holders::telling(known.clone())));
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
