//! `nvidia-smi`, for functions that NVML lacks.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{
    Host, Roots,
    driver_program::{DriverProgram, MissingProgram, system_root},
    external::{ProgramError, run_to_end},
};

/// Runner of the driver's `nvidia-smi`. Runs one process at a time: each opens every GPU, and a reset needs all handles
/// closed.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    driver: Host,
    permit: Arc<Semaphore>,
}

/// Error of a run. The caller limits its time.
#[derive(Debug, thiserror::Error)]
pub enum SmiError {
    /// The driver's installation lacks the program.
    #[error("{0}: install the driver's utilities")]
    Missing(#[from] MissingProgram),
    /// The program did not start, or failed.
    #[error(transparent)]
    Failed(#[from] ProgramError),
}

const NAME: &str = "nvidia-smi";

// === impl NvidiaSmi ===

impl NvidiaSmi {
    /// `nvidia-smi` of the driver under these roots.
    pub fn new(roots: &Roots) -> Self {
        Self { driver: roots.driver.clone(), permit: Arc::new(Semaphore::new(1)) }
    }

    /// Runs the program after the runs of earlier callers. Dropping the future kills the program.
    pub async fn run(&self, arguments: &[&str]) -> Result<(), SmiError> {
        let _permit = self.permit.acquire().await.expect("the semaphore is never closed");
        let program = DriverProgram::find(NAME, &self.driver, system_root(&self.driver))?;
        let mut command = program.command();
        command.args(arguments);
        Ok(run_to_end(NAME, command).await?)
    }
}
