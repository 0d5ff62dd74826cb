//! Tracked claim: its state, its record and the callers that wait for it.

use windlass_allocations::ledger::ClaimRef;

use super::{
    super::{
        queue::Reply,
        record::{PreparedClaim, PreparedDevice, Stage},
    },
    state::{Input, State},
};

/// A claim in preparation, prepared or in release.
pub(super) struct TrackedClaim {
    pub(super) claim: ClaimRef,
    pub(super) state: State,
    /// Its record, if any.
    pub(super) record: Option<PreparedClaim>,
    /// Reason of the last failure to rewrite its document.
    pub(super) document_error: Option<String>,
    /// Number of requests so far.
    pub(super) request_count: u64,
    pub(super) prepare_replies: Vec<Reply<Vec<PreparedDevice>>>,
    pub(super) release_replies: Vec<Reply<()>>,
}

// === impl TrackedClaim ===

impl TrackedClaim {
    pub(super) fn new(claim: ClaimRef) -> Self {
        let (record, document_error, prepare_replies, release_replies) = Default::default();
        let state = State::Idle(None);
        Self {
            claim,
            state,
            record,
            document_error,
            request_count: 0,
            prepare_replies,
            release_replies,
        }
    }

    pub(super) fn from_record(record: PreparedClaim) -> Self {
        let state = State::Idle(Some(record.state));
        Self { state, record: Some(record.clone()), ..Self::new(record.claim) }
    }

    /// Enters a state, and updates the record's stage.
    pub(super) fn enter(&mut self, state: State) {
        let (claim, uid) = (&self.claim, &self.claim.uid);
        if let (Some(record), Some(stage)) = (&mut self.record, state.recorded_stage()) {
            record.state = stage;
        }
        match (self.state, state) {
            (State::Completing, State::Idle(Some(Stage::PrepareCompleted))) => {
                let devices = self.record.iter().flat_map(|record| &record.devices);
                let devices: Vec<_> = devices.map(|device| device.name.as_str()).collect();
                tracing::info!(%claim, uid, devices = devices.join(" "), "claim prepared");
            }
            (State::DroppingRecord, State::Idle(None)) => {
                tracing::info!(%claim, uid, "claim released");
            }
            (from, now) if from != now => tracing::trace!(%claim, uid, ?from, ?now, "claim"),
            _ => {}
        }
        self.state = state;
    }

    pub(super) fn persisted_record(&self) -> Option<&PreparedClaim> {
        self.record.as_ref().filter(|_| self.state.recorded_stage().is_some())
    }

    /// The next request of an idle claim.
    pub(super) fn next_request(&self) -> Option<Input> {
        match (self.prepare_replies.is_empty(), self.release_replies.is_empty()) {
            (false, _) => Some(Input::Prepare),
            (true, false) => Some(Input::Release),
            (true, true) => None,
        }
    }

    /// True if no caller waits for its preparation.
    pub(super) fn is_abandoned(&self) -> bool {
        self.prepare_replies.iter().all(Reply::is_closed)
    }

    /// True if the claim has a device of which only the name is known.
    pub(super) fn has_unknown_devices(&self) -> bool {
        let has_unknown_devices =
            |record: &PreparedClaim| record.devices.iter().any(|device| device.device.is_none());
        self.persisted_record().is_some_and(has_unknown_devices)
    }

    /// Answers the callers of the preparation.
    pub(super) fn reply_to_prepare(&mut self, outcome: &Result<Vec<PreparedDevice>, String>) {
        for reply in self.prepare_replies.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }

    /// Answers the callers of the release.
    pub(super) fn reply_to_release(&mut self, outcome: &Result<(), String>) {
        for reply in self.release_replies.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }
}
