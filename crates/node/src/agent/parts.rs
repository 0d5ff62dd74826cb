//! What runs inside the agent, each part under its name, all ended together.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_host::deadline;

/// What runs, each part giving its name when it ends.
#[derive(Debug, Default)]
pub(super) struct Parts {
    tasks: JoinSet<&'static str>,
    /// Those that have not ended.
    running: Vec<&'static str>,
    stop: CancellationToken,
}

/// How long the parts may take to end; systemd and the kubelet allow longer.
const GRACE: Duration = Duration::from_secs(5);

// === impl Parts ===

impl Parts {
    /// What tells the parts to end.
    pub(super) fn token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a part.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        self.running.push(name);
        self.tasks.spawn(async move {
            part.await;
            name
        });
    }

    /// Waits for the first part that ends, which none should before it is told to.
    pub(super) async fn next_end(&mut self) -> Result<&'static str, JoinError> {
        match self.join_next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    async fn join_next(&mut self) -> Option<Result<&'static str, JoinError>> {
        let ended = self.tasks.join_next().await?;
        if let Ok(name) = &ended
            && let Some(place) = self.running.iter().position(|running| running == name)
        {
            self.running.swap_remove(place);
        }
        Some(ended)
    }

    /// Tells all parts to end, and waits for them for a while.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        let ended = async { while self.join_next().await.is_some() {} };
        if deadline::timeout(GRACE, ended).await.is_err() {
            let parts = self.running.join(", ");
            tracing::warn!(limit = ?GRACE, parts, "not everything ended in time");
        }
    }
}
