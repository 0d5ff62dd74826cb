//! A claim whose devices another claim has still: it waits a little, since they are on their way to it.
//!
//! The scheduler gives a device to a claim once no other is allocated it. A pod that was deleted by force is gone from
//! the API server by then, and its containers still end on the node. Refused at once, the next pod would be prepared
//! when its kubelet tries again, 60 to 90 seconds later.

use std::fmt;

use tokio::time::Instant;
use windlass_allocations::ledger::{ClaimHolds, ClaimRef, Conflict, Ledger};
use windlass_host::{causes, deadline::Deadline};

use super::{Input, Notice, Preparer, State, slot::Slot};
use crate::plan::Refusal;

/// Why a claim cannot be begun.
pub(super) struct NotBegun {
    why: String,
    /// Who is in the way, if that is a claim.
    in_the_way: Option<InTheWay>,
}

/// Claims that others wait for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InTheWay {
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
    pub(super) fn held(&self, uid: &str, cause: &NotBegun) -> Option<Input> {
        let (others, slot) = (cause.in_the_way.clone()?, self.slots.get(uid)?);
        let State::Reading(_, patience) = slot.state else { return None };
        let mut left = patience.unwrap_or_else(|| Deadline::after(self.patience));
        let ledger = self.ground.ledger.watch();
        let ledger = ledger.borrow();
        // A holder of which the ledger knows nothing would have let go at once, again and again.
        if left.has_passed(Instant::now())
            || !slot.releasing.is_empty()
            || others.have_let_go(ledger.claims(), &ledger)
        {
            return None;
        }
        if patience.is_none() {
            tracing::info!(claim = %slot.claim, holder = %others, why = cause.why, "claim waits");
        }
        Some(Input::Held(others, left))
    }

    /// Waits until the others have let go.
    pub(super) fn wait(&mut self, uid: &str, others: InTheWay, mut patience: Deadline) {
        let (mut ledger, uid) = (self.ground.ledger.watch(), uid.to_owned());
        let before = ledger.borrow().claims().clone();
        self.watches.spawn(async move {
            let let_go = ledger.wait_for(|ledger| others.have_let_go(&before, ledger));
            // Whether they have is seen when the claim is planned anew.
            drop(patience.bound(let_go).await);
            Notice::LetGo(uid, patience)
        });
    }

    /// Sees anew what a claim is to get, which may have been deleted meanwhile, if somebody still wants to know.
    pub(super) fn let_go(&mut self, uid: &str, patience: Deadline) {
        let is_abandoned = self.slots.get(uid).is_some_and(Slot::is_abandoned);
        let input = if is_abandoned { Input::Abandoned } else { Input::LetGo(patience) };
        self.step(uid, input);
    }

    /// Tells those who wait that the claim is no longer wanted.
    pub(super) fn abandon(&mut self, uid: &str) {
        if let Some(slot) = self.slots.get_mut(uid) {
            slot.prepared(&Err("released before it was prepared".to_owned()));
        }
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
