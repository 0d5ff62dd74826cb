//! Wait of a claim for devices that another claim is about to release.
//!
//! The scheduler allocates a device once no other claim has it in the API server. A pod that was deleted by force is
//! gone from there, while its containers still end on the node. After a refusal, the kubelet would retry only 60 to 90
//! seconds later.

use std::fmt;

use tokio::time::Instant;
use windlass_allocations::ledger::{ClaimHolds, ClaimRef, Conflict, Ledger};
use windlass_host::{causes, deadline::Deadline};

use super::{Input, Preparer, State, WatchOutcome, slot::TrackedClaim};
use crate::plan::Refusal;

/// Reason why a claim cannot be planned.
pub(super) struct PlanError {
    reason: String,
    /// The claims that hold the device, if any.
    blocker: Option<Blocker>,
}

/// Holders of a device that a claim waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Blocker {
    Claim(ClaimRef),
    /// Claims with shares of the device.
    ShareHolders,
}

// === impl PlanError ===

impl From<Refusal> for PlanError {
    fn from(refusal: Refusal) -> Self {
        let blocker = refusal.holder().cloned().map(Blocker::Claim);
        Self { reason: causes(&refusal), blocker }
    }
}

impl From<Conflict> for PlanError {
    fn from(conflict: Conflict) -> Self {
        let blocker = match &conflict {
            Conflict::AmountExceeded { .. } | Conflict::NoShareLeft { .. } => {
                Some(Blocker::ShareHolders)
            }
            _ => conflict.holder().cloned().map(Blocker::Claim),
        };
        Self { reason: conflict.to_string(), blocker }
    }
}

impl PlanError {
    /// The error for the kubelet. Only the node's own log names the holder.
    pub(super) fn report(self, claim: &ClaimRef) -> String {
        if let Some(holder) = &self.blocker {
            tracing::info!(%claim, %holder, why = self.reason, "claim refused");
        }
        self.reason
    }
}

// === impl Preparer ===

impl Preparer {
    /// Input of a claim that waits for other claims to release its devices. `None` once its deadline has passed, or if
    /// the claim itself has a request for release.
    pub(super) fn blocked_input(&self, uid: &str, cause: &PlanError) -> Option<Input> {
        let (blocker, tracked) = (cause.blocker.clone()?, self.tracked_claims.get(uid)?);
        let State::Reading(_, deadline) = tracked.state else { return None };
        let mut wait = deadline.unwrap_or_else(|| Deadline::after(self.wait_limit));
        let ledger = self.environment.ledger.watch();
        let ledger = ledger.borrow();
        // A holder that the ledger lacks would end each wait at once: the claim would retry in a loop.
        if wait.has_passed(Instant::now())
            || !tracked.release_replies.is_empty()
            || blocker.has_released(ledger.claims(), &ledger)
        {
            return None;
        }
        if deadline.is_none() {
            tracing::info!(claim = %tracked.claim, holder = %blocker, why = cause.reason, "claim waits");
        }
        Some(Input::Blocked(blocker, wait))
    }

    /// Waits until the other claims have released the devices.
    pub(super) fn wait(&mut self, uid: &str, blocker: Blocker, mut deadline: Deadline) {
        let (mut ledger, uid) = (self.environment.ledger.watch(), uid.to_owned());
        let claims_at_start = ledger.borrow().claims().clone();
        self.watches.spawn(async move {
            let released = ledger.wait_for(|ledger| blocker.has_released(&claims_at_start, ledger));
            // The next plan shows whether the devices are free.
            drop(deadline.timeout(released).await);
            WatchOutcome::Released(uid, deadline)
        });
    }

    /// Reads the claim again, if a caller still waits. The API server may have deleted the claim.
    pub(super) fn retry_after_wait(&mut self, uid: &str, deadline: Deadline) {
        let is_abandoned = self.tracked_claims.get(uid).is_some_and(TrackedClaim::is_abandoned);
        let input = if is_abandoned { Input::Abandoned } else { Input::Released(deadline) };
        self.step(uid, input);
    }

    /// Answers the callers that the claim is to be released.
    pub(super) fn abandon(&mut self, uid: &str) {
        if let Some(tracked) = self.tracked_claims.get_mut(uid) {
            tracked.reply_to_prepare(&Err("released before it was prepared".to_owned()));
        }
    }
}

// === impl Blocker ===

impl Blocker {
    fn has_released(&self, claims_at_start: &ClaimHolds, ledger: &Ledger) -> bool {
        match self {
            Self::Claim(claim) => !ledger.is_held_by(&claim.uid),
            Self::ShareHolders => ledger.claims() != claims_at_start,
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(claim) => claim.fmt(f),
            Self::ShareHolders => f.write_str("claims that share the device"),
        }
    }
}
