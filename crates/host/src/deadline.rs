//! Deadlines that count only the time in which the agent itself ran.
//!
//! An agent that was stopped (SIGSTOP, a paused virtual machine, a CPU that others had) heard of nothing meanwhile,
//! and the threads that wait for an answer on its behalf stood still as well. Judged by the clock alone, whoever
//! was asked at that moment would be found silent: a healthy GPU would be taken away for a quiet period. So a
//! deadline is waited for in slices:
//!
//! ```text
//!                  looked at in time                 last slice
//!   slice begins ─────────────────────> it counts ──────────────> passed
//!       ^  │                                │
//!       │  │ looked at late: the agent      └─> the next slice begins
//!       └──┘ slept, and it does not count
//! ```
//!
//! A slice is late when it took twice its time: less is an ordinary delay, and counts. Slices that do not count are
//! as many as those of the deadline at most. So each question gets at least one fresh deadline's time in which the
//! agent ran, and what hangs is found however little the agent runs.
//!
//! Not for time that others count as well: whose lease has run out has lost it, frozen or not.

use std::{future::pending, pin::pin, time::Duration};

use tokio::time::{Instant, error::Elapsed, timeout_at};
use tokio_util::sync::CancellationToken;

/// How long something may take, counted while the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    slice: Duration,
    /// Slices to go.
    left: u32,
    /// Slices that the agent may yet sleep through without their counting.
    excused: u32,
    /// When the present slice ends.
    ends: Instant,
}

/// Slices of a deadline: so much of it, a tenth, a freeze may cost without being noticed. Nobody wakes more often for
/// it, and for what takes microseconds not at all.
const SLICES: u32 = 10;

// === impl Deadline ===

impl Deadline {
    /// Passes after so long.
    pub fn after(limit: Duration) -> Self {
        Self::starting_at(Instant::now(), limit)
    }

    /// Passes so long after `now`.
    pub fn starting_at(now: Instant, limit: Duration) -> Self {
        let slice = limit / SLICES;
        Self { slice, left: SLICES, excused: SLICES, ends: now + slice }
    }

    /// When it is to be looked at again; whoever looks later slept.
    pub fn next_look(&self) -> Instant {
        self.ends
    }

    /// Takes note of the time, and says whether it has passed.
    pub fn has_passed(&mut self, now: Instant) -> bool {
        if now < self.ends || self.left == 0 {
            return self.left == 0;
        }
        let slept = now >= self.ends + self.slice;
        self.ends = if slept { now } else { self.ends } + self.slice;
        if slept && self.excused > 0 {
            self.excused -= 1;
        } else {
            self.left -= 1;
        }
        self.left == 0
    }

    /// How much of it is left, to the slice.
    pub fn left(&self) -> Duration {
        self.slice * self.left
    }

    /// Waits until it has passed.
    pub async fn passed(&mut self) {
        // Nothing ends it sooner.
        drop(self.bound(pending::<()>()).await);
    }

    /// Waits for something until it has passed.
    pub async fn bound<F: Future>(&mut self, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        loop {
            match timeout_at(self.ends, &mut future).await {
                Err(_) if !self.has_passed(Instant::now()) => {}
                outcome => return outcome,
            }
        }
    }
}

/// Waits for something, as `tokio::time::timeout` does, and no shorter for a time in which the agent did not run.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    Deadline::after(limit).bound(future).await
}

/// Does some work beside a deadline: the token is cancelled when that has passed, for work that says then how far
/// it came.
pub async fn beside<F: Future>(
    limit: Duration,
    work: impl FnOnce(CancellationToken) -> F,
) -> F::Output {
    let over = CancellationToken::new();
    let mut deadline = Deadline::after(limit);
    let mut work = pin!(work(over.clone()));
    // A deadline bounds the work until it has passed, and the work goes on.
    if let Ok(output) = deadline.bound(&mut work).await {
        return output;
    }
    over.cancel();
    work.await
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const SLICE: Duration = Duration::from_millis(500);

    /// How long it takes until a deadline has passed that is looked at so much later each time than it asks for.
    fn passes_after(late: Duration) -> Duration {
        let begun = Instant::now();
        let (mut deadline, mut now) = (Deadline::starting_at(begun, LIMIT), begun);
        while !deadline.has_passed(now) {
            now = deadline.next_look() + late;
        }
        now - begun
    }

    #[test]
    fn a_deadline_passes_in_its_time_where_nothing_is_late_or_only_a_little() {
        assert_eq!(passes_after(Duration::ZERO), LIMIT);
        let little = Duration::from_millis(400);
        assert_eq!(passes_after(little), LIMIT + little, "delays do not add up");
    }

    #[test]
    fn what_hangs_is_found_however_rarely_the_agent_runs() {
        let rarely = Duration::from_secs(2);
        assert_eq!(passes_after(rarely), (SLICE + rarely) * SLICES * 2);
    }

    #[test]
    fn time_in_which_the_agent_was_stopped_is_not_counted_and_nothing_is_judged_right_after_it() {
        let begun = Instant::now();
        let mut deadline = Deadline::starting_at(begun, LIMIT);
        for slice in 1..SLICES {
            assert!(!deadline.has_passed(begun + SLICE * slice));
        }
        assert_eq!(deadline.left(), SLICE);
        let woken = begun + Duration::from_secs(3600);
        assert!(!deadline.has_passed(woken), "the last slice was slept through");
        assert_eq!(deadline.next_look(), woken + SLICE);
        assert!(deadline.has_passed(woken + SLICE));
        assert!(deadline.has_passed(woken + SLICE), "and stays so");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_a_moment_is_waited_for_over_a_freeze() {
        let answer = async {
            sleep(SLICE / 2).await;
            advance(LIMIT * 2).await;
            sleep(SLICE / 2).await;
            7
        };
        assert_eq!(timeout(LIMIT, answer).await.ok(), Some(7));
        let begun = Instant::now();
        assert!(timeout(LIMIT, pending::<()>()).await.is_err());
        assert_eq!(begun.elapsed(), LIMIT, "silence is found in its time");
        let odd = Duration::from_millis(25);
        assert!(timeout(odd, pending::<()>()).await.is_err());
        assert_eq!(begun.elapsed(), LIMIT + odd);
    }

    #[tokio::test(start_paused = true)]
    async fn work_beside_a_deadline_sees_that_it_has_passed_and_goes_on() {
        let begun = Instant::now();
        let looks = async |over: CancellationToken| {
            let mut looks = 0;
            while !over.is_cancelled() {
                sleep(SLICE * 3).await;
                looks += 1;
            }
            looks
        };
        assert_eq!(beside(LIMIT, looks).await, 4);
        assert_eq!(begun.elapsed(), SLICE * 12);
    }
}
