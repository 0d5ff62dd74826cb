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
pub enum ModeChange {
    /// The mode is in effect.
    Done,
    /// The mode is unchanged, because an instance exists or a process computes.
    InUse,
    /// The mode takes effect after a reset.
    AtReset,
}

/// First major compute capability whose MIG mode changes without a reset (NVIDIA's MIG user guide).
const HOPPER: u8 = 9;

// === impl Gpu ===

impl Gpu {
    /// Current MIG mode.
    pub fn mig_mode(&self) -> MigMode {
        if self.mig.is_some() { MigMode::On } else { MigMode::Off }
    }

    /// Requests a mode, as `nvidia-smi -mig` does.
    pub fn ask_for_mig(&mut self, mode: MigMode) -> ModeChange {
        if self.mig_mode() == mode {
            self.mig_at_reset = None;
            return ModeChange::Done;
        }
        let has_instances = self.mig.as_ref().is_some_and(|instances| !instances.is_empty());
        if has_instances || !self.live.processes.is_empty() {
            return ModeChange::InUse;
        }
        if self.card.compute_capability.major < HOPPER {
            self.mig_at_reset = Some(mode);
            return ModeChange::AtReset;
        }
        self.mig = (mode == MigMode::On).then(Vec::new);
        ModeChange::Done
    }
}
