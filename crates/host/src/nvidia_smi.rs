//! `nvidia-smi`, for what NVML has no call for.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{
    Host, Roots,
    driver_program::{DriverProgram, Missing, whole_system},
    external::{ProgramError, run_to_end},
};

/// The program of the node's driver. One runs at a time: it has every GPU open, and a reset is refused while
/// anybody has.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    driver: Host,
    turn: Arc<Semaphore>,
}

/// Why it did not do what it was told. The time limit is the caller's.
#[derive(Debug, thiserror::Error)]
pub enum SmiError {
    /// The driver's installation has no such program.
    #[error("{0}; it comes with the driver's utilities")]
    Missing(#[from] Missing),
    /// The program could not be run, or failed.
    #[error(transparent)]
    Failed(#[from] ProgramError),
}

const NAME: &str = "nvidia-smi";

// === impl NvidiaSmi ===

impl NvidiaSmi {
    /// The program of the driver that lies under these roots.
    pub fn new(roots: &Roots) -> Self {
        Self { driver: roots.driver.clone(), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Has it do something, when those who asked before are done. If this is dropped before the end, it is
    /// killed.
    pub async fn run(&self, arguments: &[&str]) -> Result<(), SmiError> {
        let _turn = self.turn.acquire().await.expect("it is never closed");
        let program = DriverProgram::find(NAME, &self.driver, whole_system(&self.driver))?;
        let mut command = program.command();
        command.args(arguments);
        Ok(run_to_end(NAME, command).await?)
    }
}
