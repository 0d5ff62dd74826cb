//! A replica of the extender, in this process.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_control::{Config, RunError, run};

use super::pods::NAMESPACE;

/// Running extender. A drop aborts it at once, without releasing its Lease.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) address: SocketAddr,
    stop: CancellationToken,
    task: JoinSet<Result<(), RunError>>,
}

// === impl Replica ===

impl Replica {
    pub(super) async fn start(kubeconfig: PathBuf, identity: &str) -> Result<Self> {
        let (address_sender, address) = oneshot::channel();
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            metrics: None,
            page: None,
            tls: None,
            kubeconfig: Some(kubeconfig),
            namespace: Some(NAMESPACE.to_owned()),
            lease: "windlass-extender".to_owned(),
            identity: identity.to_owned(),
            gang_wait: Duration::from_secs(Config::DEFAULT_GANG_WAIT_SECONDS),
        };
        // The receiver is gone if the demo has ended.
        let ready = move |address| {
            let _ = address_sender.send(address);
        };
        let mut task = JoinSet::new();
        let stop = CancellationToken::new();
        task.spawn(run(config, stop.clone(), ready));
        if let Ok(address) = address.await {
            return Ok(Self { address, stop, task });
        }
        let result = task.join_next().await.context("the extender was never started")?;
        result.context("the extender has ended")??;
        bail!("the extender has ended")
    }

    /// Stops the extender as SIGTERM does: it releases its Lease.
    pub(super) async fn shut_down(mut self) -> Result<()> {
        self.stop.cancel();
        let result = self.task.join_next().await.context("the extender was never started")?;
        Ok(result.context("the extender has panicked")??)
    }
}
