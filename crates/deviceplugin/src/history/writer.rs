//! Task that writes the allocation history.
//!
//! The request path never waits for the disk: choices go through a bounded channel, and a full channel drops them. The
//! task batches writes, and is idle without choices.

use std::{collections::VecDeque, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_host::{blocking, causes, clock::Clock};

use super::{RecordedChoice, file::HistoryFile};

/// Sends choices to the `HistoryWriter`.
#[derive(Clone, Debug)]
pub struct HistorySender {
    clock: Clock,
    choices: mpsc::Sender<RecordedChoice>,
    /// Number of dropped choices that were not logged yet.
    dropped: watch::Sender<usize>,
}

/// Task that owns the history file.
#[derive(Debug)]
pub struct HistoryWriter {
    file: HistoryFile,
    queue: mpsc::Receiver<RecordedChoice>,
    dropped: watch::Sender<usize>,
    lines: Lines,
    /// Deadline of the next write.
    next_write: Option<Instant>,
    /// True once the file of the previous agent was merged into `lines`.
    merged: bool,
    last_error: Option<String>,
}

/// Serialized choices, newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: VecDeque<String>,
    bytes: usize,
}

/// Channel capacity. Each started container sends one choice.
const CAPACITY: usize = 64;

/// Batching delay of a write. A starting node makes many choices at once.
const WRITE_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of choices: a few days' work of a node with eight GPUs.
const MAX_CHOICES: usize = 256;

/// Maximum size of all choices. One takes about half a kilobyte; scattered replicas take more.
const MAX_BYTES: usize = 256 * 1024;

/// Creates the writer and its sender.
pub fn history_channel(state_dir: &Path, clock: Clock) -> (HistoryWriter, HistorySender) {
    let (choices, queue) = mpsc::channel(CAPACITY);
    let dropped = watch::Sender::new(0);
    let writer = HistoryWriter {
        file: HistoryFile::new(state_dir),
        queue,
        dropped: dropped.clone(),
        lines: Lines::default(),
        next_write: None,
        merged: false,
        last_error: None,
    };
    (writer, HistorySender { clock, choices, dropped })
}

// === impl HistorySender ===

impl HistorySender {
    /// Sends a choice with the current time; drops it if the channel is full.
    pub(crate) fn send(&self, choice: impl FnOnce(Timestamp) -> RecordedChoice) {
        match self.choices.try_reserve() {
            Ok(permit) => permit.send(choice(self.clock.now())),
            Err(TrySendError::Full(())) => self.dropped.send_modify(|count| *count += 1),
            // The writer has stopped: the agent is shutting down.
            Err(TrySendError::Closed(())) => {}
        }
    }
}

// === impl HistoryWriter ===

impl HistoryWriter {
    /// Runs until cancelled, then writes the choices that were sent before.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let next_write = self.next_write;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(choice) = self.queue.recv() => self.add(&choice),
                () = sleep_until(next_write.unwrap_or_else(Instant::now)),
                    if next_write.is_some() =>
                {
                    self.write().await;
                }
            }
        }
        while let Ok(choice) = self.queue.try_recv() {
            self.add(&choice);
        }
        // A failed write gets one more attempt at shutdown.
        if self.next_write.is_some() || self.last_error.is_some() {
            self.write().await;
        }
    }

    fn add(&mut self, choice: &RecordedChoice) {
        self.lines.push(line(choice));
        self.next_write.get_or_insert_with(|| Instant::now() + WRITE_DELAY);
    }

    /// Writes on a blocking thread.
    async fn write(&mut self) {
        self.next_write = None;
        let file = self.file.clone();
        let mut lines = std::mem::take(&mut self.lines);
        let merged = self.merged;
        let write = move || {
            if !merged {
                for choice in file.read_or_set_aside() {
                    lines.push_older(line(&choice));
                }
            }
            let result = file.write(&lines);
            (lines, result)
        };
        let (lines, result) = blocking(write).await;
        (self.lines, self.merged) = (lines, true);
        self.log_error(result.err().map(|error| causes(&error)));
        let dropped = self.dropped.send_replace(0);
        if dropped > 0 {
            tracing::warn!(dropped, "choices dropped from the allocation history: disk is slow");
        }
    }

    /// Logs a write error once, not at every write.
    fn log_error(&mut self, new_error: Option<String>) {
        if let Some(error) = new_error.as_ref().filter(|_| new_error != self.last_error) {
            tracing::warn!(file = %self.file, error, "allocation history not written");
        }
        self.last_error = new_error;
    }
}

fn line(choice: &RecordedChoice) -> String {
    serde_json::to_string(choice).expect("every value of a choice has a JSON form")
}

// === impl Lines ===

impl Lines {
    /// Serializes as many choices as fit.
    pub(super) fn from_choices(choices: &[RecordedChoice]) -> Self {
        let mut lines = Self::default();
        for choice in choices {
            lines.push_older(line(choice));
        }
        lines
    }

    /// Adds a newer choice; the oldest make room.
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_front(line);
        while self.lines.len() > MAX_CHOICES || self.bytes > MAX_BYTES {
            let oldest = self.lines.pop_back();
            self.bytes -= oldest.map_or(0, |line| line.len());
        }
    }

    /// Adds an older choice if it fits.
    fn push_older(&mut self, line: String) {
        if self.lines.len() < MAX_CHOICES && self.bytes + line.len() <= MAX_BYTES {
            self.bytes += line.len();
            self.lines.push_back(line);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tokio::time::sleep;
    use windlass_core::placement::Policy;

    use super::{super::Candidates, *};

    fn choice(at: Timestamp, size: usize) -> RecordedChoice {
        let devices = (0..size).map(|index| format!("GPU-{index}").parse().expect("an id"));
        RecordedChoice {
            at,
            resource: "nvidia.com/gpu".parse().expect("a name"),
            policy: Policy::Aligned,
            size,
            exact: true,
            candidates: Candidates::Devices {
                available: devices.clone().collect(),
                required: Vec::new(),
                near: Vec::new(),
                chosen: devices.collect(),
            },
        }
    }

    fn sizes(folder: &TempDir) -> Vec<usize> {
        let choices = super::super::read(folder.path()).expect("readable");
        choices.into_iter().map(|choice| choice.size).collect()
    }

    /// Runs a writer from start to shutdown with choices of these sizes.
    async fn run_with(folder: &TempDir, sizes: impl IntoIterator<Item = usize>) {
        let (writer, sender) =
            history_channel(folder.path(), Clock::starting_at(Timestamp::UNIX_EPOCH));
        let stop = CancellationToken::new();
        for size in sizes {
            sender.send(|at| choice(at, size));
        }
        stop.cancel();
        writer.run(stop).await;
    }

    #[tokio::test]
    async fn the_newest_choices_survive_restarts_and_the_oldest_are_dropped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        run_with(&folder, []).await;
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing to write");
        run_with(&folder, [1, 2]).await;
        run_with(&folder, [3]).await;
        assert_eq!(sizes(&folder), [3, 2, 1]);
        for _ in 0..MAX_CHOICES / CAPACITY {
            run_with(&folder, 4..4 + CAPACITY).await;
        }
        assert_eq!(sizes(&folder).len(), MAX_CHOICES);
        assert_eq!(sizes(&folder)[0], 3 + CAPACITY);
    }

    #[tokio::test]
    async fn the_file_stays_small_with_large_choices() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        run_with(&folder, std::iter::repeat_n(1000, CAPACITY)).await;
        let count = sizes(&folder).len();
        let bytes = fs::metadata(folder.path().join("choices.json")).expect("written").len();
        assert!((2..CAPACITY).contains(&count) && bytes < 300_000, "{count} in {bytes} bytes");
    }

    #[tokio::test]
    async fn choices_beyond_the_capacity_are_dropped_without_a_wait() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        run_with(&folder, 1..=CAPACITY + 5).await;
        assert_eq!(sizes(&folder).first(), Some(&CAPACITY));
    }

    #[tokio::test(start_paused = true)]
    async fn choices_are_written_in_batches() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (writer, sender) =
            history_channel(folder.path(), Clock::starting_at(Timestamp::UNIX_EPOCH));
        let stop = CancellationToken::new();
        let scenario = async {
            sender.send(|at| choice(at, 1));
            sleep(WRITE_DELAY / 2).await;
            sender.send(|at| choice(at, 2));
            assert_eq!(sizes(&folder), [0; 0], "not yet");
            sleep(WRITE_DELAY).await;
            assert_eq!(sizes(&folder), [2, 1]);
            stop.cancel();
        };
        tokio::join!(writer.run(stop.clone()), scenario);
    }

    #[tokio::test]
    async fn an_unreadable_file_is_set_aside() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (text, expected) in [
            ("{", "not an allocation history of version 1"),
            (r#"{"version":2,"choices":[{"when":1}]}"#, "version 2, this program knows 1"),
        ] {
            fs::write(folder.path().join("choices.json"), text).expect("written");
            let error = super::super::read(folder.path()).expect_err("not understood").to_string();
            assert!(error.contains(expected), "{error}");
            run_with(&folder, [1]).await;
            let aside = fs::read_to_string(folder.path().join("choices.json.unreadable"));
            assert_eq!(aside.expect("the file that was set aside"), text);
            assert_eq!(sizes(&folder), [1]);
        }
    }
}
