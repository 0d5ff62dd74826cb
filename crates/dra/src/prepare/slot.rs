//! Slot of one claim: its state, its record and the callers that wait for it.

use windlass_allocations::ledger::ClaimRef;

use super::{
    super::{
        queue::Reply,
        record::{PreparedClaim, PreparedDevice, Stage},
    },
    state::{Input, State},
};

/// A claim in preparation, prepared or in release.
pub(super) struct Slot {
    pub(super) claim: ClaimRef,
    pub(super) state: State,
    /// Its record, if any.
    pub(super) entry: Option<PreparedClaim>,
    /// Reason of the last failure to rewrite its document.
    pub(super) unwritten: Option<String>,
    /// Number of requests so far.
    pub(super) requests: u64,
    pub(super) preparing: Vec<Reply<Vec<PreparedDevice>>>,
    pub(super) releasing: Vec<Reply<()>>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(claim: ClaimRef) -> Self {
        let (entry, unwritten, preparing, releasing) = Default::default();
        let state = State::Idle(None);
        Self { claim, state, entry, unwritten, requests: 0, preparing, releasing }
    }

    pub(super) fn of(entry: PreparedClaim) -> Self {
        let state = State::Idle(Some(entry.state));
        Self { state, entry: Some(entry.clone()), ..Self::new(entry.claim) }
    }

    /// Enters a state, and updates the record's stage.
    pub(super) fn enter(&mut self, state: State) {
        let (claim, uid) = (&self.claim, &self.claim.uid);
        if let (Some(entry), Some(stage)) = (&mut self.entry, state.recorded()) {
            entry.state = stage;
        }
        match (self.state, state) {
            (State::Completing, State::Idle(Some(Stage::PrepareCompleted))) => {
                let devices = self.entry.iter().flat_map(|entry| &entry.devices);
                let devices: Vec<_> = devices.map(|held| held.name.as_str()).collect();
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

    pub(super) fn recorded(&self) -> Option<&PreparedClaim> {
        self.entry.as_ref().filter(|_| self.state.recorded().is_some())
    }

    /// The next request of an idle claim.
    pub(super) fn next_request(&self) -> Option<Input> {
        match (self.preparing.is_empty(), self.releasing.is_empty()) {
            (false, _) => Some(Input::Prepare),
            (true, false) => Some(Input::Release),
            (true, true) => None,
        }
    }

    /// True if no caller waits for its preparation.
    pub(super) fn is_abandoned(&self) -> bool {
        self.preparing.iter().all(Reply::is_closed)
    }

    /// True if the claim has a device of which only the name is known.
    pub(super) fn has_unknown_devices(&self) -> bool {
        let has_unknown_devices =
            |entry: &PreparedClaim| entry.devices.iter().any(|held| held.device.is_none());
        self.recorded().is_some_and(has_unknown_devices)
    }

    /// Answers the callers of the preparation.
    pub(super) fn answer_preparing(&mut self, outcome: &Result<Vec<PreparedDevice>, String>) {
        for reply in self.preparing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }

    /// Answers the callers of the release.
    pub(super) fn answer_releasing(&mut self, outcome: &Result<(), String>) {
        for reply in self.releasing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }
}
