//! Status of claims' devices in the API server: conditions for preparation, health, and use of memory above a share.
//!
//! ```text
//!   records, failures, devices ──> desired ──differs from the written status──> apply ──> written
//!                                     ^                                         │ failed: logged once
//!                                     └──────── retried after a pause ──────────┘
//! ```
//!
//! While the API server does not answer, all statuses wait. A refused status delays no other. Preparation does not wait
//! for a status. A delayed status describes the state at the time of its write.

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
    document::{DeviceKey, DeviceReport, StatusInputs},
    refused::RefusedReports,
};
use super::{
    excess::MemoryExcesses,
    record::{PreparedClaim, Records},
};

/// Reasons why claims are not prepared, by UID. The preparer publishes them.
#[derive(Debug, Default)]
pub(super) struct Failures(watch::Sender<FailuresByUid>);

pub(super) type FailuresByUid = BTreeMap<String, Failure>;

/// Reason why a claim is not prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Devices of a claim that was refused before its first record.
    pub(super) refused: Option<PreparedClaim>,
}

/// Writes the status of claims' devices.
pub(super) struct StatusWriter {
    pub(super) driver: DriverName,
    pub(super) clock: Clock,
    pub(super) statuses: ClaimStatuses,
    pub(super) records: watch::Receiver<Versioned<Records>>,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) failures: watch::Receiver<FailuresByUid>,
    pub(super) excesses: watch::Receiver<Arc<MemoryExcesses>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimReport {
    reference: ClaimRef,
    devices: BTreeMap<DeviceKey, DeviceReport>,
}

/// Reports by the claim's UID.
type Reports = BTreeMap<String, ClaimReport>;

/// Reports that were written or refused.
#[derive(Default)]
struct PastReports {
    written: Reports,
    refused: RefusedReports,
}

/// Changes within this time are written together: a claim starts and completes soon after.
const WRITE_DELAY: Duration = Duration::from_millis(50);

// === impl Failures ===

impl Failures {
    /// Sets the reason why a claim is not prepared.
    pub(super) fn set(&self, uid: &str, failure: Failure) {
        self.0.send_if_modified(|failures| {
            let is_changed = failures.get(uid) != Some(&failure);
            failures.insert(uid.to_owned(), failure);
            is_changed
        });
    }

    /// Removes the reason.
    pub(super) fn clear(&self, uid: &str) {
        self.0.send_if_modified(|failures| failures.remove(uid).is_some());
    }

    /// All reasons.
    pub(super) fn watch(&self) -> watch::Receiver<FailuresByUid> {
        self.0.subscribe()
    }

    pub(super) fn refused(&self) -> Vec<ClaimRef> {
        let failures = self.0.borrow();
        failures
            .values()
            .filter_map(|failure| Some(failure.refused.as_ref()?.claim.clone()))
            .collect()
    }
}

// === impl Failure ===

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { reason, refused: None }
    }
}

// === impl StatusWriter ===

impl StatusWriter {
    /// Writes statuses until stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.write_changes())).await;
    }

    async fn write_changes(mut self) {
        let (mut past, mut failures) = (PastReports::default(), self.failures.clone());
        loop {
            let desired = self.desired(&failures.borrow_and_update());
            past.drop_refused(&desired);
            let now = Instant::now();
            if let Some(uid) = past.difference(&desired, now) {
                self.report(uid, desired, &mut past).await;
                continue;
            }
            tokio::select! {
                () = past.refused.wait_until_due(now) => continue,
                () = windlass_host::watch::changed(&mut self.records) => {}
                () = windlass_host::watch::changed(&mut self.state) => {}
                () = windlass_host::watch::changed(&mut self.excesses) => {}
                () = windlass_host::watch::changed(&mut failures) => {}
            }
            sleep(WRITE_DELAY).await;
        }
    }

    /// Writes the status of one claim, or waits before a retry.
    async fn report(&mut self, uid: String, mut desired: Reports, past: &mut PastReports) {
        let PastReports { written, refused } = past;
        let claim = desired.remove(&uid).unwrap_or_else(|| {
            let reference = written[&uid].reference.clone();
            ClaimReport { reference, devices: BTreeMap::new() }
        });
        let devices = written.get(&uid).map(|claim| claim.devices.clone());
        let outcome = self.write(&claim, devices).await;
        if matches!(outcome, StatusOutcome::Written(_) | StatusOutcome::NotFound) {
            refused.remove(&uid);
        }
        match outcome {
            StatusOutcome::Written(devices) if devices.is_empty() => drop(written.remove(&uid)),
            StatusOutcome::Written(devices) => {
                written.insert(uid, ClaimReport { devices, ..claim });
            }
            StatusOutcome::NotFound if claim.devices.is_empty() => drop(written.remove(&uid)),
            StatusOutcome::NotFound => drop(written.insert(uid, claim)),
            StatusOutcome::Retry(delay) => sleep(delay).await,
            StatusOutcome::Refused(reason) => {
                refused.record(uid, claim, reason, |refusal_count| {
                    self.statuses.retry_delay(refusal_count)
                });
            }
        }
    }

    /// Writes the status. Unchanged conditions keep their transition time.
    async fn write(
        &mut self,
        claim: &ClaimReport,
        previous: Option<BTreeMap<DeviceKey, DeviceReport>>,
    ) -> StatusOutcome<BTreeMap<DeviceKey, DeviceReport>> {
        let ClaimReport { reference, devices } = claim;
        let previous = match previous {
            Some(previous) => previous,
            None => match self.statuses.read(reference).await {
                StatusOutcome::Written(claim) => document::read(&claim, &self.driver),
                StatusOutcome::NotFound => return StatusOutcome::NotFound,
                StatusOutcome::Refused(reason) => return StatusOutcome::Refused(reason),
                StatusOutcome::Retry(delay) => return StatusOutcome::Retry(delay),
            },
        };
        let report = document::with_transition_times(devices.clone(), &previous);
        let document = document::document(reference, &self.driver, &report);
        self.statuses.apply(reference, &document).await.map(|()| report)
    }

    /// Reports of recorded and of refused claims.
    fn desired(&mut self, failures: &FailuresByUid) -> Reports {
        let state = self.state.borrow_and_update().clone();
        let excesses = self.excesses.borrow_and_update().clone();
        let records = self.records.borrow_and_update();
        let claim = |(uid, record): (&String, &PreparedClaim)| {
            let prepare_error = failures.get(uid).map(|failure| failure.reason.as_str());
            let now = self.clock.now();
            let inputs = StatusInputs {
                inventory: &state.inventory,
                excesses: &excesses,
                prepare_error,
                now,
            };
            let devices = document::devices(record, &inputs);
            (uid.clone(), ClaimReport { reference: record.claim.clone(), devices })
        };
        let refused =
            failures.iter().filter_map(|(uid, failure)| Some((uid, failure.refused.as_ref()?)));
        refused.chain(&records.1).map(claim).collect()
    }
}

// === impl PastReports ===

impl PastReports {
    /// Drops refused reports of claims that are gone and have no written status.
    fn drop_refused(&mut self, desired: &Reports) {
        let written = &self.written;
        self.refused.retain(|uid| desired.contains_key(uid) || written.contains_key(uid));
    }

    /// UID of the first claim whose written status differs from the desired one, apart from times.
    fn difference(&self, desired: &Reports, now: Instant) -> Option<String> {
        let no_devices = BTreeMap::new();
        let is_gone = |uid: &&String| {
            !desired.contains_key(*uid) && !self.refused.is_backing_off(uid, &no_devices, now)
        };
        let gone = self.written.keys().find(is_gone);
        let is_different = |(uid, claim): &(&String, &ClaimReport)| {
            let written = self.written.get(*uid).map(|report| &report.devices);
            let is_written =
                written.is_some_and(|devices| document::is_same(devices, &claim.devices));
            let is_backing_off = self.refused.is_backing_off(uid, &claim.devices, now);
            !claim.devices.is_empty() && !is_written && !is_backing_off
        };
        let different = || desired.iter().find(is_different).map(|(uid, _)| uid);
        gone.or_else(different).cloned()
    }
}
