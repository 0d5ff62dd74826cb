//! How long something took, without the time in which the agent or the soak wanted a processor and had none: what a busy
//! machine takes from both is no slowness of the agent's.

use std::{collections::BTreeMap, ffi::OsString, fs, time::Duration};

use rustix::process::{Pid, getpid};
use tokio::time::Instant;

/// Runs from the moment at which it was made.
#[derive(Debug)]
pub(super) struct Stopwatch {
    agent: Pid,
    begun: Instant,
    waits: Waits,
}

/// How long each thread has waited for a processor since it began, by its number.
type Waits = BTreeMap<OsString, Duration>;

// === impl Stopwatch ===

impl Stopwatch {
    pub(super) fn start(agent: Pid) -> Self {
        Self { agent, begun: Instant::now(), waits: waits(agent) }
    }

    /// So long so far. Threads that wait at the same time count each: at worst something slow is taken for something in
    /// time, on a machine that is busy.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(waited(&self.waits, &waits(self.agent)))
    }
}

/// What threads waited in between. One that ended takes its own share with it, and no other's.
fn waited(before: &Waits, now: &Waits) -> Duration {
    let since = |(thread, all): (&OsString, &Duration)| {
        all.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    now.iter().map(since).sum()
}

/// The threads of the agent and of this program.
fn waits(agent: Pid) -> Waits {
    let mut all = of_process(agent);
    all.append(&mut of_process(getpid()));
    all
}

/// Empty where the kernel does not count it (`schedstat` of proc(5)).
fn of_process(process: Pid) -> Waits {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let waited = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        // Nanoseconds on a processor, nanoseconds in the queue for one, turns.
        let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((task.file_name(), Duration::from_nanos(nanos)))
    };
    tasks.filter_map(waited).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_from_the_start_on_or_from_their_own_and_none_that_has_ended() {
        let waits = |all: &[(&str, u64)]| {
            all.iter().map(|(thread, ms)| ((*thread).into(), Duration::from_millis(*ms))).collect()
        };
        let before = waits(&[("1", 500), ("2", 9_000), ("3", 40)]);
        let now = waits(&[("1", 520), ("3", 40), ("4", 7)]);
        assert_eq!(waited(&before, &now), Duration::from_millis(27));
        assert_eq!(waited(&before, &before), Duration::ZERO);
    }

    #[test]
    fn this_program_has_threads_that_are_counted() {
        assert!(!of_process(getpid()).is_empty(), "the kernel counts no waits");
    }
}
