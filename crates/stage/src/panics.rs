//! Propagation of panics from a task to its owner. Without it, a stage that lost a task would hang silently.

use tokio::task::JoinError;

/// Resumes the panic of an ended task. Ignores a task that was aborted.
pub(crate) fn propagate_panic(result: Result<(), JoinError>) {
    if let Err(error) = result
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
