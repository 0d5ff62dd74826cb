//! Named tasks of the agent, started one by one and stopped together.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_host::deadline;

/// Running tasks; each returns its name.
#[derive(Debug, Default)]
pub(super) struct TaskSet {
    tasks: JoinSet<&'static str>,
    /// Names of running tasks.
    running: Vec<&'static str>,
    stop: CancellationToken,
}

/// Shutdown deadline; systemd and the kubelet allow more.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

// === impl TaskSet ===

impl TaskSet {
    pub(super) fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.running.push(name);
        self.tasks.spawn(async move {
            task.await;
            name
        });
    }

    /// Waits for a task to end, which is an error before shutdown.
    pub(super) async fn next_exit(&mut self) -> Result<&'static str, JoinError> {
        match self.join_next().await {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    async fn join_next(&mut self) -> Option<Result<&'static str, JoinError>> {
        let result = self.tasks.join_next().await?;
        if let Ok(name) = &result
            && let Some(position) = self.running.iter().position(|running| running == name)
        {
            self.running.swap_remove(position);
        }
        Some(result)
    }

    /// Cancels all tasks and waits up to [`SHUTDOWN_DEADLINE`].
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        let tasks_ended = async { while self.join_next().await.is_some() {} };
        if deadline::timeout(SHUTDOWN_DEADLINE, tasks_ended).await.is_err() {
            let parts = self.running.join(", ");
            tracing::warn!(limit = ?SHUTDOWN_DEADLINE, parts, "parts still running at the shutdown deadline");
        }
    }
}
