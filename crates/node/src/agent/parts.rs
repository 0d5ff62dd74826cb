//! What runs inside the agent, each part under its name, all ended together.

use std::time::Duration;

use crate::attended;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// What runs, each part giving its name when it ends.
#[derive(Debug, Default)]
pub(super) struct Parts {
    tasks: JoinSet<&'static str>,
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
        self.tasks.spawn(async move {
            part.await;
            name
        });
    }

    /// Waits for the first part that ends, which none should before it is told to.
    pub(super) async fn next_end(&mut self) -> Result<&'static str, JoinError> {
        match self.tasks.join_next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    /// Tells all parts to end, and waits for them for a while.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if attended::timeout(GRACE, ended).await.is_err() {
            tracing::warn!(limit = ?GRACE, "not everything ended in time");
        }
    }
}
