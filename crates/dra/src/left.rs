//! What an earlier agent left of claims, by its own record and, where that says nothing, by the kubelet's.
//!
//! The copy of our own record counts as the record where that is absent or damaged.
//!
//! | own record | kubelet's record | claims have |
//! | --- | --- | --- |
//! | read | any | what both say |
//! | absent or damaged | read | what it says |
//! | damaged, or not to be read now | not read | unknown: nothing is given away or served until somebody mends or removes it |
//! | absent | not read | unknown, until no [trace](super::doubt) of a claim is left: claims are released meanwhile |

use std::{collections::BTreeSet, path::PathBuf};

use windlass_config::DraOffer;
use windlass_host::{causes, state_file::Unreadable};

use super::{
    document::ClaimDocuments,
    kubelet_record::{KubeletRecord, KubeletRecordError},
    record::{ClaimFile, Records},
};

/// Why nothing can go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum NothingLeft {
    /// A record that may be understood another day: to go without it would hand devices out twice, and write
    /// over it.
    #[error(transparent)]
    Later(Unreadable),
    #[error(
        "it is not known what claims have: {}, and {}; remove {}, and claims that are there still are found \
         out as the kubelet releases them",
        causes(ours), causes(kubelets), file.display()
    )]
    Neither { ours: Unreadable, kubelets: KubeletRecordError, file: PathBuf },
}

/// Both records, as they were read once.
#[derive(Debug)]
pub struct Left {
    /// `None` if there is no record.
    ours: Result<Option<Records>, Unreadable>,
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
        let ours = self.ours.iter().flatten().flatten();
        records.extend(ours.map(|(uid, it)| (uid.clone(), it.clone())));
        records
    }

    /// Whether neither record says who has what.
    pub(super) fn is_silent(&self) -> bool {
        !matches!(self.ours, Ok(Some(_))) && self.kubelets.is_err()
    }

    /// Whether that is because there is no record, and the kubelet's cannot be read.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.ours, Ok(None)) && self.kubelets.is_err()
    }

    /// Whether the kubelet's record alone says so.
    pub(super) fn is_hearsay(&self) -> bool {
        self.ours.is_err() && self.kubelets.is_ok()
    }

    /// What is to go on. A record of ours that nobody will understand is set aside where another stands in,
    /// and documents of claims that neither record has are removed. Blocks.
    pub(super) fn taken_up(
        self,
        file: &ClaimFile,
        documents: &ClaimDocuments,
        offer: DraOffer,
    ) -> Result<Records, NothingLeft> {
        if matches!(self.ours, Ok(Some(_))) {
            // Its copy was read.
            file.set_aside();
        }
        let (mut records, kubelets) = match (self.ours, self.kubelets) {
            (Ok(records), Ok(kubelets)) => (records.unwrap_or_default(), kubelets),
            // What nobody knows of may have a document all the same.
            (Ok(None), Err(_)) => return Ok(Records::new()),
            // Nobody can say which documents are of no claim.
            (Ok(Some(records)), Err(error)) => {
                // Of no interest where there never were claims.
                if offer != DraOffer::Off || !records.is_empty() {
                    let why = causes(&error);
                    tracing::info!(why, "only the agent's record says what claims have");
                }
                return Ok(records);
            }
            (Err(ours), _) if ours.is_for_later() => return Err(NothingLeft::Later(ours)),
            (Err(ours), Err(kubelets)) => {
                let file = file.path().to_owned();
                return Err(NothingLeft::Neither { ours, kubelets, file });
            }
            (Err(_), Ok(kubelets)) => {
                file.set_aside();
                (Records::new(), kubelets)
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
