//! MIG turned on and off, as the driver does it.

use serde::{Deserialize, Serialize};

use crate::state::Gpu;

/// Whether a GPU can be cut into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigMode {
    /// It is whole.
    Off,
    /// Only its instances can be used.
    On,
}

/// What comes of asking for a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The GPU has it.
    Done,
    /// Nothing is different: an instance stands, or a process computes.
    InUse,
    /// The GPU has it after a reset.
    AtReset,
}

/// The major number of the compute capability from which on it takes no reset (NVIDIA's MIG user guide).
const HOPPER: u8 = 9;

// === impl Gpu ===

impl Gpu {
    /// The mode that it has now.
    pub fn mig_mode(&self) -> MigMode {
        if self.mig.is_some() { MigMode::On } else { MigMode::Off }
    }

    /// Asks for a mode.
    pub fn ask_for_mig(&mut self, wanted: MigMode) -> Asked {
        if self.mig_mode() == wanted {
            self.mig_at_reset = None;
            return Asked::Done;
        }
        let is_cut = self.mig.as_ref().is_some_and(|instances| !instances.is_empty());
        if is_cut || !self.live.processes.is_empty() {
            return Asked::InUse;
        }
        if self.card.compute_capability.major < HOPPER {
            self.mig_at_reset = Some(wanted);
            return Asked::AtReset;
        }
        self.mig = (wanted == MigMode::On).then(Vec::new);
        Asked::Done
    }
}
