//! Processor load of a program and the queueing delay of its threads, independent of other load on the machine. A
//! busy loop gets little of a contended processor, so load is a thread's run time divided by the time in which the
//! thread was not queued.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Scheduling times of a program's threads so far. Times of threads that have exited are missing.
#[derive(Debug)]
pub(crate) struct Load {
    at: Instant,
    threads: BTreeMap<OsString, ThreadTimes>,
}

/// Scheduling times of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadTimes {
    run_time: Duration,
    /// Time in the run queue.
    queue_time: Duration,
}

// === impl Load ===

impl Load {
    /// Load of processes, given their folders in `/proc`.
    pub(super) fn of(processes: impl Iterator<Item = impl AsRef<Path>>) -> Self {
        let tasks = |process| fs::read_dir(AsRef::<Path>::as_ref(&process).join("task")).ok();
        let tasks = processes.filter_map(tasks).flatten().flatten();
        let times = |task: fs::DirEntry| Some((task.file_name(), ThreadTimes::of(&task.path())?));
        Self { at: Instant::now(), threads: tasks.filter_map(times).collect() }
    }

    /// Longest time that one thread was queued, from this measurement to `now`.
    pub(crate) fn max_queue_time_until(&self, now: &Self) -> Duration {
        let queue_time = |(thread, times): (&OsString, &ThreadTimes)| {
            let before = self.threads.get(thread).copied().unwrap_or_default();
            times.since(before).queue_time
        };
        now.threads.iter().map(queue_time).max().unwrap_or_default()
    }

    /// Sum of the threads' loads from this measurement to `now`, in percent of one uncontended processor.
    pub(crate) fn cpu_percent_until(&self, now: &Self) -> u32 {
        let elapsed = now.at - self.at;
        let share = |(thread, times): (&OsString, &ThreadTimes)| {
            let before = self.threads.get(thread).copied().unwrap_or_default();
            times.since(before).share_of(elapsed)
        };
        let shares: f64 = now.threads.iter().map(share).sum();
        // The percentages of a few threads fit into `u32`, and none is negative.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = (shares * 100.0).round() as u32;
        percent
    }
}

// === impl ThreadTimes ===

impl ThreadTimes {
    /// Times of a thread, from `schedstat` of proc(5), which has nanoseconds. `None` if the thread has just exited.
    fn of(task: &Path) -> Option<Self> {
        let text = fs::read_to_string(task.join("schedstat")).ok()?;
        let mut nanos = text.split_whitespace().map(|word| word.parse().map(Duration::from_nanos));
        Some(Self { run_time: nanos.next()?.ok()?, queue_time: nanos.next()?.ok()? })
    }

    fn since(self, before: Self) -> Self {
        let run_time = self.run_time.saturating_sub(before.run_time);
        Self { run_time, queue_time: self.queue_time.saturating_sub(before.queue_time) }
    }

    fn share_of(self, elapsed: Duration) -> f64 {
        // The scheduler's clock differs slightly from `Instant`, so the run time may exceed the time available.
        let runnable = elapsed.saturating_sub(self.queue_time).max(self.run_time);
        if self.run_time.is_zero() { 0.0 } else { self.run_time.div_duration_f64(runnable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(at: Instant, threads: &[(&str, u64, u64)]) -> Load {
        let times = |&(thread, run_time, queue_time): &(&str, _, _)| {
            let [run_time, queue_time] = [run_time, queue_time].map(Duration::from_millis);
            (thread.into(), ThreadTimes { run_time, queue_time })
        };
        Load { at, threads: threads.iter().map(times).collect() }
    }

    #[test]
    fn contention_does_not_hide_a_busy_loop_and_queueing_counts_as_no_load() {
        let started_at = Instant::now();
        let now = started_at + Duration::from_secs(4);
        let before =
            load(started_at, &[("loop", 1_000, 10_000), ("idle", 50, 7_000), ("ended", 9, 9)]);
        let alone = load(now, &[("loop", 4_990, 10_010), ("idle", 60, 7_000)]);
        assert_eq!(before.cpu_percent_until(&alone), 100);
        let beside_others = load(now, &[("loop", 1_220, 13_780), ("idle", 60, 7_000)]);
        assert_eq!(before.cpu_percent_until(&beside_others), 100);
        assert_eq!(before.max_queue_time_until(&alone), Duration::from_millis(10));
        assert_eq!(before.max_queue_time_until(&beside_others), Duration::from_millis(3_780));
        let idle = load(now, &[("loop", 1_000, 10_000), ("idle", 60, 10_500), ("new", 0, 4_000)]);
        assert_eq!(before.cpu_percent_until(&idle), 2);
    }

    #[test]
    fn this_program_has_run_times() {
        let own = Load::of(["/proc/self"].iter());
        assert!(
            own.threads.values().any(|times| !times.run_time.is_zero()),
            "no thread has a run time"
        );
    }
}
