//! An agent that waits, for its turn or for a kubelet: ready, and serving nobody yet.
//!
//! Two pods of an update with surge are on one node for a while. Sockets, documents and records have one
//! owner at any moment, which is who has the lock; what the kubelet asks in between it asks again. A kubelet that
//! never ran on a node has no folder there yet, and the agent may be started before it.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::deviceplugin::PLUGIN_DIR;

use super::{StartError, listen, lock};
use crate::{admin, config::Config};

/// How often the lock is tried; the kernel tells nobody that it is free.
const LOOK: Duration = Duration::from_millis(100);

/// How often a kubelet's folder is looked for: nothing tells, since the folder above it may be missing as well.
const LOOK_FOR_FOLDER: Duration = Duration::from_secs(1);

/// Waits until the kubelet has a folder.
///
/// # Flow
///
/// Where it has none that is said once, and health and readiness are answered with yes, until it has.
/// [`stand_by`] or [`Agent::start`](super::Agent::start) follows.
///
/// # Errors
///
/// The address for health and readiness cannot be had.
pub async fn await_kubelet(config: &Config) -> Result<(), StartError> {
    let folder = &config.kubelet_dir;
    if folder.is_dir() {
        return Ok(());
    }
    tracing::warn!(
        folder = %folder.display(),
        "the kubelet has no such folder, waiting for it: is the kubelet running? --kubelet-dir names another"
    );
    let waiting = async {
        while !folder.is_dir() {
            sleep(LOOK_FOR_FOLDER).await;
        }
        Ok(())
    };
    answering_until(config, waiting).await
}

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
    let waiting = async {
        let mut outcome = Ok(true);
        while matches!(outcome, Ok(true)) {
            sleep(LOOK).await;
            outcome = is_taken(lock(&dir).map(drop));
        }
        outcome.map(drop)
    };
    answering_until(config, waiting).await
}

/// Answers for health and readiness while it waits; the address is free again before the agent wants it.
async fn answering_until(
    config: &Config,
    waiting: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    let listener = config.listen.map(listen).transpose()?;
    let stop = CancellationToken::new();
    let answering = async {
        match listener {
            Some(listener) => admin::stand_by(listener, stop.clone()).await,
            None => stop.cancelled().await,
        }
    };
    let waiting = async {
        let outcome = waiting.await;
        stop.cancel();
        outcome
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
