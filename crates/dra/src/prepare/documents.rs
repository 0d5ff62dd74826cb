//! Documents of claims that somebody else removed, perhaps with the folder that they and the record's copy were in.

use super::{Input, Preparer, blocking};

impl Preparer {
    /// Looks for the documents of all claims: a container that is started again needs its claim's document, and nobody
    /// asks for the claim then.
    pub(super) fn look(&mut self) {
        self.journal.look();
        for uid in self.slots.keys().cloned().collect::<Vec<_>>() {
            self.step(&uid, Input::Look);
        }
    }

    /// Writes a document anew that is not as the record has it. The record's copy goes before: a folder that has the
    /// documents has what the next agent needs to write them again.
    pub(super) fn restore(&mut self, uid: &str) {
        let Some(entry) = self.entry(uid).cloned() else { return };
        let (documents, looked) = (self.ground.documents.clone(), self.journal.looked());
        self.spawn(uid, async {
            looked.await;
            blocking(move || documents.restore(&entry)).await.into()
        });
    }

    /// Says what stands in the way of a document when that is news.
    pub(super) fn note(&mut self, uid: &str, unwritten: Option<String>) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        if slot.unwritten == unwritten {
            return;
        }
        if let Some(why) = &unwritten {
            tracing::warn!(why, "containers of a claim cannot be started again");
        }
        slot.unwritten = unwritten;
    }
}
