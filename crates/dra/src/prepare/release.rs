//! Release of a claim, step by step, and search for orphaned claims.

use tokio::sync::oneshot;
use windlass_host::blocking;

use super::{
    Preparer, WatchOutcome,
    environment::{Environment, OrphanCandidate},
    partitions::placements,
};
use crate::{
    queue::{Operation, Request},
    record::PreparedClaim,
};

impl Preparer {
    /// Undoes the steps of a claim's preparation. A claim without a record may still have devices to clean.
    pub(super) fn undo_steps(&mut self, uid: &str) {
        let (environment, owned_uid, record) =
            (self.environment.clone(), uid.to_owned(), self.record(uid).cloned());
        self.spawn(
            uid,
            async move { environment.undo_steps(&owned_uid, record.as_ref()).await.into() },
        );
    }

    /// Answers the callers with an error, and keeps the claim with the devices of its old allocation. A new allocation
    /// has to wait for their release.
    pub(super) fn refuse_release(&mut self, uid: &str, error: String) {
        let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
        tracked.reply_to_prepare(&Err(format!(
            "devices of its earlier allocation cannot be released: {error}"
        )));
        tracked.reply_to_release(&Err(error));
        // The write is queued; no caller waits for it.
        drop(self.save());
    }

    /// Releases the devices of a claim whose steps are undone, and drops its record.
    pub(super) fn release(&mut self, uid: &str) {
        self.environment.ledger.release_claim(uid);
        self.failures.clear(uid);
        let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
        tracked.record = None;
        tracked.reply_to_release(&Ok(()));
    }

    /// Searches for orphaned claims: the kubelet no longer knows them, and by the API server they have no device here.
    /// Only claims with no work in progress can be orphaned.
    pub(super) fn find_orphans(&mut self) {
        let settled = self.tracked_claims.values().filter(|tracked| tracked.state.is_settled());
        let prepared =
            settled.filter_map(|tracked| Some(tracked.persisted_record()?.claim.clone()));
        let claims = prepared.chain(self.failures.refused());
        let candidates: Vec<_> = claims
            .map(|claim| OrphanCandidate { request_count: self.request_count(&claim.uid), claim })
            .collect();
        if candidates.is_empty() {
            return;
        }
        let environment = self.environment.clone();
        self.watches.spawn(async move {
            WatchOutcome::Orphaned(environment.find_orphaned(candidates).await)
        });
    }

    /// Releases orphaned claims, except those that were requested since the check.
    pub(super) fn release_orphans(&mut self, candidates: Vec<OrphanCandidate>) {
        tracing::trace!(found = candidates.len(), "checked for orphaned claims");
        for OrphanCandidate { claim, request_count } in candidates {
            if self.request_count(&claim.uid) != request_count {
                continue;
            }
            tracing::info!(%claim, uid = claim.uid, "releasing orphaned claim");
            // No caller waits for the answer.
            let (reply, _) = oneshot::channel();
            self.handle(Request { claim, operation: Operation::Release(reply) });
        }
    }

    /// Number of a claim's requests; `None` if the claim is not tracked.
    fn request_count(&self, uid: &str) -> Option<u64> {
        Some(self.tracked_claims.get(uid)?.request_count)
    }
}

impl Environment {
    /// Undoes the steps while the claim is still recorded, so that its unclean devices are not allocated meanwhile.
    async fn undo_steps(&self, uid: &str, record: Option<&PreparedClaim>) -> Result<(), String> {
        let (documents, owned_uid) = (self.documents.clone(), uid.to_owned());
        blocking(move || documents.remove(&owned_uid)).await?;
        if let Some(record) = record {
            self.reset_time_slices(record).await?;
            self.remove_instances(&placements(record)).await?;
        }
        self.cleanup.release_claim(uid).await
    }
}
