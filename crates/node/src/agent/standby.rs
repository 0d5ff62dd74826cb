//! An agent that waits for its turn: ready, so that the one before it may be ended, and serving nobody yet.
//!
//! Two pods of an update with surge are on one node for a while. Sockets, documents and records have one
//! owner at any moment, which is who has the lock; what the kubelet asks in between it asks again.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::deviceplugin::PLUGIN_DIR;

use super::{StartError, listen, lock};
use crate::{admin, config::Config};

/// How often the lock is tried; the kernel tells nobody that it is free.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until no other agent serves the kubelet.
///
/// # Flow
///
/// Where another does, health and readiness are answered with yes on the address for both, until it ends.
/// [`Agent::start`](super::Agent::start) follows.
///
/// # Errors
///
/// The kubelet's folder cannot be written, or the address cannot be had: two agents that share the host's
/// network cannot both have it.
pub async fn stand_by(config: &Config) -> Result<(), StartError> {
    let dir = config.kubelet_dir.join(PLUGIN_DIR);
    if !is_taken(lock(&dir).map(drop))? {
        return Ok(());
    }
    tracing::info!(kubelet = %dir.display(), "another agent serves: standing by until it ends");
    let listener = config.listen.map(listen).transpose()?;
    let stop = CancellationToken::new();
    let answering = async {
        match listener {
            Some(listener) => admin::stand_by(listener, stop.clone()).await,
            None => stop.cancelled().await,
        }
    };
    let waiting = async {
        let mut outcome = Ok(true);
        while matches!(outcome, Ok(true)) {
            sleep(LOOK).await;
            outcome = is_taken(lock(&dir).map(drop));
        }
        // The address is free again before the agent wants it.
        stop.cancel();
        outcome.map(drop)
    };
    tokio::join!(answering, waiting).1
}

fn is_taken(lock: Result<(), StartError>) -> Result<bool, StartError> {
    match lock {
        Ok(()) => Ok(false),
        Err(StartError::Taken(_)) => Ok(true),
        Err(error) => Err(error),
    }
}
