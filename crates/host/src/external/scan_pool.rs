//! Blocking reads from devices, with a deadline per device and a shared budget per scan.
//!
//! All hanging devices together delay a scan by about a second, and by 50 ms for each device after the fourth.

use std::time::{Duration, Instant};

use super::{DeadlineExceeded, DeadlinePool};

/// Deadline pool for the devices of a family, with a thread per hanging device.
#[derive(Debug)]
pub struct ScanPool<K, A> {
    pool: DeadlinePool<K, A>,
    /// Time that the current scan lost to hanging devices.
    time_lost: Duration,
}

/// Deadline of the first device in a scan. The kernel answers in microseconds, healthy firmware in milliseconds.
pub const MAX_DEADLINE: Duration = Duration::from_millis(500);

/// Shortest deadline, after other devices hung in this scan.
const MIN_DEADLINE: Duration = Duration::from_millis(50);

// === impl ScanPool ===

impl<K: Ord, A: Send + 'static> ScanPool<K, A> {
    /// Runs `read` on another thread. The deadline is shortened by half of the time that this scan lost to hanging
    /// devices, but not below 50 ms.
    pub fn call(
        &mut self,
        device: K,
        read: impl FnOnce() -> A + Send + 'static,
    ) -> Result<A, DeadlineExceeded> {
        let limit = self.limit();
        let start = Instant::now();
        let answer = self.pool.call(device, limit, read);
        if answer.is_err() {
            // Time in which the agent was suspended does not count.
            self.time_lost += start.elapsed().min(limit);
        }
        answer
    }

    /// Deadline of the next device.
    fn limit(&self) -> Duration {
        MAX_DEADLINE.saturating_sub(self.time_lost / 2).max(MIN_DEADLINE)
    }

    /// Ends a scan. Drops devices that are no longer present.
    pub fn end_scan(&mut self, is_present: impl Fn(&K) -> bool) {
        self.time_lost = Duration::ZERO;
        self.pool.end_round(is_present);
    }
}

impl<K, A> Default for ScanPool<K, A> {
    fn default() -> Self {
        Self { pool: DeadlinePool::default(), time_lost: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn many_hanging_devices_delay_a_scan_little_more_than_one() {
        let (mut pool, mut unanswered) = (ScanPool::default(), Vec::new());
        for device in 0..20 {
            let (answer, call) = channel::<u32>();
            unanswered.push(answer);
            let result = pool.call(device, move || call.recv().unwrap_or_default());
            assert_eq!(result, Err(DeadlineExceeded));
        }
        assert_eq!(pool.call(20, || 7), Ok(7), "a device that answers is still read");
        assert!(
            (MAX_DEADLINE * 2..MAX_DEADLINE * 5).contains(&pool.time_lost),
            "{:?}",
            pool.time_lost
        );
        pool.end_scan(|_| true);
        assert_eq!(pool.limit(), MAX_DEADLINE, "the next scan has the whole limit");
    }
}
