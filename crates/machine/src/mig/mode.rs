//! MIG mode changes, with the driver's rules.

use serde::{Deserialize, Serialize};

use crate::state::Gpu;

/// MIG mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigMode {
    /// The GPU is not partitioned.
    Off,
    /// Only instances of the GPU are usable.
    On,
}

/// Outcome of a mode request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeChangeOutcome {
    /// The mode is in effect.
    Applied,
    /// The mode is unchanged, because an instance exists or a process computes.
    InUse,
    /// The mode takes effect after a reset.
    PendingReset,
}

/// First major compute capability whose MIG mode changes without a reset (NVIDIA's MIG user guide).
const HOPPER_MAJOR: u8 = 9;

// === impl Gpu ===

impl Gpu {
    /// Current MIG mode.
    pub fn mig_mode(&self) -> MigMode {
        if self.mig.is_some() { MigMode::On } else { MigMode::Off }
    }

    /// Requests a mode, as `nvidia-smi -mig` does.
    pub fn set_mig_mode(&mut self, mode: MigMode) -> ModeChangeOutcome {
        if self.mig_mode() == mode {
            self.mig_at_reset = None;
            return ModeChangeOutcome::Applied;
        }
        let has_instances = self.mig.as_ref().is_some_and(|instances| !instances.is_empty());
        if has_instances || !self.live.processes.is_empty() {
            return ModeChangeOutcome::InUse;
        }
        if self.card.compute_capability.major < HOPPER_MAJOR {
            self.mig_at_reset = Some(mode);
            return ModeChangeOutcome::PendingReset;
        }
        self.mig = (mode == MigMode::On).then(Vec::new);
        ModeChangeOutcome::Applied
    }
}
