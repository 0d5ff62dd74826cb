//! One claim: its state, its record and its callers.

use windlass_allocations::ledger::ClaimRef;

use super::{
    super::{
        queue::Reply,
        record::{Entry, Held, Stage},
    },
    state::{Input, State},
};

pub(super) struct Slot {
    pub(super) claim: ClaimRef,
    pub(super) state: State,
    /// Its record, if any.
    pub(super) entry: Option<Entry>,
    /// Reason of the last failure to rewrite its document.
    pub(super) unwritten: Option<String>,
    /// Number of requests so far.
    pub(super) asked: u64,
    pub(super) preparing: Vec<Reply<Vec<Held>>>,
    pub(super) releasing: Vec<Reply<()>>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(claim: ClaimRef) -> Self {
        let (entry, unwritten, preparing, releasing) = Default::default();
        let state = State::Resting(None);
        Self { claim, state, entry, unwritten, asked: 0, preparing, releasing }
    }

    pub(super) fn of(entry: Entry) -> Self {
        let state = State::Resting(Some(entry.state));
        Self { state, entry: Some(entry.clone()), ..Self::new(entry.claim) }
    }

    /// Enters a state, and updates the record's stage.
    pub(super) fn enter(&mut self, state: State) {
        let (claim, uid) = (&self.claim, &self.claim.uid);
        if let (Some(entry), Some(stage)) = (&mut self.entry, state.recorded()) {
            entry.state = stage;
        }
        match (self.state, state) {
            (State::Settling, State::Resting(Some(Stage::PrepareCompleted))) => {
                let devices = self.entry.iter().flat_map(|entry| &entry.devices);
                let devices: Vec<_> = devices.map(|held| held.name.as_str()).collect();
                tracing::info!(%claim, uid, devices = devices.join(" "), "claim prepared");
            }
            (State::Forgetting, State::Resting(None)) => {
                tracing::info!(%claim, uid, "claim released");
            }
            (from, now) if from != now => tracing::trace!(%claim, uid, ?from, ?now, "claim"),
            _ => {}
        }
        self.state = state;
    }

    pub(super) fn recorded(&self) -> Option<&Entry> {
        self.entry.as_ref().filter(|_| self.state.recorded().is_some())
    }

    /// The next request of a claim at rest.
    pub(super) fn wish(&self) -> Option<Input> {
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

    /// True if the device of a name is unknown.
    pub(super) fn is_vague(&self) -> bool {
        let is_vague = |entry: &Entry| entry.devices.iter().any(|held| held.device.is_none());
        self.recorded().is_some_and(is_vague)
    }

    /// Answers the callers of the preparation.
    pub(super) fn prepared(&mut self, outcome: &Result<Vec<Held>, String>) {
        for reply in self.preparing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }

    /// Answers the callers of the release.
    pub(super) fn released(&mut self, outcome: &Result<(), String>) {
        for reply in self.releasing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }
}
