//! Work that takes a given time: a wait, as for a device that computes, or processor time.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::{JoinError, spawn_blocking};

use crate::{cli::WorkArgs, precise};

/// The times of the work, and the size of its results.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    how: How,
    per_item: Duration,
    per_batch: Duration,
    /// Part of the time by which it varies.
    variation: f64,
    /// Size of a result; none: the payload itself.
    output: Option<usize>,
}

/// The thing that is used up.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Time that passes.
    Sleep,
    /// Time of a processor.
    Compute,
}

/// The end of a wait in which the thread stays awake: timers are up to this late.
const AWAKE: Duration = Duration::from_micros(150);

// === impl Pace ===

impl Pace {
    pub(super) fn of(args: &WorkArgs) -> Option<Self> {
        let (how, per_item) = match (args.sleep, args.compute) {
            (Some(time), _) => (How::Sleep, time),
            (None, Some(time)) => (How::Compute, time),
            (None, None) => return None,
        };
        Some(Self {
            how,
            per_item,
            per_batch: args.sleep_batch.unwrap_or_default(),
            variation: args.variation.unwrap_or_default(),
            output: args.output,
        })
    }

    /// Takes its time, on a thread that may block. Runtimes' timers are a millisecond late.
    pub(super) async fn work(self, payloads: Vec<Bytes>) -> Result<Vec<Bytes>, JoinError> {
        let begun = Instant::now();
        let items = payloads.iter().map(|_| self.per_item.mul_f64(self.factor()));
        let time = self.per_batch + items.sum::<Duration>();
        let how = self.how;
        spawn_blocking(move || match how {
            How::Sleep => sleep_until(begun + time),
            How::Compute => compute(time),
        })
        .await?;
        let result = |payload: Bytes| match self.output {
            Some(size) => Bytes::from(vec![0; size]),
            None => payload,
        };
        Ok(payloads.into_iter().map(result).collect())
    }

    /// A random number around one.
    fn factor(&self) -> f64 {
        // Each hasher has keys of its own.
        let random = RandomState::new().build_hasher().finish() >> 32;
        let even = f64::from(u32::try_from(random).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        1.0 + self.variation * (2.0 * even - 1.0)
    }
}

fn sleep_until(until: Instant) {
    precise::sleep_until(until.checked_sub(AWAKE).unwrap_or(until));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Computes for that much processor time, which takes longer where other programs want the core.
fn compute(time: Duration) {
    let used = || {
        let clock = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(
            u64::try_from(clock.tv_sec).unwrap_or_default(),
            u32::try_from(clock.tv_nsec).unwrap_or_default(),
        )
    };
    let until = used() + time;
    while used() < until {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(per_item: Duration, variation: f64) -> Pace {
        let how = How::Sleep;
        Pace { how, per_item, per_batch: Duration::ZERO, variation, output: Some(3) }
    }

    #[tokio::test]
    async fn a_sleep_is_as_long_as_it_was_asked_for_and_once_per_item() {
        let time = Duration::from_millis(3);
        let mut late = Duration::MAX;
        // A busy machine may be late, but not each time.
        for _ in 0..20 {
            let begun = Instant::now();
            let results = pace(time, 0.0).work(vec![Bytes::new(); 2]).await.expect("no panic");
            assert_eq!(results, vec![Bytes::from_static(&[0; 3]); 2]);
            late = late.min(begun.elapsed().checked_sub(time * 2).expect("never early"));
        }
        assert!(late < Duration::from_micros(500), "{late:?}");
    }

    #[test]
    fn a_variation_is_even_around_the_time() {
        let factors: Vec<_> = (0..2000).map(|_| pace(Duration::ZERO, 0.2).factor()).collect();
        assert!(factors.iter().all(|factor| (0.8..=1.2).contains(factor)));
        let mean = factors.iter().sum::<f64>() / 2000.0;
        assert!((0.985..1.015).contains(&mean), "{mean}");
    }
}
