//! Work that takes a given time: a wait, as if a device computed, or processor time.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::{JoinError, spawn_blocking};

use crate::{cli::WorkArgs, precise};

/// Times of the work, and size of its results.
#[derive(Clone, Debug)]
pub(super) struct TimedWork {
    kind: TimedWorkKind,
    per_item: Duration,
    per_batch: Duration,
    /// Maximum deviation from `per_item`, as a fraction of it.
    variation: f64,
    /// Size of a result in bytes; `None` returns the payload itself.
    output: Option<usize>,
}

/// Resource that the work spends.
#[derive(Clone, Copy, Debug)]
enum TimedWorkKind {
    /// Wall-clock time.
    Sleep,
    /// Processor time.
    Compute,
}

/// Time before the end of a wait in which the thread spins: timers are late by up to this time.
const SPIN_TIME: Duration = Duration::from_micros(150);

// === impl TimedWork ===

impl TimedWork {
    pub(super) fn of(args: &WorkArgs) -> Option<Self> {
        let (kind, per_item) = match (args.sleep, args.compute) {
            (Some(time), _) => (TimedWorkKind::Sleep, time),
            (None, Some(time)) => (TimedWorkKind::Compute, time),
            (None, None) => return None,
        };
        Some(Self {
            kind,
            per_item,
            per_batch: args.sleep_batch.unwrap_or_default(),
            variation: args.variation.unwrap_or_default(),
            output: args.output,
        })
    }

    /// Waits or computes, on a blocking thread: the runtime's timers are a millisecond late.
    pub(super) async fn work(self, payloads: Vec<Bytes>) -> Result<Vec<Bytes>, JoinError> {
        let start = Instant::now();
        let items = payloads.iter().map(|_| self.per_item.mul_f64(self.random_factor()));
        let time = self.per_batch + items.sum::<Duration>();
        let kind = self.kind;
        spawn_blocking(move || match kind {
            TimedWorkKind::Sleep => sleep_until(start + time),
            TimedWorkKind::Compute => compute(time),
        })
        .await?;
        let result = |payload: Bytes| match self.output {
            Some(size) => Bytes::from(vec![0; size]),
            None => payload,
        };
        Ok(payloads.into_iter().map(result).collect())
    }

    /// Random factor, uniform within `variation` of one.
    fn random_factor(&self) -> f64 {
        // Each `RandomState` has other random keys.
        let random = RandomState::new().build_hasher().finish() >> 32;
        let uniform = f64::from(u32::try_from(random).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        1.0 + self.variation * (2.0 * uniform - 1.0)
    }
}

fn sleep_until(deadline: Instant) {
    precise::sleep_until(deadline.checked_sub(SPIN_TIME).unwrap_or(deadline));
    while Instant::now() < deadline {
        std::hint::spin_loop();
    }
}

/// Spends processor time. It takes longer in wall-clock time if other programs use the core.
fn compute(time: Duration) {
    let processor_time = || {
        let clock = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(
            u64::try_from(clock.tv_sec).unwrap_or_default(),
            u32::try_from(clock.tv_nsec).unwrap_or_default(),
        )
    };
    let end = processor_time() + time;
    while processor_time() < end {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed_sleep(per_item: Duration, variation: f64) -> TimedWork {
        let kind = TimedWorkKind::Sleep;
        TimedWork { kind, per_item, per_batch: Duration::ZERO, variation, output: Some(3) }
    }

    #[tokio::test]
    async fn a_sleep_lasts_the_requested_time_once_per_item() {
        let time = Duration::from_millis(3);
        let mut min_delay = Duration::MAX;
        // A busy machine may be late, but not every time.
        for _ in 0..20 {
            let start = Instant::now();
            let results =
                timed_sleep(time, 0.0).work(vec![Bytes::new(); 2]).await.expect("no panic");
            assert_eq!(results, vec![Bytes::from_static(&[0; 3]); 2]);
            min_delay = min_delay
                .min(start.elapsed().checked_sub(time * 2).expect("a sleep does not end early"));
        }
        assert!(min_delay < Duration::from_micros(500), "{min_delay:?}");
    }

    #[test]
    fn a_variation_is_uniform_around_the_time() {
        let factors: Vec<_> =
            (0..2000).map(|_| timed_sleep(Duration::ZERO, 0.2).random_factor()).collect();
        assert!(factors.iter().all(|factor| (0.8..=1.2).contains(factor)));
        let mean = factors.iter().sum::<f64>() / 2000.0;
        assert!((0.985..1.015).contains(&mean), "{mean}");
    }
}
