//! Elapsed time without the time in which agent or soak waited for a processor: a busy machine is not a slow agent.

use std::{collections::BTreeMap, ffi::OsString, fs, time::Duration};

use rustix::process::{Pid, getpid};
use tokio::time::Instant;

/// Stopwatch that starts at creation.
#[derive(Debug)]
pub(super) struct Stopwatch {
    agent: Pid,
    begun: Instant,
    waits: Waits,
}

/// Time that each thread has waited for a processor, by thread id.
type Waits = BTreeMap<OsString, Duration>;

// === impl Stopwatch ===

impl Stopwatch {
    pub(super) fn start(agent: Pid) -> Self {
        Self { agent, begun: Instant::now(), waits: waits(agent) }
    }

    /// Elapsed time. Simultaneous waits add up, so on a busy machine a slow answer may pass as timely.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(waited(&self.waits, &waits(self.agent)))
    }
}

/// Total wait since `before`. Ended threads drop out.
fn waited(before: &Waits, now: &Waits) -> Duration {
    let since = |(thread, all): (&OsString, &Duration)| {
        all.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    now.iter().map(since).sum()
}

/// Waits of the agent's threads and of this program's.
fn waits(agent: Pid) -> Waits {
    let mut all = of_process(agent);
    all.append(&mut of_process(getpid()));
    all
}

/// Waits of a process; empty if the kernel does not count them (`schedstat` in proc(5)).
fn of_process(process: Pid) -> Waits {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let waited = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        // Format: nanoseconds on a processor, nanoseconds in the queue, time slices.
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
