//! Release of a claim, step by step, and search for orphaned claims.

use tokio::sync::oneshot;
use windlass_host::blocking;

use super::{
    Notice, Preparer,
    environment::{Environment, Suspect},
    partitions::places,
};
use crate::{
    queue::{Operation, Request},
    record::PreparedClaim,
};

impl Preparer {
    /// Undoes the steps of a claim. A claim without a record may still have devices to clean.
    pub(super) fn remove(&mut self, uid: &str) {
        let (environment, of, entry) =
            (self.environment.clone(), uid.to_owned(), self.entry(uid).cloned());
        self.spawn(uid, async move { environment.undo_steps(&of, entry.as_ref()).await.into() });
    }

    /// Answers the callers with an error, and keeps the claim with the devices of its old allocation. A new allocation
    /// has to wait for their release.
    pub(super) fn refuse_release(&mut self, uid: &str, why: String) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.answer_preparing(&Err(format!(
            "devices of its earlier allocation cannot be released: {why}"
        )));
        slot.answer_releasing(&Err(why));
        drop(self.save());
    }

    /// Releases the devices of a claim whose steps are undone, and drops its record.
    pub(super) fn release(&mut self, uid: &str) {
        self.environment.ledger.release_claim(uid);
        self.failures.clear(uid);
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.entry = None;
        slot.answer_releasing(&Ok(()));
    }

    /// Checks for orphaned claims.
    pub(super) fn find_orphans(&mut self) {
        let settled = self.slots.values().filter(|slot| slot.state.is_settled());
        let prepared = settled.filter_map(|slot| Some(slot.recorded()?.claim.clone()));
        let claims = prepared.chain(self.failures.refused());
        let known = claims.map(|claim| Suspect { requests: self.requests(&claim.uid), claim });
        let (known, environment): (Vec<_>, _) = (known.collect(), self.environment.clone());
        if !known.is_empty() {
            self.watches.spawn(async move { Notice::Orphaned(environment.orphaned(known).await) });
        }
    }

    /// Releases orphaned claims, except those that were requested since the check.
    pub(super) fn release_orphans(&mut self, suspects: Vec<Suspect>) {
        tracing::trace!(found = suspects.len(), "checked for orphaned claims");
        for Suspect { claim, requests } in suspects {
            if self.requests(&claim.uid) != requests {
                continue;
            }
            tracing::info!(%claim, uid = claim.uid, "releasing orphaned claim");
            // No caller waits for the answer.
            let (reply, _) = oneshot::channel();
            self.handle(Request { claim, operation: Operation::Release(reply) });
        }
    }

    fn requests(&self, uid: &str) -> Option<u64> {
        Some(self.slots.get(uid)?.requests)
    }
}

impl Environment {
    /// Undoes the steps while the claim is still recorded, so that its unclean devices are not allocated meanwhile.
    async fn undo_steps(&self, uid: &str, entry: Option<&PreparedClaim>) -> Result<(), String> {
        let (documents, of) = (self.documents.clone(), uid.to_owned());
        blocking(move || documents.remove(&of)).await?;
        if let Some(entry) = entry {
            self.reset_time_slices(entry).await?;
            self.remove_instances(&places(entry)).await?;
        }
        self.cleanup.leave(uid).await
    }
}
