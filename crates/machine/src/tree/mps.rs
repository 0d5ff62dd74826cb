//! The driver's MPS control daemon: a program that serves, and that can be made to fail.

use std::path::Path;

use super::Tree;

const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";

// === impl Tree ===

impl Tree {
    /// The program comes with the driver.
    pub(super) fn mps(&mut self) {
        self.program(Path::new(PROGRAM), include_str!("mps-control.sh"));
    }
}
