//! What an earlier agent left of claims, by its own record and, where that says nothing, by the kubelet's.

use std::collections::BTreeSet;

use super::{
    document::ClaimDocuments,
    kubelet_record::{KubeletRecord, KubeletRecordError},
    record::{ClaimFile, Records},
};
use crate::{causes, kept::Unreadable};

/// Both records, as they were read once.
pub(crate) struct Left {
    ours: Result<Records, Unreadable>,
    kubelets: Result<Records, KubeletRecordError>,
}

// === impl Left ===

impl Left {
    /// Blocks.
    pub(super) fn read(file: &ClaimFile, kubelet: &KubeletRecord) -> Self {
        Self { ours: file.read(), kubelets: kubelet.entries() }
    }

    /// Who has what, as far as it can be read.
    pub(super) fn held(&self) -> Records {
        let mut records = Records::new();
        records.extend(self.kubelets.iter().flatten().map(|(uid, it)| (uid.clone(), it.clone())));
        records.extend(self.ours.iter().flatten().map(|(uid, it)| (uid.clone(), it.clone())));
        records
    }

    /// What is to go on. A record of ours that nobody will understand is set aside, and documents of claims
    /// that neither record has are removed. Without a record that may be understood another day nothing is
    /// served: that would hand devices out twice, and write over what is there. Blocks.
    pub(super) fn taken_up(
        self,
        file: &ClaimFile,
        documents: &ClaimDocuments,
    ) -> Result<Records, Unreadable> {
        let mut records = match self.ours {
            Ok(records) => records,
            Err(unreadable) if unreadable.is_for_later() => return Err(unreadable),
            Err(_) => {
                file.set_aside();
                Records::new()
            }
        };
        let kubelets = match self.kubelets {
            Ok(entries) => entries,
            // Nobody can say which documents are of no claim.
            Err(error) => {
                tracing::warn!(
                    error = causes(&error),
                    "only the agent's record says what claims have"
                );
                return Ok(records);
            }
        };
        for (uid, entry) in kubelets {
            records.entry(uid).or_insert_with_key(|uid| {
                let claim = &entry.claim;
                tracing::warn!(%claim, uid, "only the kubelet's record has a claim");
                entry
            });
        }
        let known: BTreeSet<_> = records.keys().cloned().collect();
        documents.remove_others(&known);
        Ok(records)
    }
}
