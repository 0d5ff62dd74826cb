//! The driver's programs that do something: the MPS control daemon, which can be made to fail, and what
//! `nvidia-smi` does for which NVML has no call.

use std::path::Path;

use super::Tree;

const MPS_CONTROL: &str = "usr/bin/nvidia-cuda-mps-control";
const SMI: &str = "usr/bin/nvidia-smi";

// === impl Tree ===

impl Tree {
    /// The programs come with the driver.
    pub(super) fn programs(&mut self) {
        self.program(Path::new(MPS_CONTROL), include_str!("mps-control.sh"));
        self.program(Path::new(SMI), include_str!("nvidia-smi.sh"));
    }
}
