//! An agent that waits, for its turn or for a kubelet, and serves nobody yet.
//!
//! Two pods of an update with surge are on one node for a while. Sockets, documents and records have one
//! owner at any moment, which is who has the lock; what the kubelet asks in between it asks again. A kubelet that
//! never ran on a node has no folder there yet, and the agent may be started before it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::deviceplugin::PLUGIN_DIR;

use super::{StartError, lock};
use crate::{
    admin::{self, Doors, Waiting},
    config::Config,
};

/// How often the lock is tried; the kernel tells nobody that it is free.
const LOOK: Duration = Duration::from_millis(100);

/// What becomes of a node whose kubelet another agent serves already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// The agent is meant to be the only one.
    Alone,
    /// The agent takes over when the other ends.
    TakesOver,
}

/// How often a kubelet's folder is looked for: nothing tells, since the folder above it may be missing as well.
const LOOK_FOR_FOLDER: Duration = Duration::from_secs(1);

/// How often it is said that there is none: a mistyped folder never appears, and the first line is soon far up.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Waits until the kubelet has a folder.
///
/// # Flow
///
/// Where it has none that is said every minute. Until it has one, health is answered with yes, and readiness with no,
/// unless the agent is one that takes over: a rollout waits for that one to be ready, and it serves nobody either way.
/// [`stand_by`] or [`Agent::start`](super::Agent::start) follows.
///
/// # Errors
///
/// The address or the socket for health and readiness cannot be had.
pub async fn await_kubelet(config: &Config, succession: Succession) -> Result<(), StartError> {
    let folder = &config.kubelet_dir;
    if folder.is_dir() {
        return Ok(());
    }
    let waiting = async {
        let mut said: Option<Instant> = None;
        while !folder.is_dir() {
            if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                said = Some(Instant::now());
                tracing::warn!(
                    folder = %folder.display(),
                    "the kubelet has no such folder, waiting for it: is the kubelet running? --kubelet-dir names another"
                );
            }
            sleep(LOOK_FOR_FOLDER).await;
        }
        Ok(())
    };
    let shown = Waiting::for_kubelet(folder);
    let shown = match succession {
        Succession::Alone => shown,
        Succession::TakesOver => shown.and_takes_over(),
    };
    answering_until(config, shown, waiting).await
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
    answering_until(config, Waiting::for_turn(), waiting).await
}

/// Answers for health and readiness while it waits; the address is free again before the agent wants it.
async fn answering_until(
    config: &Config,
    shown: Waiting,
    waiting: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    let doors = Doors::bind(config)?;
    let stop = CancellationToken::new();
    let answering = admin::stand_by(doors, shown, stop.clone());
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
