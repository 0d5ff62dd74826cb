//! Blocking reads from devices, with a deadline per device and a shared budget per scan.
//!
//! A device that hangs delays others little; many hanging devices delay a scan little more than one.

use std::time::{Duration, Instant};

use super::{DeadlinePool, Late};

/// Deadline pool of a family, one thread per hanging device.
#[derive(Debug)]
pub struct ScanPool<K, A> {
    pool: DeadlinePool<K, A>,
    /// Time that the current scan lost to hanging devices.
    lost: Duration,
}

/// Deadline of the first device. Kernel answers take microseconds; healthy firmware takes milliseconds.
pub const SOON: Duration = Duration::from_millis(500);

/// Deadline after many devices hung.
const LEAST: Duration = Duration::from_millis(50);

// === impl ScanPool ===

impl<K: Ord, A: Send + 'static> ScanPool<K, A> {
    /// Runs `read` on another thread. Lost time halves into the next deadline: the first hanging devices
    /// cost a second together, each further one 50 ms, once.
    pub fn call(
        &mut self,
        device: K,
        read: impl FnOnce() -> A + Send + 'static,
    ) -> Result<A, Late> {
        let limit = self.limit();
        let begun = Instant::now();
        let answer = self.pool.call(device, limit, read);
        if answer.is_err() {
            // Time in which the agent was suspended does not count.
            self.lost += begun.elapsed().min(limit);
        }
        answer
    }

    /// Deadline of the next device.
    fn limit(&self) -> Duration {
        SOON.saturating_sub(self.lost / 2).max(LEAST)
    }

    /// Ends a scan; forgets devices that are gone.
    pub fn end_scan(&mut self, is_there: impl Fn(&K) -> bool) {
        self.lost = Duration::ZERO;
        self.pool.end_round(is_there);
    }
}

impl<K, A> Default for ScanPool<K, A> {
    fn default() -> Self {
        Self { pool: DeadlinePool::default(), lost: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn many_that_do_not_answer_cost_a_look_little_more_than_one() {
        let (mut pool, mut unanswered) = (ScanPool::default(), Vec::new());
        for device in 0..20 {
            let (answer, question) = channel::<u32>();
            unanswered.push(answer);
            let told = pool.call(device, move || question.recv().unwrap_or_default());
            assert_eq!(told, Err(Late));
        }
        assert_eq!(pool.call(20, || 7), Ok(7), "who answers is heard all the same");
        assert!((SOON * 2..SOON * 5).contains(&pool.lost), "{:?}", pool.lost);
        pool.end_scan(|_| true);
        assert_eq!(pool.limit(), SOON, "the next scan has the whole limit");
    }
}
