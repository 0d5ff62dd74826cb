//! An agent that waits, for its turn or for a kubelet, and serves nobody yet.
//!
//! The turn is whose the locks are ([`NodeLock`]).
//!
//! Two pods of an update with surge are on one node for a while. Sockets, documents and records have one
//! owner at any moment, which is who has the lock; what the kubelet asks in between it asks again. A kubelet that
//! never ran on a node has no folder there yet, and the agent may be started before it.

use std::time::Duration;

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_config::Config;
use windlass_kubelet_api::deviceplugin::PLUGIN_DIR;

use super::{NodeLock, StartError};
use crate::admin::{self, Doors, Waiting};

/// How often the lock is tried; the kernel tells nobody that it is free.
const LOOK: Duration = Duration::from_millis(100);

/// How long an agent that was killed may take to be gone: the kernel closes its files when its last thread has ended.
const GOING: Duration = Duration::from_secs(2);

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
    let folder = &config.places.kubelet_dir;
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
    if !is_taken(config).await? {
        return Ok(());
    }
    let kubelet = config.places.kubelet_dir.display();
    tracing::info!(%kubelet, "another agent serves: standing by until it ends");
    let waiting = async {
        while is_taken(config).await? {
            sleep(LOOK).await;
        }
        Ok(())
    };
    answering_until(config, Waiting::for_turn(), waiting).await
}

/// Waits for an agent that was killed a moment ago, up to two seconds.
///
/// [`Agent::start`](super::Agent::start) follows, and says what is in the way still.
pub async fn await_predecessor(config: &Config) {
    let deadline = Instant::now() + GOING;
    while matches!(is_taken(config).await, Ok(true)) && Instant::now() < deadline {
        sleep(LOOK).await;
    }
}

/// Answers for health and readiness while it waits; the address is free again before the agent wants it.
async fn answering_until(
    config: &Config,
    shown: Waiting,
    waiting: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    let doors = Doors::bind(config.listen, config.probe_socket.as_deref())?;
    let stop = CancellationToken::new();
    let answering = admin::stand_by(doors, shown, stop.clone());
    let waiting = async {
        let outcome = waiting.await;
        stop.cancel();
        outcome
    };
    tokio::join!(answering, waiting).1
}

/// Whether another agent has the node at this moment. A disk that hangs keeps nobody from ending this one.
async fn is_taken(config: &Config) -> Result<bool, StartError> {
    let (dir, state_dir) =
        (config.places.kubelet_dir.join(PLUGIN_DIR), config.places.state_dir.clone());
    let take = spawn_blocking(move || NodeLock::take(&dir, &state_dir).map(drop)).await;
    match take.expect("taking neither panics nor is cancelled") {
        Ok(()) => Ok(false),
        Err(StartError::Taken(_) | StartError::StateTaken(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use windlass_config::Places;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_ends_is_waited_for_and_one_that_goes_on_for_two_seconds_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = Config {
            places: Places {
                kubelet_dir: folder.path().to_owned(),
                state_dir: folder.path().join("state"),
                ..Places::default()
            },
            ..Config::default()
        };
        let plugins = config.places.kubelet_dir.join(PLUGIN_DIR);
        let other = NodeLock::take(&plugins, &config.places.state_dir).expect("free");
        let begun = Instant::now();
        await_predecessor(&config).await;
        assert_eq!(begun.elapsed(), GOING);
        let ending = async move {
            sleep(LOOK / 2).await;
            drop(other);
        };
        tokio::join!(await_predecessor(&config), ending);
        assert!(begun.elapsed() < GOING + LOOK * 2);
        NodeLock::take(&plugins, &config.places.state_dir).expect("its turn");
    }
}
