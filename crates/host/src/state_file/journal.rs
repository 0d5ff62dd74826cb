//! Journal: a frequently changing state file, written in the background.
//!
//! ```text
//!   write ──> newest version ──> Writer, one write at a time ──> disk
//!                                      │  ^ failed: retried later
//!   wait_written <── written or failed ┘──┘
//! ```
//!
//! # Guarantees
//!
//! Versions reach the disk in order, each as a whole. Of the versions that arrive during a write, only the newest is
//! written; the others count as written with it. A failed write is retried without a new version. A file that another
//! program removed or changed is rewritten at the next [check](Journal::check).
//!
//! # Errors
//!
//! A wait for a version whose write failed returns the error, until that version or a later one is written.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::watch, time::sleep};

use super::StateFile;
use crate::{AGENT_ENDS, blocking};

/// Delay of the next attempt after a failed write, such as on a full disk.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Version and content.
pub type Versioned<T> = (u64, T);

/// Journal: takes the content to write.
#[derive(Debug)]
pub struct Journal<T> {
    newest: watch::Sender<Versioned<T>>,
    written: watch::Receiver<WriteProgress>,
    /// Number of requested checks of the file.
    checks: watch::Sender<u64>,
}

/// Background writer of a journal.
#[derive(Debug)]
pub struct Writer<T> {
    file: StateFile<T>,
    newest: watch::Receiver<Versioned<T>>,
    checks: watch::Receiver<u64>,
    written: watch::Sender<WriteProgress>,
    failure_message: &'static str,
}

/// Progress of the writes.
#[derive(Clone, Debug, Default)]
struct WriteProgress {
    /// Newest written version.
    version: u64,
    /// Newest version whose write failed, with the error.
    failed: Option<(u64, String)>,
    /// Number of finished checks of the file.
    checks: u64,
}

// === impl Journal ===

impl<T: Default + PartialEq> Journal<T> {
    /// An empty journal and its writer, which the caller runs. The writer logs `failure_message` when a write fails,
    /// unless the previous write failed with the same error.
    pub fn new(file: StateFile<T>, failure_message: &'static str) -> (Self, Writer<T>) {
        let (newest, checks) = (watch::Sender::default(), watch::Sender::default());
        let (sender, written) = watch::channel(WriteProgress::default());
        let writer = Writer {
            file,
            newest: newest.subscribe(),
            checks: checks.subscribe(),
            written: sender,
            failure_message,
        };
        (Self { newest, written, checks }, writer)
    }

    /// Requests a write of new content, or of the same content if its write failed.
    pub fn write(&self, content: T) {
        let written = self.written.borrow();
        self.newest.send_if_modified(|(version, known)| {
            let needs_write = *known != content || written.has_failed(*version);
            if needs_write {
                *version += 1;
                *known = content;
            }
            needs_write
        });
    }

    /// Waits until the current content is written, or its write failed.
    pub fn wait_written(&self) -> impl Future<Output = Result<(), String>> + Send + use<T> {
        let (version, mut written) = (self.newest.borrow().0, self.written.clone());
        async move {
            let outcome = written.wait_for(|written| written.outcome(version).is_some()).await;
            // A wait fails only if the writer has ended.
            let outcome = outcome.ok().and_then(|written| written.outcome(version));
            outcome.unwrap_or_else(|| Err(AGENT_ENDS.to_owned()))
        }
    }

    /// Requests a check of the file: it is rewritten if it is missing or differs.
    pub fn check(&self) {
        self.checks.send_modify(|checks| *checks += 1);
    }

    /// Waits until every check requested so far has finished.
    pub fn wait_checked(&self) -> impl Future<Output = ()> + Send + use<T> {
        let (checks, mut written) = (*self.checks.borrow(), self.written.clone());
        async move {
            // An error means that the writer has ended, and checks no more.
            drop(written.wait_for(|written| written.checks >= checks).await);
        }
    }

    /// Receiver of the content and its changes, before they are on disk.
    pub fn watch(&self) -> watch::Receiver<Versioned<T>> {
        self.newest.subscribe()
    }
}

// === impl Writer ===

impl<T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static> Writer<T> {
    /// Writes until the journal is dropped. The last version is written too: `changed` reports it before the end.
    pub async fn run(mut self) {
        let mut last_error: Option<String> = None;
        loop {
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() { return },
                Ok(()) = self.checks.changed() => {}
                () = sleep(RETRY_DELAY), if last_error.is_some() => {}
            }
            let checks = *self.checks.borrow_and_update();
            let (file, (version, content)) =
                (self.file.clone(), self.newest.borrow_and_update().clone());
            // Version 0 is the empty default, which must not replace the file of an earlier agent.
            let write = move || if version == 0 { Ok(()) } else { file.write(&content) };
            let path = self.file.path().display();
            let write_error =
                blocking(write).await.err().map(|error| format!("cannot write {path}: {error}"));
            if let Some(why) = &write_error
                && write_error != last_error
            {
                tracing::error!(why, "{}", self.failure_message);
            }
            self.written.send_modify(|written| {
                written.checks = checks;
                written.record(version, write_error.clone());
            });
            last_error = write_error;
        }
    }
}

// === impl WriteProgress ===

impl WriteProgress {
    fn record(&mut self, version: u64, error: Option<String>) {
        match error {
            None => self.version = version,
            Some(error) => self.failed = Some((version, error)),
        }
    }

    /// True if the write of this version failed.
    fn has_failed(&self, version: u64) -> bool {
        matches!(self.outcome(version), Some(Err(_)))
    }

    /// Outcome of a version: written, or failed with the error; `None` while its write is pending.
    fn outcome(&self, version: u64) -> Option<Result<(), String>> {
        if self.version >= version {
            return Some(Ok(()));
        }
        let failed = self.failed.as_ref().filter(|(failed_version, _)| *failed_version >= version);
        failed.map(|(_, error)| Err(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tokio::time::Instant;

    use super::{super::Format, *};
    use crate::Host;

    const FORMAT: Format = Format { name: "record of words", content_key: "words" };

    fn journal() -> (TempDir, StateFile<String>, Journal<String>, Writer<String>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(folder.path(), folder.path());
        let file = StateFile::new(folder.path().join("state/words.json"), FORMAT, host);
        let (journal, writer) = Journal::new(file.clone(), "writes fail");
        (folder, file, journal, writer)
    }

    fn on_disk(file: &StateFile<String>) -> Option<String> {
        file.load().map(|earlier| earlier.content)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_retried_without_a_new_version() {
        let (folder, file, journal, writer) = journal();
        let state = folder.path().join("state");
        fs::write(&state, "").expect("a file in place of the folder");
        journal.write("one".to_owned());
        let waiting_task = async {
            let error = journal.wait_written().await.expect_err("there is no folder");
            assert!(error.contains("state/words.json"), "{error}");
            fs::remove_file(&state).expect("removed");
            sleep(RETRY_DELAY * 2).await;
            journal.wait_written().await
        };
        tokio::select! {
            () = writer.run() => panic!("the journal is still open"),
            outcome = waiting_task => outcome.expect("the folder exists by then"),
        }
        assert_eq!(on_disk(&file).as_deref(), Some("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_is_awaited_until_it_is_written_or_failed() {
        let (folder, file, journal, writer) = journal();
        let state = folder.path().join("state");
        fs::write(&state, "").expect("a file in place of the folder");
        let waiting_task = async {
            let start = Instant::now();
            journal.write("one".to_owned());
            journal.wait_written().await.expect_err("refused");
            fs::remove_file(&state).expect("removed");
            journal.write("one".to_owned());
            journal.wait_written().await.expect("written");
            assert!(
                start.elapsed() < RETRY_DELAY,
                "an equal content is written again at once after a failure"
            );
            journal.write("one".to_owned());
            assert_eq!(journal.watch().borrow().0, 2, "written content is no new version");
        };
        tokio::select! {
            () = writer.run() => panic!("the journal is still open"),
            () = waiting_task => {}
        }
        assert_eq!(on_disk(&file).as_deref(), Some("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn intermediate_versions_are_skipped_and_the_last_is_written_at_the_end() {
        let (_folder, file, journal, writer) = journal();
        journal.wait_written().await.expect("no write is pending");
        let first_wait = {
            journal.write("one".to_owned());
            journal.wait_written()
        };
        journal.write("two".to_owned());
        drop(journal);
        writer.run().await;
        assert_eq!(first_wait.await, Ok(()), "the second version counts as both");
        assert_eq!(on_disk(&file).as_deref(), Some("two"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_file_is_written_again_at_a_check() {
        let (_folder, file, journal, writer) = journal();
        let waiting_task = async {
            journal.check();
            journal.wait_checked().await;
            assert_eq!(on_disk(&file), None, "no content was written yet");
            journal.write("one".to_owned());
            journal.wait_written().await.expect("written");
            fs::remove_file(file.path()).expect("the file existed");
            journal.check();
            journal.wait_checked().await;
            assert_eq!(on_disk(&file).as_deref(), Some("one"));
            assert_eq!(journal.watch().borrow().0, 1, "the version is unchanged");
        };
        tokio::select! {
            () = writer.run() => panic!("the journal is still open"),
            () = waiting_task => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_end_once_the_writer_is_dropped() {
        let (_folder, _file, journal, writer) = journal();
        journal.write("one".to_owned());
        let outcome = journal.wait_written();
        drop(writer);
        assert_eq!(outcome.await, Err("the agent ends".to_owned()));
    }
}
