//! Repair of deleted CDI documents of claims, and of the copy of the claims' state file in the same folder.

use windlass_host::blocking;

use super::{Input, Preparer};

impl Preparer {
    /// Checks the documents of all claims. A container needs its claim's document to restart, and the kubelet does not
    /// call prepare before that.
    pub(super) fn check_documents(&mut self) {
        self.journal.check();
        for uid in self.tracked_claims.keys().cloned().collect::<Vec<_>>() {
            self.step(&uid, Input::Check);
        }
    }

    /// Rewrites a document that differs from the record. The copy of the state file is written first, so that a folder
    /// with documents always has the data to write them again.
    pub(super) fn restore_document(&mut self, uid: &str) {
        let Some(record) = self.record(uid).cloned() else { return };
        let (documents, journal_checked) =
            (self.environment.documents.clone(), self.journal.wait_checked());
        self.spawn(uid, async {
            journal_checked.await;
            blocking(move || documents.restore(&record)).await.into()
        });
    }

    /// Logs why a document cannot be rewritten, once.
    pub(super) fn log_document_error(&mut self, uid: &str, document_error: Option<String>) {
        let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
        if tracked.document_error == document_error {
            return;
        }
        if let Some(reason) = &document_error {
            tracing::warn!(
                why = reason,
                "CDI document of a claim not written: its containers cannot restart"
            );
        }
        tracked.document_error = document_error;
    }
}
