//! Device owners by pod and container, from the kubelet's pod resources API.
//!
//! The kubelet throttles callers, so an answer is cached for a while. Without an answer, metrics lack the labels of
//! pods. The agent does not call during an allocation ([`SharedLedger::wait_for_checkpoint`]).

pub mod client;
mod discrepancies;

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

pub use client::{ListError, allocatable_ids, dra_drivers, holders};
pub(crate) use discrepancies::release_delay;

use self::discrepancies::{Discrepancies, HeldId, OmittedIds};
use crate::{HeldIds, ledger::SharedLedger};

/// Holders of devices in the kubelet's last answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Result of the last call; `None` before the first.
    pub last_result: Option<Result<(), String>>,
    /// Containers that hold each device, or a replica of it.
    pub by_device: HoldersByDevice,
    /// Ids that this kubelet once listed and now omits, with the time of the first omission. Filled only if the kubelet
    /// reads no device list of the agent, so that it cannot be made to write a new checkpoint.
    released: OmittedIds,
}

/// Containers that hold each device.
pub type HoldersByDevice = BTreeMap<DeviceId, BTreeSet<Holder>>;

/// A container that holds a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// Resource name.
    pub resource: String,
    /// Replica of a shared device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// Task that calls the kubelet on request, and publishes its answers.
#[derive(Debug)]
pub struct PodResourcesPoller {
    kubelet_dir: PathBuf,
    ledger: SharedLedger,
    requests: mpsc::Receiver<Request>,
    holders: watch::Sender<Arc<Holders>>,
    called_at: Option<Instant>,
    answered_at: Option<Instant>,
    discrepancies: Discrepancies,
    rewrites: watch::Sender<u64>,
}

/// Handle of the poller, with its last answer.
#[derive(Clone, Debug)]
pub struct PodResourcesCache {
    requests: mpsc::Sender<Request>,
    holders: watch::Receiver<Arc<Holders>>,
    rewrites: watch::Sender<u64>,
}

struct Request {
    review: Option<Review>,
    done: oneshot::Sender<()>,
}

/// A checkpoint to compare with the answer.
struct Review {
    recorded: HeldIds,
    /// Duration of an omission after which an id counts as released.
    delay: Duration,
}

/// Lifetime of an answer. Prometheus scrapes every 15 seconds or more; several scrapers share one.
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(5);

/// Longest time for which the last answer replaces a missing one. A kubelet that restarts moves no device; after a
/// longer absence it may have been replaced together with its pods.
const STALE_TTL: Duration = Duration::from_secs(60);

/// Capacity of the request channel.
const REQUEST_CAPACITY: usize = 16;

// === impl Holders ===

impl Holders {
    /// Holders in an answer of the kubelet.
    pub fn from_answer(by_device: HoldersByDevice) -> Self {
        Self { last_result: Some(Ok(())), by_device, released: OmittedIds::new() }
    }

    /// True if pod resources have omitted a recorded id for at least `delay`. An omission before `allocated_at`, the
    /// last Allocate of the id, does not count.
    pub fn has_released(
        &self,
        resource: &ResourceName,
        id: &str,
        allocated_at: Option<Instant>,
        now: Instant,
        delay: Duration,
    ) -> bool {
        let since = self.released.get(&(resource.to_string(), id.to_owned())).copied();
        since.is_some_and(|since| {
            allocated_at.is_none_or(|allocated_at| allocated_at < since) && now - since >= delay
        })
    }

    fn ids(&self) -> impl Iterator<Item = HeldId> {
        let holders = self
            .by_device
            .iter()
            .flat_map(|(device, holders)| holders.iter().map(move |holder| (device, holder)));
        holders.map(|(device, holder)| {
            let id = match holder.replica {
                Some(number) => ReplicaId { device: device.clone(), number }.to_string(),
                None => device.to_string(),
            };
            (holder.resource.clone(), id)
        })
    }

    /// True if a container holds this id of the resource.
    pub(crate) fn holds(&self, resource: &str, id: &str) -> bool {
        let (device, replica) = client::split_id(id);
        let is_same = |holder: &Holder| holder.resource == resource && holder.replica == replica;
        self.by_device.get(device).is_some_and(|holders| holders.iter().any(is_same))
    }
}

// === impl PodResourcesCache ===

impl PodResourcesCache {
    /// Calls the kubelet, unless the last answer is fresh. Returns once an answer or a failure is
    /// published.
    pub async fn refresh(&self) {
        self.request(None).await;
    }

    /// Refreshes, and then compares the answer with the checkpoint. If the kubelet has omitted recorded ids for a
    /// while, the poller makes it write a new checkpoint.
    pub async fn review(&self, recorded: HeldIds, check_interval: Duration) {
        self.request(Some(Review { recorded, delay: release_delay(check_interval) })).await;
    }

    async fn request(&self, review: Option<Review>) {
        let (done, wait) = oneshot::channel();
        if self.requests.send(Request { review, done }).await.is_ok() {
            // If the poller ends, the last answer stays.
            let _ = wait.await;
        }
    }

    /// Counter of requests for a new checkpoint. The kubelet writes one when a plugin sends its device list.
    pub fn rewrite_requests(&self) -> watch::Receiver<u64> {
        self.rewrites.subscribe()
    }

    /// Holders in the kubelet's last answer.
    pub fn holders(&self) -> watch::Receiver<Arc<Holders>> {
        self.holders.clone()
    }
}

// === impl PodResourcesPoller ===

impl PodResourcesPoller {
    /// Creates a poller of the kubelet in this folder, and its handle.
    pub fn new(kubelet_dir: &Path, ledger: SharedLedger) -> (Self, PodResourcesCache) {
        let (sender, requests) = mpsc::channel(REQUEST_CAPACITY);
        let (holders, latest_holders) = watch::channel(Arc::default());
        let rewrites = watch::Sender::new(0);
        let poller = Self {
            kubelet_dir: kubelet_dir.to_owned(),
            ledger,
            requests,
            holders,
            called_at: None,
            answered_at: None,
            discrepancies: Discrepancies::default(),
            rewrites: rewrites.clone(),
        };
        (poller, PodResourcesCache { requests: sender, holders: latest_holders, rewrites })
    }

    /// Serves requests until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let request = tokio::select! {
                () = stop.cancelled() => return,
                request = self.requests.recv() => request,
            };
            let Some(Request { review, done }) = request else { return stop.cancelled().await };
            if self.called_at.is_none_or(|called_at| called_at.elapsed() >= CACHE_TTL) {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.ledger.wait_for_checkpoint() => {}
                }
                self.poll().await;
            }
            if let Some(review) = review {
                self.review(&review);
            }
            // The caller, such as a scrape, may have been cancelled.
            let _ = done.send(());
        }
    }

    async fn poll(&mut self) {
        let answer = client::pods(&self.kubelet_dir).await;
        self.called_at = Some(Instant::now());
        let holders = match answer {
            Ok(pods) => {
                self.answered_at = self.called_at;
                let holders = Holders::from_answer(client::holders_by_device(pods));
                self.discrepancies.record_answer(client::identity(&self.kubelet_dir), &holders);
                Holders { released: self.holders.borrow().released.clone(), ..holders }
            }
            Err(error) => self.keep_last_answer(causes(&error)),
        };
        self.holders.send_replace(Arc::new(holders));
    }

    /// Compares the checkpoint with the last answer.
    fn review(&mut self, review: &Review) {
        let mut holders = Holders::clone(&self.holders.borrow());
        if !matches!(holders.last_result, Some(Ok(()))) {
            return self.discrepancies.clear();
        }
        let is_due =
            self.discrepancies.update(&review.recorded, &holders, Instant::now(), review.delay);
        // Each `ListAndWatch` stream that the kubelet reads has a receiver.
        let is_read = self.rewrites.receiver_count() > 0;
        if is_due && is_read {
            tracing::debug!(
                "kubelet checkpoint has ids that pod resources omit: device lists are sent again"
            );
            self.rewrites.send_modify(|count| *count += 1);
        }
        holders.released = if is_read { OmittedIds::new() } else { self.discrepancies.released() };
        self.holders.send_if_modified(|published| {
            let is_changed = published.released != holders.released;
            *published = Arc::new(holders);
            is_changed
        });
    }

    /// Holders to publish after a failed call.
    fn keep_last_answer(&self, error: String) -> Holders {
        let published = self.holders.borrow().clone();
        if published.last_result.as_ref().is_none_or(Result::is_ok) {
            tracing::warn!(error, "pod resources not available: metrics lack pod labels");
        }
        let is_fresh =
            self.answered_at.is_some_and(|answered_at| answered_at.elapsed() < STALE_TTL);
        let by_device = if is_fresh { published.by_device.clone() } else { HoldersByDevice::new() };
        Holders { last_result: Some(Err(error)), by_device, released: OmittedIds::new() }
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
        /// Holders with one id that the kubelet has omitted since then.
        pub(crate) fn with_released(resource: &ResourceName, id: &str, since: Instant) -> Self {
            let released = [((resource.to_string(), id.to_owned()), since)].into();
            Self { released, ..Self::default() }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_answer_of_an_absent_kubelet_is_kept_for_a_minute() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut poller, cache) = PodResourcesPoller::new(folder.path(), SharedLedger::default());
        let holder = holder();
        let held = HoldersByDevice::from([("GPU-a".parse().expect("valid"), [holder].into())]);
        poller.holders.send_replace(Arc::new(Holders::from_answer(held.clone())));
        poller.answered_at = Some(Instant::now());
        poller.poll().await;
        let holders = cache.holders().borrow().clone();
        let error = holders.last_result.clone().expect("a result").expect_err("no kubelet");
        assert!(error.contains("pod-resources/kubelet.sock"), "{error}");
        assert_eq!(holders.by_device, held);
        tokio::time::advance(STALE_TTL).await;
        poller.poll().await;
        assert!(cache.holders().borrow().by_device.is_empty());
    }
}
