//! Asking the devices of a family, one after the other, for what their firmware has to fill in: one that
//! does not answer keeps no other waiting for long, and many that do not keep a look waiting for little more
//! than one does.

use std::time::{Duration, Instant};

use windlass_host::external::{Late, Patience};

/// Asks each device by itself.
#[derive(Debug)]
pub(super) struct Asking<K, A> {
    patience: Patience<K, A>,
    /// What this look has waited for devices that did not answer.
    lost: Duration,
}

/// How long a look waits for one device. What the kernel has at hand takes microseconds, and what a healthy
/// device's firmware answers some milliseconds.
pub(super) const SOON: Duration = Duration::from_millis(500);

/// How long a device is waited for when many before it did not answer.
const LEAST: Duration = Duration::from_millis(50);

// === impl Asking ===

impl<K: Ord, A: Send + 'static> Asking<K, A> {
    /// Asks on another thread. Each device that is late leaves half the time for the next: the first few take
    /// a second together, and each of the many behind them a twentieth of one, once.
    pub(super) fn ask(
        &mut self,
        whom: K,
        question: impl FnOnce() -> A + Send + 'static,
    ) -> Result<A, Late> {
        let limit = self.limit();
        let begun = Instant::now();
        let answer = self.patience.ask(whom, limit, question);
        if answer.is_err() {
            // Time in which the agent did not run is no device's fault.
            self.lost += begun.elapsed().min(limit);
        }
        answer
    }

    /// How long the next one is waited for.
    fn limit(&self) -> Duration {
        SOON.saturating_sub(self.lost / 2).max(LEAST)
    }

    /// Ends a look; who is not there any more is not awaited.
    pub(super) fn rest(&mut self, is_there: impl Fn(&K) -> bool) {
        self.lost = Duration::ZERO;
        self.patience.rest(is_there);
    }
}

impl<K, A> Default for Asking<K, A> {
    fn default() -> Self {
        Self { patience: Patience::default(), lost: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn many_that_do_not_answer_cost_a_look_little_more_than_one() {
        let (mut asking, mut unanswered) = (Asking::default(), Vec::new());
        for device in 0..20 {
            let (answer, question) = channel::<u32>();
            unanswered.push(answer);
            let told = asking.ask(device, move || question.recv().unwrap_or_default());
            assert_eq!(told, Err(Late));
        }
        assert_eq!(asking.ask(20, || 7), Ok(7), "who answers is heard all the same");
        assert!((SOON * 2..SOON * 5).contains(&asking.lost), "{:?}", asking.lost);
        asking.rest(|_| true);
        assert_eq!(asking.limit(), SOON, "the next look has all its patience");
    }
}
