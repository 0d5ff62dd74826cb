//! A claim whose devices another claim has still: it waits a little, since they are on their way to it.
//!
//! The scheduler gives a device to a claim once no other is allocated it. A pod that was deleted by force is gone from
//! the API server by then, and its containers still end on the node. Refused at once, the next pod would be prepared
//! when its kubelet tries again, 60 to 90 seconds later.

use std::fmt;

use tokio::time::Instant;
use windlass_allocations::ledger::{ClaimHolds, ClaimRef, Conflict, Ledger};
use windlass_host::{causes, deadline::Deadline};

use super::{
    Event, Preparer,
    slot::{Slot, Work},
};
use crate::plan::Refusal;

/// Why a claim cannot be begun.
pub(super) struct NotBegun {
    why: String,
    /// Who is in the way, if that is a claim.
    in_the_way: Option<InTheWay>,
}

/// Claims that others wait for.
#[derive(Clone, Debug)]
enum InTheWay {
    One(ClaimRef),
    /// Those that have shares of the device.
    Sharers,
}

// === impl NotBegun ===

impl From<Refusal> for NotBegun {
    fn from(refusal: Refusal) -> Self {
        let in_the_way = refusal.holder().cloned().map(InTheWay::One);
        Self { why: causes(&refusal), in_the_way }
    }
}

impl From<Conflict> for NotBegun {
    fn from(conflict: Conflict) -> Self {
        let in_the_way = match &conflict {
            Conflict::Exceeded { .. } | Conflict::NoShareLeft { .. } => Some(InTheWay::Sharers),
            _ => conflict.holder().cloned().map(InTheWay::One),
        };
        Self { why: conflict.to_string(), in_the_way }
    }
}

impl NotBegun {
    /// What the kubelet is told; by whom the device is held is for the node's own log.
    pub(super) fn told(self, claim: &ClaimRef) -> String {
        if let Some(holder) = &self.in_the_way {
            tracing::info!(%claim, %holder, why = self.why, "claim refused");
        }
        self.why
    }
}

// === impl Preparer ===

impl Preparer {
    /// Whether a claim waits until others have let go of what it is to get: not for longer than its patience, and not
    /// if it is to be released itself.
    pub(super) fn waits(&mut self, uid: &str, cause: &NotBegun) -> bool {
        let Some(others) = cause.in_the_way.clone() else { return false };
        let mut ledger = self.ground.ledger.watch();
        let before = ledger.borrow().claims().clone();
        let patience = Deadline::after(self.patience);
        let Some(slot) = self.slots.get_mut(uid) else { return false };
        let is_first = slot.patience.is_none();
        let mut patience = *slot.patience.get_or_insert(patience);
        // A holder of which the ledger knows nothing would have let go at once, again and again.
        if patience.has_passed(Instant::now())
            || !slot.releasing.is_empty()
            || others.have_let_go(&before, &ledger.borrow())
        {
            return false;
        }
        if is_first {
            tracing::info!(claim = %slot.claim, holder = %others, why = cause.why, "claim waits");
        }
        slot.work = Some(Work::Waiting);
        let uid = uid.to_owned();
        self.tasks.spawn(async move {
            let let_go = ledger.wait_for(|ledger| others.have_let_go(&before, ledger));
            // Whether they have is seen when the claim is begun anew.
            drop(patience.bound(let_go).await);
            Event::Waited(uid, patience)
        });
        true
    }

    /// Sees anew what a claim is to get, which may have been deleted meanwhile, if somebody still wants to know.
    pub(super) fn waited(&mut self, uid: &str, patience: Deadline) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        // One that is to be released has stopped to wait.
        if slot.work != Some(Work::Waiting) {
            return;
        }
        slot.patience = Some(patience);
        if slot.is_abandoned() {
            slot.stop_waiting();
            return self.advance(uid);
        }
        self.read(uid);
    }
}

// === impl InTheWay ===

impl InTheWay {
    fn have_let_go(&self, before: &ClaimHolds, now: &Ledger) -> bool {
        match self {
            Self::One(claim) => !now.is_held_by(&claim.uid),
            Self::Sharers => now.claims() != before,
        }
    }
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(claim) => claim.fmt(f),
            Self::Sharers => f.write_str("claims that share the device"),
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Ends its waiting for others: it is to be released, or nobody asks for it any more.
    pub(super) fn stop_waiting(&mut self) {
        if self.work == Some(Work::Waiting) {
            self.work = None;
            self.prepared(&Err("released before it was prepared".to_owned()));
        }
    }
}
