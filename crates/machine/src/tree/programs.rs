//! Working driver programs: the MPS control daemon with injectable faults, and `nvidia-smi` with the operations that
//! NVML lacks.

use std::path::Path;

use super::Tree;

const MPS_CONTROL: &str = "usr/bin/nvidia-cuda-mps-control";
const NVIDIA_SMI: &str = "usr/bin/nvidia-smi";

// === impl Tree ===

impl Tree {
    /// Adds the programs of the driver.
    pub(super) fn programs(&mut self) {
        self.program(Path::new(MPS_CONTROL), include_str!("mps-control.sh"));
        self.program(Path::new(NVIDIA_SMI), include_str!("nvidia-smi.sh"));
    }
}
