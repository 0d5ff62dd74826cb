//! Panics of tasks go on in the task that owns them: a stage without one of its tasks would stand still in silence.

use tokio::task::JoinError;

/// Notes the end of a task. Panics as the task did; a task that was aborted ended on purpose.
pub(crate) fn carry_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
