//! Documents of claims that somebody else removed, perhaps with the folder that they were in.

use super::{Event, Preparer, blocking, slot::Work};
use crate::record::{Entry, Stage};

impl Preparer {
    /// Writes those anew that are not as the record has them: a container that is started again needs its
    /// claim's document, and nobody asks for the claim then.
    pub(super) fn restore_documents(&mut self) {
        let mut entries: Vec<Entry> = Vec::new();
        for slot in self.slots.values_mut().filter(|slot| slot.work.is_none()) {
            let entry = slot.entry.as_ref().filter(|it| it.state == Stage::PrepareCompleted);
            let Some(entry) = entry.cloned() else { continue };
            // No claim is released meanwhile whose document would be left behind.
            slot.work = Some(Work::Restoring);
            entries.push(entry);
        }
        if entries.is_empty() {
            return self.unwritten.clear();
        }
        let documents = self.ground.documents.clone();
        self.tasks.spawn(async move {
            let (entries, failed) = blocking(move || {
                let failed = documents.restore(&entries);
                (entries, failed)
            })
            .await;
            let uids = entries.into_iter().map(|entry| entry.claim.uid);
            Event::Restored(uids.collect(), failed)
        });
    }

    /// Goes on with what was wanted of these claims meanwhile; says what stands in the way when that is news.
    pub(super) fn restored(&mut self, uids: Vec<String>, failed: Vec<String>) {
        for uid in uids {
            if let Some(slot) = self.slots.get_mut(&uid) {
                slot.work = None;
            }
            self.advance(&uid);
        }
        if failed != self.unwritten {
            for why in &failed {
                tracing::warn!(why, "containers of a claim cannot be started again");
            }
            self.unwritten = failed;
        }
    }
}
