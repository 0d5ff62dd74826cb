//! Deadlines that count only time in which the agent runs.
//!
//! A stopped agent (SIGSTOP, a paused virtual machine, CPU starvation) receives no answers. By the clock alone, a
//! healthy GPU would then miss its deadline and be withheld for a quiet period. So a deadline consists of slices. A
//! slice counts only if the agent checks the deadline soon after the slice's end:
//!
//! ```text
//!                  checked in time                  last slice
//!   slice begins ─────────────────────> it counts ──────────────> passed
//!       ^  │                                │
//!       │  │ checked late: the agent        └─> next slice begins
//!       └──┘ was stopped: not counted
//! ```
//!
//! A check is late if twice the duration of a slice has passed since the slice began; after a shorter delay the slice
//! counts. At most ten slices of a deadline stay uncounted. So a stop of the agent does not shorten a call's time,
//! and a hanging call is always detected.
//!
//! These deadlines are unsuitable for periods that other programs measure too, such as a lease, which expires while the
//! agent is stopped.

use std::{future::pending, pin::pin, time::Duration};

use tokio::time::{Instant, error::Elapsed, timeout_at};
use tokio_util::sync::CancellationToken;

/// Deadline that counts only time in which the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    slice: Duration,
    /// Slices that have not counted yet.
    remaining_slices: u32,
    /// Number of late slices that may still stay uncounted.
    uncounted_slices_left: u32,
    /// End of the current slice.
    slice_end: Instant,
}

/// Slices per deadline. A stop of up to one slice counts as running time. More slices would cost more wake-ups.
const SLICES: u32 = 10;

// === impl Deadline ===

impl Deadline {
    /// A deadline after `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self::starting_at(Instant::now(), limit)
    }

    /// A deadline after `limit` from `now`.
    pub fn starting_at(now: Instant, limit: Duration) -> Self {
        let slice = limit / SLICES;
        Self {
            slice,
            remaining_slices: SLICES,
            uncounted_slices_left: SLICES,
            slice_end: now + slice,
        }
    }

    /// End of the current slice: time of the next check.
    pub fn next_check(&self) -> Instant {
        self.slice_end
    }

    /// Updates the deadline; returns true once it has passed.
    pub fn has_passed(&mut self, now: Instant) -> bool {
        if now < self.slice_end || self.remaining_slices == 0 {
            return self.remaining_slices == 0;
        }
        let is_late = now >= self.slice_end + self.slice;
        self.slice_end = if is_late { now } else { self.slice_end } + self.slice;
        if is_late && self.uncounted_slices_left > 0 {
            self.uncounted_slices_left -= 1;
        } else {
            self.remaining_slices -= 1;
        }
        self.remaining_slices == 0
    }

    /// Remaining time, in whole slices.
    pub fn remaining(&self) -> Duration {
        self.slice * self.remaining_slices
    }

    /// Waits until the deadline has passed.
    pub async fn passed(&mut self) {
        // The future never completes, so only the deadline ends the wait.
        drop(self.timeout(pending::<()>()).await);
    }

    /// Waits for a future. Fails if the deadline passes first.
    pub async fn timeout<F: Future>(&mut self, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        loop {
            match timeout_at(self.slice_end, &mut future).await {
                Err(_) if !self.has_passed(Instant::now()) => {}
                result => return result,
            }
        }
    }
}

/// `tokio::time::timeout` that ignores time in which the agent did not run.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    Deadline::after(limit).timeout(future).await
}

/// Runs work with a token that is cancelled after `limit`. The work continues until it ends itself.
pub async fn cancel_after<F: Future>(
    limit: Duration,
    work: impl FnOnce(CancellationToken) -> F,
) -> F::Output {
    let expired = CancellationToken::new();
    let mut deadline = Deadline::after(limit);
    let mut work = pin!(work(expired.clone()));
    // The work continues after the deadline has passed.
    if let Ok(output) = deadline.timeout(&mut work).await {
        return output;
    }
    expired.cancel();
    work.await
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const SLICE: Duration = Duration::from_millis(500);

    /// Time until a deadline passes if each check comes after this delay.
    fn passes_after(delay: Duration) -> Duration {
        let start = Instant::now();
        let (mut deadline, mut now) = (Deadline::starting_at(start, LIMIT), start);
        while !deadline.has_passed(now) {
            now = deadline.next_check() + delay;
        }
        now - start
    }

    #[test]
    fn a_deadline_passes_in_its_time_despite_small_delays() {
        assert_eq!(passes_after(Duration::ZERO), LIMIT);
        let delay = Duration::from_millis(400);
        assert_eq!(passes_after(delay), LIMIT + delay, "delays do not add up");
    }

    #[test]
    fn a_hanging_call_is_detected_even_if_every_check_is_late() {
        let delay = Duration::from_secs(2);
        assert_eq!(passes_after(delay), (SLICE + delay) * SLICES * 2);
    }

    #[test]
    fn time_in_which_the_agent_was_stopped_is_not_counted_and_a_whole_slice_follows_it() {
        let start = Instant::now();
        let mut deadline = Deadline::starting_at(start, LIMIT);
        for slice in 1..SLICES {
            assert!(!deadline.has_passed(start + SLICE * slice));
        }
        assert_eq!(deadline.remaining(), SLICE);
        let wake_up = start + Duration::from_secs(3600);
        assert!(!deadline.has_passed(wake_up), "the agent was stopped during the last slice");
        assert_eq!(deadline.next_check(), wake_up + SLICE);
        assert!(deadline.has_passed(wake_up + SLICE));
        assert!(deadline.has_passed(wake_up + SLICE), "a passed deadline stays passed");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_a_stop_of_the_agent_is_awaited() {
        let answer = async {
            sleep(SLICE / 2).await;
            advance(LIMIT * 2).await;
            sleep(SLICE / 2).await;
            7
        };
        assert_eq!(timeout(LIMIT, answer).await.ok(), Some(7));
        let start = Instant::now();
        assert!(timeout(LIMIT, pending::<()>()).await.is_err());
        assert_eq!(start.elapsed(), LIMIT, "a missing answer is detected in time");
        let short_limit = Duration::from_millis(25);
        assert!(timeout(short_limit, pending::<()>()).await.is_err());
        assert_eq!(start.elapsed(), LIMIT + short_limit);
    }

    #[tokio::test(start_paused = true)]
    async fn work_with_an_expired_deadline_sees_the_cancellation_and_continues() {
        let start = Instant::now();
        let checks = async |expired: CancellationToken| {
            let mut checks = 0;
            while !expired.is_cancelled() {
                sleep(SLICE * 3).await;
                checks += 1;
            }
            checks
        };
        assert_eq!(cancel_after(LIMIT, checks).await, 4);
        assert_eq!(start.elapsed(), SLICE * 12);
    }
}
