//! Elapsed time, less the time in which agent and soak waited for a CPU: a busy machine is no slow agent.

use std::{collections::BTreeMap, ffi::OsString, fs, time::Duration};

use rustix::process::{Pid, getpid};
use tokio::time::Instant;

/// Stopwatch that starts when it is created.
#[derive(Debug)]
pub(super) struct Stopwatch {
    agent: Pid,
    start: Instant,
    waits: Waits,
}

/// Time that each thread has waited for a CPU, by thread id.
type Waits = BTreeMap<OsString, Duration>;

// === impl Stopwatch ===

impl Stopwatch {
    pub(super) fn start(agent: Pid) -> Self {
        Self { agent, start: Instant::now(), waits: waits(agent) }
    }

    /// Elapsed time. Simultaneous waits add up, so on a busy machine a slow answer may pass as timely.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(wait_since(&self.waits, &waits(self.agent)))
    }
}

/// Total wait between the two observations, without threads that have ended.
fn wait_since(old_waits: &Waits, new_waits: &Waits) -> Duration {
    let wait = |(thread, total): (&OsString, &Duration)| {
        total.saturating_sub(old_waits.get(thread).copied().unwrap_or_default())
    };
    new_waits.iter().map(wait).sum()
}

/// Waits of the agent's threads and of this program's.
fn waits(agent: Pid) -> Waits {
    let mut waits = process_waits(agent);
    waits.append(&mut process_waits(getpid()));
    waits
}

/// Waits of a process; empty if the kernel does not count them (`schedstat` in proc(5)).
fn process_waits(process: Pid) -> Waits {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let thread_wait = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        // Format: nanoseconds on a CPU, nanoseconds in the run queue, time slices.
        let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((task.file_name(), Duration::from_nanos(nanos)))
    };
    tasks.filter_map(thread_wait).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_new_threads_count_and_those_of_ended_threads_do_not() {
        let waits = |threads: &[(&str, u64)]| {
            threads
                .iter()
                .map(|(thread, ms)| ((*thread).into(), Duration::from_millis(*ms)))
                .collect()
        };
        let before = waits(&[("1", 500), ("2", 9_000), ("3", 40)]);
        let now = waits(&[("1", 520), ("3", 40), ("4", 7)]);
        assert_eq!(wait_since(&before, &now), Duration::from_millis(27));
        assert_eq!(wait_since(&before, &before), Duration::ZERO);
    }

    #[test]
    fn the_kernel_counts_the_waits_of_this_program() {
        assert!(!process_waits(getpid()).is_empty(), "the kernel counts no waits");
    }
}
