//! The reset of a GPU, which ends whatever a tenant left on it: memory, contexts that hang, counted errors.
//!
//! `nvidia-smi` refuses one that anybody has open, the agent like every monitor, so NVML is let go of for it.
//! NVLinks go down and come back with the reset: no other GPU that is linked may be in use meanwhile.

use tokio::time::{Duration, Instant};

use super::{
    memory::patiently,
    steps::{Bench, StepError},
};

/// Resets the GPU, and waits until the driver answers for it again.
pub(super) async fn reset(bench: &Bench, limit: Duration) -> Result<(), StepError> {
    let until = Instant::now() + limit;
    check(bench)?;
    let Some(recess) = bench.gpus.recess().await else {
        return Err(StepError::NotReset("the agent ends".to_owned()));
    };
    // The last moment: whoever takes a linked GPU from now on finds its links down for a while.
    check(bench)?;
    bench.nvidia_smi.run(&["--gpu-reset", "-i", bench.device.as_str()]).await?;
    drop(recess);
    patiently(until, || bench.gpus.computing(&bench.device)).await?;
    tracing::info!(device = %bench.device, "GPU reset");
    Ok(())
}

fn check(bench: &Bench) -> Result<(), StepError> {
    if let Some(obstacle) = bench.neighbours.obstacle {
        return Err(StepError::NotReset(obstacle.to_owned()));
    }
    let ledger = bench.ledger.borrow();
    if !ledger.is_complete() {
        return Err(StepError::NotReset("it is not known yet what containers have".to_owned()));
    }
    match bench.neighbours.linked.iter().find(|it| ledger.is_in_use(it)) {
        None => Ok(()),
        Some(it) => {
            let why = format!("{}, to which it has NVLinks, is in use", it.device);
            Err(StepError::NotReset(why))
        }
    }
}
