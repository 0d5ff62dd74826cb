//! One claim: what of it is in the record, what is done for it, and who waits.

use windlass_allocations::ledger::ClaimRef;
use windlass_host::deadline::Deadline;

use super::super::{
    desk::Reply,
    record::{Entry, Held},
};

/// One claim.
pub(super) struct Slot {
    pub(super) claim: ClaimRef,
    /// As the record has it.
    pub(super) entry: Option<Entry>,
    pub(super) work: Option<Work>,
    /// How long it waits for others to let go of what it is to get, once they were found to have it.
    pub(super) patience: Option<Deadline>,
    /// How often it was asked for.
    pub(super) asked: u64,
    pub(super) preparing: Vec<Reply<Vec<Held>>>,
    pub(super) releasing: Vec<Reply<()>>,
}

/// What is done for a claim at the moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    Reading,
    /// Others have what it is to get.
    Waiting,
    /// It was not in the record before.
    Beginning,
    Acting,
    Settling,
    Removing,
    /// Its document is written again if somebody removed it.
    Restoring,
    /// With what the record had.
    Forgetting(Entry),
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(claim: ClaimRef) -> Self {
        let (preparing, releasing) = Default::default();
        let patience = None;
        Self { claim, entry: None, work: None, patience, asked: 0, preparing, releasing }
    }

    pub(super) fn of(entry: Entry) -> Self {
        Self { entry: Some(entry.clone()), ..Self::new(entry.claim) }
    }

    /// Whether nothing is done that could change what it has.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.work, None | Some(Work::Restoring))
    }

    /// Whether nobody waits for it to be prepared any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.preparing.iter().all(Reply::is_closed)
    }

    /// Whether it is not known which device one of its names means.
    pub(super) fn is_vague(&self) -> bool {
        let is_vague = |entry: &Entry| entry.devices.iter().any(|held| held.device.is_none());
        self.entry.as_ref().is_some_and(is_vague)
    }

    /// Tells those who wait for it to be prepared.
    pub(super) fn prepared(&mut self, outcome: &Result<Vec<Held>, String>) {
        self.patience = None;
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
