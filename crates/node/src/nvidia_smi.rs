//! `nvidia-smi`, for what NVML has no call for.

use crate::{
    driver_program::{DriverProgram, Missing, whole_system},
    host::{Host, Roots},
    outside::{ProgramError, run_to_end},
};

/// The program of the node's driver.
#[derive(Clone, Debug)]
pub(crate) struct NvidiaSmi(Host);

/// Why it did not do what it was told. The time limit is the caller's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SmiError {
    #[error("{0}; it comes with the driver's utilities")]
    Missing(#[from] Missing),
    #[error(transparent)]
    Failed(#[from] ProgramError),
}

const NAME: &str = "nvidia-smi";

// === impl NvidiaSmi ===

impl NvidiaSmi {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self(roots.driver.clone())
    }

    /// Has it do something. If this is dropped before the end, it is killed.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<(), SmiError> {
        let program = DriverProgram::find(NAME, &self.0, whole_system(&self.0))?;
        let mut command = program.command();
        command.args(arguments);
        Ok(run_to_end(NAME, command).await?)
    }
}
