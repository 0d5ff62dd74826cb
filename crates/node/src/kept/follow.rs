//! A document that changes often, and the disk that follows it: whoever relies on a change waits until the
//! disk has it. Changes that come while one is written are written together.

use std::{io, path::PathBuf, sync::Arc};

use tokio::{sync::watch, task::spawn_blocking};

/// The newest content and its version.
pub(crate) type Versioned<T> = (u64, T);

/// How far the disk has followed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// The newest version that is on it.
    version: u64,
    /// The newest version that it did not take, and why.
    refused: Option<(u64, String)>,
}

/// Writes each version that is news, for as long as there may be more. Those in between are skipped. What
/// waits while the disk takes nothing is said.
pub(crate) async fn follow<T: Clone + Send + Sync + 'static>(
    mut newest: watch::Receiver<Versioned<T>>,
    (written, waiting): (watch::Sender<Written>, &'static str),
    write: impl Fn(T) -> Result<(), (PathBuf, io::Error)> + Send + Sync + 'static,
) {
    let write = Arc::new(write);
    while newest.changed().await.is_ok() {
        let (write, (version, content)) = (write.clone(), newest.borrow_and_update().clone());
        let done = spawn_blocking(move || write(content)).await;
        match done.expect("writing neither panics nor is cancelled") {
            Ok(()) => written.send_modify(|written| written.version = version),
            Err((path, error)) => {
                let why = format!("cannot write {}: {error}", path.display());
                tracing::error!(why, "{waiting}");
                written.send_modify(|written| written.refused = Some((version, why)));
            }
        }
    }
}

/// Waits until a version is on the disk, or is refused by it.
pub(crate) async fn recorded(
    mut written: watch::Receiver<Written>,
    version: u64,
) -> Result<(), String> {
    let settled = written.wait_for(|written| written.outcome(version).is_some()).await;
    let settled = settled.map(|written| written.outcome(version));
    settled.ok().flatten().unwrap_or_else(|| Err("the agent ends".to_owned()))
}

// === impl Written ===

impl Written {
    /// Whether the disk did not take a version.
    pub(crate) fn has_refused(&self, version: u64) -> bool {
        matches!(self.outcome(version), Some(Err(_)))
    }

    /// What became of a version: nothing yet, or it is on the disk, or not and why.
    fn outcome(&self, version: u64) -> Option<Result<(), String>> {
        if self.version >= version {
            return Some(Ok(()));
        }
        let refused = self.refused.as_ref().filter(|(refused, _)| *refused >= version);
        refused.map(|(_, why)| Err(why.clone()))
    }
}
