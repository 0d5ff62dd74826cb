//! ResourceSlices: what a driver has on this node, kept published.
//!
//! ```text
//!            list              nothing wanted: what is there is removed
//!   off ────────────> level ──────────────────────────────────────────> off
//!    ^  wanted         │  ^
//!    │                 │  └── watch: what others changed is put back, in a fight ever later
//!    │  failed: again  │  └── another wish: a burst of changes is one
//!    └── after a pause ┘  └── conflict, or the watch is too old: list again
//! ```
//!
//! The rules of names, generations and order are those of the helper that drivers in Go have, since the
//! scheduler was made with it in mind.

mod content;
mod layout;
mod lessons;
mod level;
mod limits;
mod loss;
mod patience;
mod plan;
mod sight;
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
use windlass_host::watch::changed;

pub use self::{
    content::Content,
    limits::{Misfit, check_device, check_pool, is_fact_name},
    loss::Loss,
};
use self::{
    level::{Leveller, Step},
    sight::{News, Sight},
};
use super::{Client, ClusterError, attempts::Attempts};

/// What is to be published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The slices of each pool, in order.
    pub pools: BTreeMap<String, Vec<Content>>,
    /// Pools of which nothing is known yet: what is there stays.
    pub undecided: BTreeSet<String>,
    /// What was left out beforehand.
    pub left_out: Vec<LeftOut>,
}

/// A device that is not published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// What keeps it out.
    pub reason: String,
}

/// How publishing fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishState {
    /// What is published, by pool.
    pub pools: BTreeMap<String, PublishedPool>,
    /// Why what is wanted is not published; `None` when it is.
    pub error: Option<String>,
    /// How often something failed or was refused.
    pub errors: u64,
    /// Devices that are not published, though all else of their pools is.
    pub left_out: Vec<LeftOut>,
    /// What the API server does not keep of what it is sent.
    pub lost: BTreeSet<Loss>,
}

/// What is published of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedPool {
    /// Grows when more than one slice changes.
    pub generation: i64,
    /// How many slices it has.
    pub slices: usize,
    /// How many devices are in them.
    pub devices: usize,
}

/// Keeps a driver's slices of this node as they are wanted; nothing wanted is nothing published. Gives
/// how that fares, and the task to run, which ends when stopped.
///
/// # Flow
///
/// Slices are listed and watched. What differs from what is wanted is deleted, updated and created, in
/// this order. A kubelet that starts deletes all slices of its node, so that happens of itself.
///
/// # Guarantees
///
/// While nothing is wanted, and nothing was since the start, nobody is connected to. Slices that are as they
/// should be are not written. What the API server refuses, or does not keep, costs the devices concerned
/// and no others. When the task is stopped the slices stay: the next agent finds them.
///
/// # Assumptions
///
/// A change that comes back as soon as it was undone is another's wish: undoing it takes longer each time.
pub fn publish(
    client: Client,
    driver: DriverName,
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    stop: CancellationToken,
) -> (watch::Receiver<Arc<PublishState>>, impl Future<Output = ()> + Send) {
    let (outcome, receiver) = watch::channel(Arc::default());
    let attempts = Attempts::new("resource slices", &client);
    let leveller = Leveller::new(&client, &driver, outcome);
    let publisher = Publisher { client, driver, wanted, attempts, leveller, may_be_there: false };
    let run = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = publisher.run() => {}
        }
    };
    (receiver, run)
}

struct Publisher {
    client: Client,
    driver: DriverName,
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    attempts: Attempts,
    leveller: Leveller,
    /// Whether something may be published that is to be removed when nothing is wanted.
    may_be_there: bool,
}

/// Why slices are listed again, or not.
enum Ended {
    /// Nothing is wanted, and nothing is there.
    Off,
    /// What was seen is not what is there.
    Stale(Duration),
}

/// Changes within this time are one: a GPU that is cut, or a source that answers, is many of them.
const BURST: Duration = Duration::from_millis(100);

// === impl Publisher ===

impl Publisher {
    async fn run(mut self) {
        loop {
            if self.wanted.borrow_and_update().is_none() && !self.may_be_there {
                changed(&mut self.wanted).await;
                continue;
            }
            self.may_be_there = true;
            match self.follow().await {
                Ok(()) => self.may_be_there = false,
                Err(error) => {
                    let pause = self.attempts.failed(&error);
                    self.leveller.failed(&error);
                    let is_missing = matches!(error, ClusterError::NoSuchApi { .. });
                    let pause = if is_missing { self.client.limits().retry_most } else { pause };
                    sleep(pause).await;
                }
            }
        }
    }

    /// Keeps what is published level with what is wanted over one connection, until that fails or
    /// nothing is wanted.
    async fn follow(&mut self) -> Result<(), ClusterError> {
        let connection = self.client.connect().await?;
        self.leveller.begin();
        loop {
            let mut sight = Sight::list(&self.client, &connection, &self.driver).await?;
            match self.keep(&mut sight).await? {
                Ended::Off => return Ok(()),
                Ended::Stale(pause) => sleep(pause).await,
            }
        }
    }

    async fn keep(&mut self, sight: &mut Sight<'_>) -> Result<Ended, ClusterError> {
        let mut due = Some(Instant::now());
        loop {
            tokio::select! {
                news = sight.next() => match news? {
                    News::Changed => drop(due.get_or_insert(Instant::now() + BURST)),
                    News::None => {}
                    News::Expired => return Ok(Ended::Stale(self.client.limits().retry_first)),
                },
                () = changed(&mut self.wanted) => {
                    let soon = Instant::now() + BURST;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                () = until(due) => {
                    let wanted = self.wanted.borrow_and_update().clone();
                    self.leveller.find_layout(wanted.as_deref(), sight.connection).await?;
                    due = match self.leveller.level(wanted.as_deref(), sight).await? {
                        Step::Level => None,
                        Step::Wait(until) => Some(until),
                        Step::LookAgain(pause) => return Ok(Ended::Stale(pause)),
                    };
                    if due.is_none() {
                        self.attempts.worked();
                    }
                    if due.is_none() && wanted.is_none() {
                        return Ok(Ended::Off);
                    }
                }
            }
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
