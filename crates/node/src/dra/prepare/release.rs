//! Releasing a claim, step by step, and finding those that nobody has any more.

use tokio::sync::oneshot;

use super::{
    Event, Preparer,
    ground::{Ground, blocking},
    partitions::places,
    slot::Work,
};
use crate::{
    dra::{
        desk::{Request, Wish},
        record::{Entry, Stage},
    },
    ledger::ClaimRef,
};

impl Preparer {
    pub(super) fn remove(&mut self, uid: &str) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.work = Some(Work::Removing);
        let Some(entry) = slot.entry.clone() else { return };
        let (ground, uid) = (self.ground.clone(), uid.to_owned());
        self.tasks.spawn(async move { Event::Removed(uid, ground.clear(&entry).await) });
    }

    /// Has the record forget a claim that nothing else is left of.
    pub(super) fn forget(&mut self, uid: &str) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.work = slot.entry.take().map(Work::Forgetting);
        let (recorded, uid) = (self.save(), uid.to_owned());
        self.tasks.spawn(async move { Event::Forgotten(uid, recorded.await) });
    }

    /// Tells those who wait why a claim is not released; it is still ours.
    pub(super) fn keep(&mut self, uid: &str, why: String) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        if let Some(Work::Forgetting(mut entry)) = slot.work.take() {
            // Its document is gone.
            entry.state = Stage::PrepareStarted;
            slot.entry = Some(entry);
        }
        slot.released(&Err(why));
        drop(self.save());
        self.advance(uid);
    }

    pub(super) fn let_go(&mut self, uid: &str) {
        self.ground.ledger.release_claim(uid);
        self.ground.troubles.forget(uid);
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.work = None;
        tracing::info!(claim = %slot.claim, uid, "claim released");
        slot.released(&Ok(()));
        self.advance(uid);
    }

    /// Looks for claims that nobody has any more.
    pub(super) fn collect(&mut self) {
        let idle = self.slots.values().filter(|slot| slot.work.is_none());
        let prepared: Vec<_> =
            idle.filter_map(|slot| Some(slot.entry.as_ref()?.claim.clone())).collect();
        let ground = self.ground.clone();
        if !prepared.is_empty() {
            self.tasks.spawn(async move { Event::Stale(ground.stale(prepared).await) });
        }
    }

    pub(super) fn release_stale(&mut self, claims: Vec<ClaimRef>) {
        for claim in claims {
            tracing::info!(%claim, uid = claim.uid, "nobody has the claim any more, it is released");
            // Nobody waits for the answer.
            let (reply, _) = oneshot::channel();
            self.ask(Request { claim, wish: Wish::Release(reply) });
        }
    }
}

impl Ground {
    /// Removes what there is for a claim, while it is in the record: nobody else gets what is dirty by now.
    async fn clear(&self, entry: &Entry) -> Result<(), String> {
        let (documents, uid) = (self.documents.clone(), entry.claim.uid.clone());
        blocking(move || documents.remove(&uid)).await?;
        self.set_time_slices_back(entry).await?;
        self.unmake(&places(entry)).await?;
        self.handovers.leave(&entry.claim.uid).await
    }
}
