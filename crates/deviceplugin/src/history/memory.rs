//! The one task that remembers choices, and how it is told of them.
//!
//! Who answers the kubelet must not wait for the disk: a choice goes through a channel, and is lost when
//! that is full. The task writes at most once in a while, and nothing where nothing is chosen.

use std::{collections::VecDeque, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_host::{causes, clock::Clock};

use super::{Remembered, file::ChoicesFile};

/// Where choices are told; clones tell the same task.
#[derive(Clone, Debug)]
pub struct Teller {
    clock: Clock,
    choices: mpsc::Sender<Remembered>,
    /// How many were not taken, and not told of.
    lost: watch::Sender<usize>,
}

/// The task.
#[derive(Debug)]
pub struct Memory {
    file: ChoicesFile,
    told: mpsc::Receiver<Remembered>,
    lost: watch::Sender<usize>,
    lines: Lines,
    /// When what was told is to be written.
    due: Option<Instant>,
    /// Whether the choices of earlier lives are among the lines.
    recalled: bool,
    /// Why the file could not be written last.
    trouble: Option<String>,
}

/// Choices as the file has them, the newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: VecDeque<String>,
    bytes: usize,
}

/// Choices on their way; one comes with each container that starts.
const WAITING: usize = 64;

/// How long choices gather before they are written. A node that starts has many at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Of a node with eight GPUs that is a few days' work.
const MOST_CHOICES: usize = 256;

/// What the newest choices may take: most take half a kilobyte, those among replicas that are held here
/// and there some more.
const MOST_BYTES: usize = 256 * 1024;

/// A memory, and the way to it.
pub fn memory(state_dir: &Path, clock: Clock) -> (Memory, Teller) {
    let ((choices, told), lost) = (mpsc::channel(WAITING), watch::Sender::new(0));
    let memory = Memory {
        file: ChoicesFile::new(state_dir),
        told,
        lost: lost.clone(),
        lines: Lines::default(),
        due: None,
        recalled: false,
        trouble: None,
    };
    (memory, Teller { clock, choices, lost })
}

// === impl Teller ===

impl Teller {
    /// Tells of a choice that is made now.
    pub(crate) fn tell(&self, choice: impl FnOnce(Timestamp) -> Remembered) {
        match self.choices.try_reserve() {
            Ok(place) => place.send(choice(self.clock.now())),
            Err(TrySendError::Full(())) => self.lost.send_modify(|count| *count += 1),
            // The agent stops.
            Err(TrySendError::Closed(())) => {}
        }
    }
}

// === impl Memory ===

impl Memory {
    /// Remembers until stopped; what was told before the stop is written.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.due;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(choice) = self.told.recv() => self.remember(&choice),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.write().await;
                }
            }
        }
        while let Ok(choice) = self.told.try_recv() {
            self.remember(&choice);
        }
        // What could not be written before may be by now.
        if self.due.is_some() || self.trouble.is_some() {
            self.write().await;
        }
    }

    fn remember(&mut self, choice: &Remembered) {
        self.lines.push(line(choice));
        self.due.get_or_insert_with(|| Instant::now() + PAUSE);
    }

    /// Writing waits for the disk, so it happens on a thread of its own.
    async fn write(&mut self) {
        self.due = None;
        let (file, mut lines, recalled) =
            (self.file.clone(), std::mem::take(&mut self.lines), self.recalled);
        let write = move || {
            if !recalled {
                for choice in file.take_over() {
                    lines.push_older(line(&choice));
                }
            }
            let written = file.write(&lines);
            (lines, written)
        };
        let (lines, written) =
            spawn_blocking(write).await.expect("writing neither panics nor is cancelled");
        (self.lines, self.recalled) = (lines, true);
        let trouble = written.err().map(|error| causes(&error));
        self.note(trouble);
        let lost = self.lost.send_replace(0);
        if lost > 0 {
            tracing::warn!(
                lost,
                "choices are not remembered: those before them waited for the disk"
            );
        }
    }

    /// Says what is wrong when that is news: a folder that is read-only stays so.
    fn note(&mut self, trouble: Option<String>) {
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            tracing::warn!(file = %self.file, error, "choices are not kept");
        }
        self.trouble = trouble;
    }
}

fn line(choice: &Remembered) -> String {
    serde_json::to_string(choice).expect("a choice has no value that JSON has no form for")
}

// === impl Lines ===

impl Lines {
    /// Choices that were written down, as many as there is room for.
    pub(super) fn of(choices: &[Remembered]) -> Self {
        let mut lines = Self::default();
        for choice in choices {
            lines.push_older(line(choice));
        }
        lines
    }

    /// Adds the newest; the oldest make room.
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_front(line);
        while self.lines.len() > MOST_CHOICES || self.bytes > MOST_BYTES {
            let oldest = self.lines.pop_back();
            self.bytes -= oldest.map_or(0, |line| line.len());
        }
    }

    /// Adds one that is older than all, if there is room.
    fn push_older(&mut self, line: String) {
        if self.lines.len() < MOST_CHOICES && self.bytes + line.len() <= MOST_BYTES {
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

    use super::{super::Among, *};

    /// A choice of so many devices.
    fn choice(at: Timestamp, size: usize) -> Remembered {
        let devices = (0..size).map(|index| format!("GPU-{index}").parse().expect("an id"));
        Remembered {
            at,
            resource: "nvidia.com/gpu".parse().expect("a name"),
            policy: Policy::Aligned,
            size,
            exact: true,
            among: Among::Devices {
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

    /// A memory in a folder, told of choices of these sizes, from its start to its end.
    async fn live(folder: &TempDir, told: impl IntoIterator<Item = usize>) {
        let (memory, teller) = memory(folder.path(), Clock::starting_at(Timestamp::UNIX_EPOCH));
        let stop = CancellationToken::new();
        for size in told {
            teller.tell(|at| choice(at, size));
        }
        stop.cancel();
        memory.run(stop).await;
    }

    #[tokio::test]
    async fn the_newest_choices_are_kept_over_lives_and_the_oldest_make_room() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        live(&folder, []).await;
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing to say");
        live(&folder, [1, 2]).await;
        live(&folder, [3]).await;
        assert_eq!(sizes(&folder), [3, 2, 1]);
        for _ in 0..MOST_CHOICES / WAITING {
            live(&folder, 4..4 + WAITING).await;
        }
        assert_eq!(sizes(&folder).len(), MOST_CHOICES);
        assert_eq!(sizes(&folder)[0], 3 + WAITING);
    }

    #[tokio::test]
    async fn the_file_stays_small_whatever_is_chosen() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        live(&folder, std::iter::repeat_n(1000, WAITING)).await;
        let kept = sizes(&folder).len();
        let bytes = fs::metadata(folder.path().join("choices.json")).expect("written").len();
        assert!((2..WAITING).contains(&kept) && bytes < 300_000, "{kept} in {bytes} bytes");
    }

    #[tokio::test]
    async fn more_than_can_wait_for_the_disk_is_forgotten_and_nobody_waits() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        live(&folder, 1..=WAITING + 5).await;
        assert_eq!(sizes(&folder).first(), Some(&WAITING));
    }

    #[tokio::test(start_paused = true)]
    async fn choices_gather_before_they_are_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (memory, teller) = memory(folder.path(), Clock::starting_at(Timestamp::UNIX_EPOCH));
        let stop = CancellationToken::new();
        let talk = async {
            teller.tell(|at| choice(at, 1));
            sleep(PAUSE / 2).await;
            teller.tell(|at| choice(at, 2));
            assert_eq!(sizes(&folder), [0; 0], "not yet");
            sleep(PAUSE).await;
            assert_eq!(sizes(&folder), [2, 1]);
            stop.cancel();
        };
        tokio::join!(memory.run(stop.clone()), talk);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_understood_is_set_aside() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (text, why) in [
            ("{", "no record of choices of version 1"),
            (r#"{"version":2,"choices":[{"when":1}]}"#, "version 2, this program knows 1"),
        ] {
            fs::write(folder.path().join("choices.json"), text).expect("written");
            let error = super::super::read(folder.path()).expect_err("not understood").to_string();
            assert!(error.contains(why), "{error}");
            live(&folder, [1]).await;
            let aside = fs::read_to_string(folder.path().join("choices.json.unreadable"));
            assert_eq!(aside.expect("for a person to look at"), text);
            assert_eq!(sizes(&folder), [1]);
        }
    }
}
