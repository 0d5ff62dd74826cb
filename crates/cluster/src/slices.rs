//! Publication of a driver's ResourceSlices on this node.
//!
//! ```text
//!            list              nothing desired: published slices are removed
//!   off ────────────> watching ───────────────────────────────────────────────> off
//!    ^  desired        │  ^
//!    │                 │  └── changed by others: restored, after growing pauses
//!    │  failed: retry  │  └── new desired slices: published after 100 ms, together
//!    └── after a pause ┘  └── conflict, or the watch is too old: list again
//! ```
//!
//! Names, generations and order of writes follow `resourceslice.Controller`, the Go drivers'
//! helper, because the scheduler was written for it.

mod cache;
mod content;
mod dropped_fields;
mod layout;
mod limits;
mod observations;
mod plan;
mod reconcile;
mod repair_backoff;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_config::DriverName;
use windlass_host::{or_pending, watch::changed};

use self::{
    cache::{CacheEvent, SliceCache},
    reconcile::{NextStep, SliceReconciler},
};
pub use self::{
    content::SliceContent,
    dropped_fields::DroppedFields,
    limits::{InvalidField, check_device, check_pool, is_qualified_name},
};
use super::{Client, ClusterError, request_backoff::RequestBackoff};

/// Desired slices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredSlices {
    /// Slices of each pool, in order.
    pub pools: BTreeMap<String, Vec<SliceContent>>,
    /// Pools whose devices are not known yet: their published slices are unchanged.
    pub unknown_pools: BTreeSet<String>,
    /// Devices that the driver does not publish.
    pub omitted: Vec<OmittedDevice>,
}

/// A device that is not published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OmittedDevice {
    /// Pool name.
    pub pool: String,
    /// Device name.
    pub device: String,
    /// Reason.
    pub reason: String,
}

/// State of the publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishState {
    /// Published pools.
    pub pools: BTreeMap<String, PublishedPool>,
    /// Reason why the desired slices are not published.
    pub error: Option<String>,
    /// Number of failures and refusals.
    pub error_count: u64,
    /// Devices that are not published although their pool is.
    pub omitted: Vec<OmittedDevice>,
    /// Fields that the API server drops.
    pub dropped_fields: BTreeSet<DroppedFields>,
}

/// A published pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedPool {
    /// Grows when more than one slice changes.
    pub generation: i64,
    /// Number of slices.
    pub slices: usize,
    /// Number of devices in the slices.
    pub devices: usize,
}

/// Publishes the desired slices of a driver on this node; `None` publishes nothing. Returns the state of the
/// publication, and its task, which ends at `stop`.
///
/// # Flow
///
/// Slices are listed and watched. Differences from the desired slices are deleted, updated and created, in
/// this order. A starting kubelet deletes all slices of its node; they are published again.
///
/// # Guarantees
///
/// The task opens its first connection when slices are desired. Unchanged slices are not written. A refusal or a
/// dropped field affects only the devices concerned. The slices stay published when the task stops: the next
/// agent continues with them.
///
/// # Assumptions
///
/// Another writer may repeat a change each time that it is undone. The pause before each restoration grows, which
/// limits the rate of writes.
pub fn publish(
    client: Client,
    driver: DriverName,
    desired: watch::Receiver<Option<Arc<DesiredSlices>>>,
    stop: CancellationToken,
) -> (watch::Receiver<Arc<PublishState>>, impl Future<Output = ()> + Send) {
    let (state_sender, receiver) = watch::channel(Arc::default());
    let backoff = RequestBackoff::new("resource slices", &client);
    let reconciler = SliceReconciler::new(&client, &driver, state_sender);
    let publisher =
        Publisher { client, driver, desired, backoff, reconciler, may_be_published: false };
    let task = async move {
        stop.run_until_cancelled(Box::pin(publisher.run())).await;
    };
    (receiver, task)
}

struct Publisher {
    client: Client,
    driver: DriverName,
    desired: watch::Receiver<Option<Arc<DesiredSlices>>>,
    backoff: RequestBackoff,
    reconciler: SliceReconciler,
    /// True if published slices may exist, which must be removed once nothing is desired.
    may_be_published: bool,
}

/// Reason to stop using a list of the published slices.
enum ListEnd {
    /// Nothing is desired or published.
    Idle,
    /// The list is outdated; slices are listed again after this pause.
    Stale(Duration),
}

/// Delay of a publication. Changes within this delay are published together: a new MIG layout causes many changes.
const PUBLISH_DELAY: Duration = Duration::from_millis(100);

// === impl Publisher ===

impl Publisher {
    async fn run(mut self) {
        loop {
            if self.desired.borrow_and_update().is_none() && !self.may_be_published {
                changed(&mut self.desired).await;
                continue;
            }
            self.may_be_published = true;
            match self.publish_over_connection().await {
                Ok(()) => self.may_be_published = false,
                Err(error) => {
                    let delay = self.backoff.record_failure(&error);
                    self.reconciler.report_failure(&error);
                    let is_missing = matches!(error, ClusterError::NoSuchApi(_));
                    let delay = if is_missing { self.client.timeouts().retry_max } else { delay };
                    sleep(delay).await;
                }
            }
        }
    }

    /// Publishes the desired slices over one connection, until it fails or nothing is desired.
    async fn publish_over_connection(&mut self) -> Result<(), ClusterError> {
        let connection = self.client.connect().await?;
        self.reconciler.reset_observations();
        loop {
            let mut cache = SliceCache::list(&self.client, &connection, &self.driver).await?;
            match self.reconcile_until_stale(&mut cache).await? {
                ListEnd::Idle => return Ok(()),
                ListEnd::Stale(delay) => sleep(delay).await,
            }
        }
    }

    /// Reconciles after each change of the desired or the published slices, until the list is
    /// outdated or nothing is desired.
    async fn reconcile_until_stale(
        &mut self,
        cache: &mut SliceCache<'_>,
    ) -> Result<ListEnd, ClusterError> {
        let mut due = Some(Instant::now());
        loop {
            tokio::select! {
                event = cache.next() => match event? {
                    CacheEvent::Changed => drop(due.get_or_insert(Instant::now() + PUBLISH_DELAY)),
                    CacheEvent::None => {}
                    CacheEvent::Expired => {
                        return Ok(ListEnd::Stale(self.client.timeouts().retry_min));
                    }
                },
                () = changed(&mut self.desired) => {
                    let next_publish = Instant::now() + PUBLISH_DELAY;
                    due = Some(due.map_or(next_publish, |due| due.min(next_publish)));
                }
                () = or_pending(due.map(sleep_until)) => {
                    let desired = self.desired.borrow_and_update().clone();
                    self.reconciler.find_layout(desired.as_deref(), cache.connection).await?;
                    due = match self.reconciler.reconcile(desired.as_deref(), cache).await? {
                        NextStep::Done => None,
                        NextStep::Wait(retry_at) => Some(retry_at),
                        NextStep::ListAgain(delay) => return Ok(ListEnd::Stale(delay)),
                    };
                    if due.is_none() {
                        self.backoff.record_success();
                    }
                    if due.is_none() && desired.is_none() {
                        return Ok(ListEnd::Idle);
                    }
                }
            }
        }
    }
}
