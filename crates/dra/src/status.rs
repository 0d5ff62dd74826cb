//! What the cluster is told of a claim's devices, in the claim's status: whether each is prepared, and how it
//! fares.
//!
//! ```text
//!   records, troubles, devices ──> wanted ──differs from what was written──> apply ──> written
//!                                    ^                                         │ failed: said once
//!                                    └────────────── again, after a pause ─────┘
//! ```
//!
//! While the API server does not answer all of them wait; one that it refuses waits alone.
//!
//! Nobody waits for it: a claim is prepared whether or not it can be told. What cannot be told yet is told as
//! it is by then.

mod document;
mod refused;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::ClaimRef;
use windlass_cluster::{ClaimStatuses, StatusOutcome};
use windlass_config::DriverName;
use windlass_host::{clock::Clock, state_file::Versioned};
use windlass_resources::NodeState;

use self::{
    document::{Spot, Told},
    refused::Refused,
};
use super::record::{Entry, Records};

/// Why claims are not prepared, by UID: the list of the one who prepares them, published.
#[derive(Debug, Default)]
pub(super) struct Troubles(watch::Sender<TroubleByUid>);

pub(super) type TroubleByUid = BTreeMap<String, Trouble>;

/// Why a claim is not prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// What it was to get, if it was refused before anything was begun: the record does not have it.
    pub(super) refused: Option<Entry>,
}

/// Tells the status of claims' devices.
pub(super) struct Teller {
    pub(super) driver: DriverName,
    pub(super) clock: Clock,
    pub(super) statuses: ClaimStatuses,
    pub(super) records: watch::Receiver<Versioned<Records>>,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) troubles: watch::Receiver<TroubleByUid>,
}

/// What is to be told, or was told, of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    reference: ClaimRef,
    devices: BTreeMap<Spot, Told>,
}

/// By the claim's UID.
type Claims = BTreeMap<String, Claim>;

/// What was told.
#[derive(Default)]
struct Past {
    written: Claims,
    refused: Refused,
}

/// Changes within this time are one: a claim is begun and done, a device's health follows its probe.
const BURST: Duration = Duration::from_millis(50);

// === impl Troubles ===

impl Troubles {
    /// A claim is not prepared.
    pub(super) fn note(&self, uid: &str, trouble: Trouble) {
        self.0.send_if_modified(|all| {
            let is_news = all.get(uid) != Some(&trouble);
            all.insert(uid.to_owned(), trouble);
            is_news
        });
    }

    /// Nothing keeps a claim from being prepared any more.
    pub(super) fn forget(&self, uid: &str) {
        self.0.send_if_modified(|all| all.remove(uid).is_some());
    }

    /// The list as it changes.
    pub(super) fn watch(&self) -> watch::Receiver<TroubleByUid> {
        self.0.subscribe()
    }

    /// The claims that were refused.
    pub(super) fn refused(&self) -> Vec<ClaimRef> {
        let all = self.0.borrow();
        all.values().filter_map(|it| Some(it.refused.as_ref()?.claim.clone())).collect()
    }
}

// === impl Trouble ===

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { why, refused: None }
    }
}

// === impl Teller ===

impl Teller {
    /// Tells until stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.live() => {}
        }
    }

    async fn live(mut self) {
        let (mut told, mut troubles) = (Past::default(), self.troubles.clone());
        loop {
            let wanted = self.wanted(&troubles.borrow_and_update());
            told.forget_refused(&wanted);
            let now = Instant::now();
            if let Some(uid) = told.difference(&wanted, now) {
                self.tell(uid, wanted, &mut told).await;
                continue;
            }
            tokio::select! {
                () = told.refused.due(now) => continue,
                () = windlass_host::watch::changed(&mut self.records) => {}
                () = windlass_host::watch::changed(&mut self.state) => {}
                () = windlass_host::watch::changed(&mut troubles) => {}
            }
            sleep(BURST).await;
        }
    }

    /// Tells what there is to tell of one claim, or waits before it is tried again.
    async fn tell(&mut self, uid: String, mut wanted: Claims, told: &mut Past) {
        let Past { written, refused } = told;
        let claim = wanted.remove(&uid).unwrap_or_else(|| {
            let reference = written[&uid].reference.clone();
            Claim { reference, devices: BTreeMap::new() }
        });
        let known = written.get(&uid).map(|claim| claim.devices.clone());
        let outcome = self.write(&claim, known).await;
        if matches!(outcome, StatusOutcome::Written(_) | StatusOutcome::Gone) {
            refused.forget(&uid);
        }
        match outcome {
            StatusOutcome::Written(devices) if devices.is_empty() => drop(written.remove(&uid)),
            StatusOutcome::Written(devices) => {
                written.insert(uid, Claim { devices, ..claim });
            }
            // Nobody wants to know of it.
            StatusOutcome::Gone if claim.devices.is_empty() => drop(written.remove(&uid)),
            StatusOutcome::Gone => drop(written.insert(uid, claim)),
            StatusOutcome::Again(pause) => sleep(pause).await,
            StatusOutcome::Refused(why) => {
                refused.note((uid, claim), why, |times| self.statuses.pause(times));
            }
        }
    }

    /// Writes the status; what was so before has been so since.
    async fn write(
        &mut self,
        claim: &Claim,
        known: Option<BTreeMap<Spot, Told>>,
    ) -> StatusOutcome<BTreeMap<Spot, Told>> {
        let Claim { reference, devices } = claim;
        let found = match known {
            Some(known) => known,
            None => match self.statuses.read(reference).await {
                StatusOutcome::Written(claim) => document::read(&claim, &self.driver),
                StatusOutcome::Gone => return StatusOutcome::Gone,
                StatusOutcome::Refused(why) => return StatusOutcome::Refused(why),
                StatusOutcome::Again(pause) => return StatusOutcome::Again(pause),
            },
        };
        let told = document::since(devices.clone(), &found);
        let document = document::document(reference, &self.driver, &told);
        self.statuses.apply(reference, &document).await.map(|()| told)
    }

    /// What is prepared or begun, and what was refused.
    fn wanted(&mut self, troubles: &TroubleByUid) -> Claims {
        let state = self.state.borrow_and_update().clone();
        let records = self.records.borrow_and_update();
        let claim = |(uid, entry): (&String, &Entry)| {
            let why = troubles.get(uid).map(|trouble| trouble.why.as_str());
            let devices = document::devices(entry, &state, (why, self.clock.now()));
            (uid.clone(), Claim { reference: entry.claim.clone(), devices })
        };
        let refused = troubles.iter().filter_map(|(uid, it)| Some((uid, it.refused.as_ref()?)));
        refused.chain(&records.1).map(claim).collect()
    }
}

// === impl Past ===

impl Past {
    /// What was never told of a claim that is gone need not be taken back.
    fn forget_refused(&mut self, wanted: &Claims) {
        let written = &self.written;
        self.refused.retain(|uid| wanted.contains_key(uid) || written.contains_key(uid));
    }

    /// The first claim of which something else was told than is so, whatever the times.
    fn difference(&self, wanted: &Claims, now: Instant) -> Option<String> {
        let nothing = BTreeMap::new();
        let is_gone =
            |uid: &&String| !wanted.contains_key(*uid) && !self.refused.waits(uid, &nothing, now);
        let gone = self.written.keys().find(is_gone);
        let is_other = |(uid, claim): &(&String, &Claim)| {
            let known = self.written.get(*uid).map(|it| &it.devices);
            let is_told = known.is_some_and(|it| document::says(it, &claim.devices));
            !claim.devices.is_empty() && !is_told && !self.refused.waits(uid, &claim.devices, now)
        };
        let other = || wanted.iter().find(is_other).map(|(uid, _)| uid);
        gone.or_else(other).cloned()
    }
}
