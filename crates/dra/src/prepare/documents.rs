//! Repair of claims' documents that were removed, perhaps with their folder and the record's copy in it.

use windlass_host::blocking;

use super::{Input, Preparer};

impl Preparer {
    /// Looks for the documents of all claims: a restarting container needs its claim's document, and the
    /// kubelet does not ask for the claim then.
    pub(super) fn check(&mut self) {
        self.journal.check();
        for uid in self.slots.keys().cloned().collect::<Vec<_>>() {
            self.step(&uid, Input::Check);
        }
    }

    /// Rewrites a document that differs from the record, after the record's copy: a folder with documents then has
    /// all that the next agent needs to write them again.
    pub(super) fn restore(&mut self, uid: &str) {
        let Some(entry) = self.entry(uid).cloned() else { return };
        let (documents, checked) = (self.environment.documents.clone(), self.journal.checked());
        self.spawn(uid, async {
            checked.await;
            blocking(move || documents.restore(&entry)).await.into()
        });
    }

    /// Logs why a document cannot be rewritten, once.
    pub(super) fn note(&mut self, uid: &str, unwritten: Option<String>) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        if slot.unwritten == unwritten {
            return;
        }
        if let Some(why) = &unwritten {
            tracing::warn!(
                why,
                "CDI document of a claim not written: its containers cannot restart"
            );
        }
        slot.unwritten = unwritten;
    }
}
