//! Documents of claims that somebody else removed, perhaps with the folder that they were in.

use super::{Preparer, blocking};
use crate::dra::record::{Entry, Stage};

impl Preparer {
    /// Writes those anew that are not as the record has them: a container that is started again needs its
    /// claim's document, and nobody asks for the claim then.
    pub(super) async fn restore_documents(&mut self) {
        let resting = self.slots.values().filter(|slot| slot.work.is_none());
        let entries = resting.filter_map(|slot| slot.entry.as_ref());
        let done = entries.filter(|entry| entry.state == Stage::PrepareCompleted);
        let done: Vec<Entry> = done.cloned().collect();
        if done.is_empty() {
            return;
        }
        let documents = self.ground.documents.clone();
        // It is waited for: no claim is released meanwhile whose document would be left behind.
        let failed = blocking(move || documents.restore(&done)).await;
        if failed != self.unwritten {
            for why in &failed {
                tracing::warn!(why, "containers of a claim cannot be started again");
            }
            self.unwritten = failed;
        }
    }
}
