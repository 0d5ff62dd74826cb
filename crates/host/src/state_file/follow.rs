//! A document that changes often, and the disk that follows it: whoever relies on a change waits until the
//! disk has it. Changes that come while one is written are written together.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};

/// How long until what the disk did not take is tried again: somebody frees one that is full.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// The newest content and its version.
pub type Versioned<T> = (u64, T);

/// How far the disk has followed.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// The newest version that is on it.
    version: u64,
    /// The newest version that it did not take, and why.
    refused: Option<(u64, String)>,
}

/// Writes each version that is news, for as long as there may be more, and again what the disk did not take:
/// nothing else may change for long, and whoever relies on it is refused until then. Versions in between are
/// skipped. What waits while the disk takes nothing is said once.
pub async fn follow<T: Clone + Send + Sync + 'static>(
    mut newest: watch::Receiver<Versioned<T>>,
    (written, waiting): (watch::Sender<Written>, &'static str),
    write: impl Fn(T) -> Result<(), (PathBuf, io::Error)> + Send + Sync + 'static,
) {
    let write = Arc::new(write);
    let mut trouble: Option<String> = None;
    loop {
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return },
            () = sleep(AGAIN), if trouble.is_some() => {}
        }
        let (write, (version, content)) = (write.clone(), newest.borrow_and_update().clone());
        let done = spawn_blocking(move || write(content)).await;
        let done = done.expect("writing neither panics nor is cancelled");
        let now =
            done.err().map(|(path, error)| format!("cannot write {}: {error}", path.display()));
        if let Some(why) = now.as_ref().filter(|why| trouble.as_ref() != Some(why)) {
            tracing::error!(why, "{waiting}");
        }
        written.send_modify(|written| written.take_in(version, now.clone()));
        trouble = now;
    }
}

/// Waits until a version is on the disk, or is refused by it.
pub async fn recorded(mut written: watch::Receiver<Written>, version: u64) -> Result<(), String> {
    let settled = written.wait_for(|written| written.outcome(version).is_some()).await;
    let settled = settled.map(|written| written.outcome(version));
    settled.ok().flatten().unwrap_or_else(|| Err("the agent ends".to_owned()))
}

// === impl Written ===

impl Written {
    fn take_in(&mut self, version: u64, trouble: Option<String>) {
        match trouble {
            None => self.version = version,
            Some(why) => self.refused = Some((version, why)),
        }
    }

    /// Whether the disk did not take a version.
    pub fn has_refused(&self, version: u64) -> bool {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_the_disk_did_not_take_is_written_when_it_does_though_nothing_changes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("full/file");
        let write = {
            let path = path.clone();
            move |text: &str| fs::write(&path, text).map_err(|error| (path.clone(), error))
        };
        let newest = watch::Sender::new((0, ""));
        let (sender, written) = watch::channel(Written::default());
        let following = follow(newest.subscribe(), (sender, "all waits"), write);
        newest.send_replace((1, "state"));
        let relying = async {
            let why = recorded(written.clone(), 1).await.expect_err("there is no folder");
            assert!(why.contains("full/file"), "{why}");
            fs::create_dir(path.parent().expect("it has one")).expect("made");
            sleep(AGAIN * 2).await;
            recorded(written, 1).await
        };
        tokio::select! {
            () = following => panic!("there may be more"),
            outcome = relying => outcome.expect("the disk takes it by now"),
        }
        assert_eq!(fs::read_to_string(&path).expect("written"), "state");
    }
}
