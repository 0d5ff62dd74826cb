//! Release of a claim, step by step, and search for orphaned claims.

use tokio::sync::oneshot;
use windlass_host::blocking;

use super::{
    Notice, Preparer,
    environment::{Environment, Suspect},
    partitions::places,
};
use crate::{
    queue::{Request, Wish},
    record::Entry,
};

impl Preparer {
    /// Undoes the steps of a claim. An unrecorded claim may still have devices to be cleaned.
    pub(super) fn remove(&mut self, uid: &str) {
        let (environment, of, entry) =
            (self.environment.clone(), uid.to_owned(), self.entry(uid).cloned());
        self.spawn(uid, async move { environment.clear(&of, entry.as_ref()).await.into() });
    }

    /// Answers the callers with an error; the claim stays. So do the devices of its old allocation, since
    /// the new ones would have to wait for them.
    pub(super) fn keep(&mut self, uid: &str, why: String) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.prepared(&Err(format!("what the claim had before cannot be released: {why}")));
        slot.released(&Err(why));
        drop(self.save());
    }

    /// Forgets a claim whose steps are undone, and frees its devices.
    pub(super) fn release(&mut self, uid: &str) {
        self.environment.ledger.release_claim(uid);
        self.troubles.forget(uid);
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.entry = None;
        slot.released(&Ok(()));
    }

    /// Looks for orphaned claims.
    pub(super) fn collect(&mut self) {
        let settled = self.slots.values().filter(|slot| slot.state.is_settled());
        let prepared = settled.filter_map(|slot| Some(slot.recorded()?.claim.clone()));
        let claims = prepared.chain(self.troubles.refused());
        let known = claims.map(|claim| Suspect { asked: self.asked(&claim.uid), claim });
        let (known, environment): (Vec<_>, _) = (known.collect(), self.environment.clone());
        if !known.is_empty() {
            self.watches.spawn(async move { Notice::Stale(environment.stale(known).await) });
        }
    }

    /// Releases stale claims, except those that were requested since the check.
    pub(super) fn release_stale(&mut self, suspects: Vec<Suspect>) {
        tracing::trace!(found = suspects.len(), "looked for claims that nobody has any more");
        for Suspect { claim, asked } in suspects {
            if self.asked(&claim.uid) != asked {
                continue;
            }
            tracing::info!(%claim, uid = claim.uid, "nobody has the claim any more, it is released");
            // No caller waits for the answer.
            let (reply, _) = oneshot::channel();
            self.ask(Request { claim, wish: Wish::Release(reply) });
        }
    }

    fn asked(&self, uid: &str) -> Option<u64> {
        Some(self.slots.get(uid)?.asked)
    }
}

impl Environment {
    /// Undoes the steps while the record still has the claim: its unclean devices are not allocated
    /// meanwhile.
    async fn clear(&self, uid: &str, entry: Option<&Entry>) -> Result<(), String> {
        let (documents, of) = (self.documents.clone(), uid.to_owned());
        blocking(move || documents.remove(&of)).await?;
        if let Some(entry) = entry {
            self.set_time_slices_back(entry).await?;
            self.unmake(&places(entry)).await?;
        }
        self.handovers.leave(uid).await
    }
}
