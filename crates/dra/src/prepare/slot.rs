//! One claim: where it stands, what of it is in the record, and who waits.

use windlass_allocations::ledger::ClaimRef;

use super::{
    super::{
        desk::Reply,
        record::{Entry, Held, Stage},
    },
    state::{Input, State},
};

/// One claim.
pub(super) struct Slot {
    pub(super) claim: ClaimRef,
    pub(super) state: State,
    /// What it has, if that is known.
    pub(super) entry: Option<Entry>,
    /// Why its document could not be written again when that was last tried.
    pub(super) unwritten: Option<String>,
    /// How often it was asked for.
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

    /// Goes into another state, of which the record tells.
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

    /// What the record says of it.
    pub(super) fn recorded(&self) -> Option<&Entry> {
        self.entry.as_ref().filter(|_| self.state.recorded().is_some())
    }

    /// What is wanted of it next, at rest.
    pub(super) fn wish(&self) -> Option<Input> {
        match (self.preparing.is_empty(), self.releasing.is_empty()) {
            (false, _) => Some(Input::Prepare),
            (true, false) => Some(Input::Release),
            (true, true) => None,
        }
    }

    /// Whether nobody waits for it to be prepared any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.preparing.iter().all(Reply::is_closed)
    }

    /// Whether it is not known which device one of its names means.
    pub(super) fn is_vague(&self) -> bool {
        let is_vague = |entry: &Entry| entry.devices.iter().any(|held| held.device.is_none());
        self.recorded().is_some_and(is_vague)
    }

    /// Tells those who wait for it to be prepared.
    pub(super) fn prepared(&mut self, outcome: &Result<Vec<Held>, String>) {
        for reply in self.preparing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }

    /// Tells those who wait for it to be released.
    pub(super) fn released(&mut self, outcome: &Result<(), String>) {
        for reply in self.releasing.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }
}
