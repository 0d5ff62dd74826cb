//! Claims of an earlier agent, from its state file and the kubelet's checkpoint.
//!
//! The copy of the state file replaces one that is absent or damaged.
//!
//! | state file | kubelet's checkpoint | devices of claims |
//! | --- | --- | --- |
//! | read | any | those of both |
//! | absent or damaged | read | those of the checkpoint |
//! | damaged, or not readable now | not read | unknown: nothing is allocated or served until the file is repaired or removed |
//! | absent | not read | unknown, until no [trace](super::traces) of a claim is left: claims are released meanwhile |

use std::{collections::BTreeSet, path::PathBuf};

use windlass_config::DraOffer;
use windlass_host::{causes, state_file::StateFileError};

use super::{
    document::ClaimDocuments,
    kubelet_checkpoint::{KubeletCheckpoint, KubeletCheckpointError},
    record::{ClaimFile, Records},
};

/// Reason why the driver cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecoveryError {
    /// The state file may be readable later. Starting without it would allocate devices twice, and overwrite it.
    #[error(transparent)]
    StateFileUnreadable(StateFileError),
    #[error(
        "devices of claims unknown: {}, and {}; remove {}: the agent then learns of claims as the kubelet \
         releases them",
        causes(state_file), causes(checkpoint), file.display()
    )]
    BothUnreadable { state_file: StateFileError, checkpoint: KubeletCheckpointError, file: PathBuf },
}

/// State file and checkpoint, each read once.
#[derive(Debug)]
pub struct RecoveredClaims {
    /// The state file; `None` if it is absent.
    state_file: Result<Option<Records>, StateFileError>,
    checkpoint: Result<Records, KubeletCheckpointError>,
}

// === impl RecoveredClaims ===

impl RecoveredClaims {
    /// Reads state file and checkpoint. Blocks.
    pub(super) fn read(file: &ClaimFile, kubelet: &KubeletCheckpoint) -> Self {
        Self { state_file: file.read(), checkpoint: kubelet.records() }
    }

    /// Claims and their devices, if known.
    pub(super) fn claims(&self) -> Records {
        let mut records = Records::new();
        records.extend(
            self.checkpoint.iter().flatten().map(|(uid, record)| (uid.clone(), record.clone())),
        );
        let state_file = self.state_file.iter().flatten().flatten();
        records.extend(state_file.map(|(uid, record)| (uid.clone(), record.clone())));
        records
    }

    /// True if neither file gives the claims.
    pub(super) fn is_unreadable(&self) -> bool {
        !matches!(self.state_file, Ok(Some(_))) && self.checkpoint.is_err()
    }

    /// True if the state file is absent, and the checkpoint unreadable.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.state_file, Ok(None)) && self.checkpoint.is_err()
    }

    /// True if only the kubelet's checkpoint gives the claims.
    pub(super) fn is_from_kubelet_only(&self) -> bool {
        self.state_file.is_err() && self.checkpoint.is_ok()
    }

    /// Records to continue with. A damaged state file is renamed if the checkpoint replaces it. Documents of unknown
    /// claims are removed. Blocks.
    pub(super) fn restore(
        self,
        file: &ClaimFile,
        documents: &ClaimDocuments,
        offer: DraOffer,
    ) -> Result<Records, RecoveryError> {
        if matches!(self.state_file, Ok(Some(_))) {
            // If the copy was read, this renames the damaged file.
            file.set_aside();
        }
        let (mut records, checkpoint) = match (self.state_file, self.checkpoint) {
            (Ok(records), Ok(checkpoint)) => (records.unwrap_or_default(), checkpoint),
            // The documents stay: they are the only trace of unknown claims.
            (Ok(None), Err(_)) => return Ok(Records::new()),
            // The documents stay: without the checkpoint no document is known to be orphaned.
            (Ok(Some(records)), Err(error)) => {
                // Without claims on the node, a missing checkpoint is normal, and not logged.
                if offer != DraOffer::Off || !records.is_empty() {
                    let reason = causes(&error);
                    tracing::info!(why = reason, "claims restored from the agent's record alone");
                }
                return Ok(records);
            }
            (Err(state_file), _) if state_file.is_retryable() => {
                return Err(RecoveryError::StateFileUnreadable(state_file));
            }
            (Err(state_file), Err(checkpoint)) => {
                let file = file.path().to_owned();
                return Err(RecoveryError::BothUnreadable { state_file, checkpoint, file });
            }
            (Err(_), Ok(checkpoint)) => {
                file.set_aside();
                (Records::new(), checkpoint)
            }
        };
        for (uid, record) in checkpoint {
            records.entry(uid).or_insert_with_key(|uid| {
                let claim = &record.claim;
                tracing::warn!(%claim, uid, "claim known from the kubelet's checkpoint only");
                record
            });
        }
        let known_uids: BTreeSet<_> = records.keys().cloned().collect();
        documents.remove_orphans(&known_uids);
        Ok(records)
    }
}
