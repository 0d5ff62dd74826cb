//! A claim whose devices another claim has still: it waits a little, since they are on their way to it.
//!
//! The scheduler gives a device to a claim once no other is allocated it. A pod that was deleted by force is gone from
//! the API server by then, and its containers still end on the node. Refused at once, the next pod would be prepared
//! when its kubelet tries again, 60 to 90 seconds later.

use tokio::time::{Instant, timeout_at};

use super::{
    Event, Preparer,
    slot::{Slot, Work},
};
use crate::{
    dra::plan::Refusal,
    ledger::{ClaimRef, Conflict, Ledger},
};

/// Why a claim cannot be begun.
pub(super) struct Refused {
    pub(super) why: String,
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

// === impl Refused ===

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let in_the_way = refusal.holder().cloned().map(InTheWay::One);
        Self { why: crate::causes(&refusal), in_the_way }
    }
}

impl From<Conflict> for Refused {
    fn from(conflict: Conflict) -> Self {
        let in_the_way = match &conflict {
            Conflict::Exceeded { .. } | Conflict::NoShareLeft { .. } => Some(InTheWay::Sharers),
            _ => conflict.holder().cloned().map(InTheWay::One),
        };
        Self { why: conflict.to_string(), in_the_way }
    }
}

// === impl Preparer ===

impl Preparer {
    /// Waits until others have let go of what a claim is to get, unless it has waited for long enough. Gives back why
    /// it is refused if it does not wait.
    pub(super) fn wait(&mut self, uid: &str, refused: Refused) -> Option<Refused> {
        let now = Instant::now();
        let patience = self.patience;
        let Some(slot) = self.slots.get_mut(uid) else { return Some(refused) };
        let until = *slot.waits_until.get_or_insert(now + patience);
        let Some(others) = refused.in_the_way.clone().filter(|_| now < until) else {
            if let Some(InTheWay::One(holder)) = &refused.in_the_way {
                tracing::info!(claim = %slot.claim, %holder, why = refused.why, "claim refused");
            }
            return Some(refused);
        };
        tracing::info!(claim = %slot.claim, why = refused.why, "waiting until it is let go");
        slot.work = Some(Work::Waiting);
        let (mut ledger, uid) = (self.ground.ledger.watch(), uid.to_owned());
        let before = ledger.borrow().clone();
        self.tasks.spawn(async move {
            let let_go = ledger.wait_for(|ledger| others.let_go(&before, ledger));
            // Whether they have is seen when the claim is begun anew.
            drop(timeout_at(until, let_go).await);
            Event::Waited(uid)
        });
        None
    }

    /// Sees anew what a claim is to get: it may have been deleted while it waited.
    pub(super) fn waited(&mut self, uid: &str) {
        // One that is to be released waits no more.
        if self.slots.get(uid).is_some_and(|slot| slot.work == Some(Work::Waiting)) {
            self.read(uid);
        }
    }
}

// === impl InTheWay ===

impl InTheWay {
    fn let_go(&self, before: &Ledger, now: &Ledger) -> bool {
        match self {
            Self::One(claim) => !now.is_held_by(&claim.uid),
            Self::Sharers => now.claims() != before.claims(),
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Ends its waiting for others, since it is to be released.
    pub(super) fn stop_waiting(&mut self) {
        if self.work == Some(Work::Waiting) {
            self.work = None;
            self.prepared(&Err("released before it was prepared".to_owned()));
        }
    }
}
