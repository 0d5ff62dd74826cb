//! How long something took, without the time in which the agent or the soak wanted a processor and had none: what a busy
//! machine takes from both is no slowness of the agent's.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use rustix::process::{Pid, getpid};
use tokio::time::Instant;
use windlass_conformance::process::waited_for_processors;

/// Runs from the moment at which it was made.
#[derive(Debug)]
pub(super) struct Stopwatch {
    agent: Pid,
    begun: Instant,
    /// By thread.
    waited: BTreeMap<OsString, Duration>,
}

// === impl Stopwatch ===

impl Stopwatch {
    pub(super) fn start(agent: Pid) -> Self {
        Self { agent, begun: Instant::now(), waited: waited(agent) }
    }

    /// So long so far. Threads that wait at the same time count each: at worst something slow is taken for something in
    /// time, on a machine that is busy.
    pub(super) fn elapsed(&self) -> Duration {
        // A thread that ended takes its own share with it, and no other's.
        let since = |(thread, all): (OsString, Duration)| {
            all.saturating_sub(self.waited.get(&thread).copied().unwrap_or_default())
        };
        let waited: Duration = waited(self.agent).into_iter().map(since).sum();
        self.begun.elapsed().saturating_sub(waited)
    }
}

fn waited(agent: Pid) -> BTreeMap<OsString, Duration> {
    let mut all = waited_for_processors(agent);
    all.append(&mut waited_for_processors(getpid()));
    all
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    #[test]
    fn time_in_which_another_thread_has_the_processor_is_not_counted() {
        let watch = Stopwatch::start(getpid());
        let (busy, told) = (Barrier::new(3), Barrier::new(3));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut one = CpuSet::new();
                    let all = sched_getaffinity(None).expect("known");
                    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("one"));
                    sched_setaffinity(None, &one).expect("allowed");
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_millis(50) {
                        std::hint::spin_loop();
                    }
                    busy.wait();
                    told.wait();
                });
            }
            busy.wait();
            let (counted, all) = (watch.elapsed(), watch.begun.elapsed());
            told.wait();
            assert!(counted < all, "{counted:?} of {all:?}");
        });
    }
}
