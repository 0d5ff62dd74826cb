//! Load of a program and the delay of its threads, independent of other load on the machine. A busy loop gets little
//! of a contended processor. The measure is each thread's run time, relative to the time in which it was not queued.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Processor time of a program's threads so far. A thread that ends takes its share with it.
#[derive(Debug)]
pub(crate) struct Load {
    at: Instant,
    threads: BTreeMap<OsString, Turns>,
}

/// Scheduling times of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    ran: Duration,
    /// Time in the run queue.
    waited: Duration,
}

// === impl Load ===

impl Load {
    /// Load of the processes with these folders in `/proc`.
    pub(super) fn of(processes: impl Iterator<Item = impl AsRef<Path>>) -> Self {
        let tasks = |process| fs::read_dir(AsRef::<Path>::as_ref(&process).join("task")).ok();
        let tasks = processes.filter_map(tasks).flatten().flatten();
        let turns = |task: fs::DirEntry| Some((task.file_name(), Turns::of(&task.path())?));
        Self { at: Instant::now(), threads: tasks.filter_map(turns).collect() }
    }

    /// Longest time that a thread was queued, from this measurement to `now`.
    pub(crate) fn wait_until(&self, now: &Self) -> Duration {
        let wait = |(thread, turns): (&OsString, &Turns)| {
            let before = self.threads.get(thread).copied().unwrap_or_default();
            turns.since(before).waited
        };
        now.threads.iter().map(wait).max().unwrap_or_default()
    }

    /// Run time from this measurement to `now`, in percent of one uncontended processor.
    pub(crate) fn percent_until(&self, now: &Self) -> u32 {
        let elapsed = now.at - self.at;
        let share = |(thread, turns): (&OsString, &Turns)| {
            let before = self.threads.get(thread).copied().unwrap_or_default();
            turns.since(before).share_of(elapsed)
        };
        let shares: f64 = now.threads.iter().map(share).sum();
        // The percentages of a few threads fit, and none is negative.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = (shares * 100.0).round() as u32;
        percent
    }
}

// === impl Turns ===

impl Turns {
    /// Times of a thread, from `schedstat` of proc(5), in nanoseconds. `None` if it has just ended.
    fn of(task: &Path) -> Option<Self> {
        let text = fs::read_to_string(task.join("schedstat")).ok()?;
        let mut nanos = text.split_whitespace().map(|it| it.parse().map(Duration::from_nanos));
        Some(Self { ran: nanos.next()?.ok()?, waited: nanos.next()?.ok()? })
    }

    fn since(self, before: Self) -> Self {
        let ran = self.ran.saturating_sub(before.ran);
        Self { ran, waited: self.waited.saturating_sub(before.waited) }
    }

    fn share_of(self, elapsed: Duration) -> f64 {
        // The kernel's clock differs slightly from this one.
        let could_have_run = elapsed.saturating_sub(self.waited).max(self.ran);
        if self.ran.is_zero() { 0.0 } else { self.ran.div_duration_f64(could_have_run) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(at: Instant, threads: &[(&str, u64, u64)]) -> Load {
        let turns = |&(thread, ran, waited): &(&str, _, _)| {
            let [ran, waited] = [ran, waited].map(Duration::from_millis);
            (thread.into(), Turns { ran, waited })
        };
        Load { at, threads: threads.iter().map(turns).collect() }
    }

    #[test]
    fn a_busy_loop_is_one_however_little_it_is_let_run_and_a_thread_that_was_kept_waiting_is_none()
    {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(4);
        let before = load(begun, &[("loop", 1_000, 10_000), ("idle", 50, 7_000), ("ended", 9, 9)]);
        let alone = load(now, &[("loop", 4_990, 10_010), ("idle", 60, 7_000)]);
        assert_eq!(before.percent_until(&alone), 100);
        let beside_others = load(now, &[("loop", 1_220, 13_780), ("idle", 60, 7_000)]);
        assert_eq!(before.percent_until(&beside_others), 100);
        assert_eq!(before.wait_until(&alone), Duration::from_millis(10));
        assert_eq!(before.wait_until(&beside_others), Duration::from_millis(3_780));
        let idle = load(now, &[("loop", 1_000, 10_000), ("idle", 60, 10_500), ("new", 0, 4_000)]);
        assert_eq!(before.percent_until(&idle), 2);
    }

    #[test]
    fn this_program_has_turns() {
        let own = Load::of(["/proc/self"].iter());
        assert!(own.threads.values().any(|it| !it.ran.is_zero()), "the kernel counts none");
    }
}
