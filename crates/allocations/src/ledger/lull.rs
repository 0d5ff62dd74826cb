//! A time in which the kubelet is not in the midst of giving a device away.
//!
//! A kubelet up to 1.36 that is asked over pod resources who has what, between calling Allocate and noting what
//! it gave, may forget that allocation, and give the device to a second container: the question rebuilds its
//! list of what is given away (`UpdateAllocatedDevices` in `cm/devicemanager/manager.go`) where a pod has ended.
//! So the agent does not ask then.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass_host::deadline;

use super::{Ledger, LedgerDesk};

/// How long after an answer to Allocate the kubelet may not have noted it. It takes a few milliseconds; on a
/// machine with nothing to spare 150 were seen.
const NOTED: Duration = Duration::from_millis(500);

/// For how long a question waits for a lull: pods that are made without end must not keep it from being asked, nor a
/// scrape from its answer.
const PATIENCE: Duration = Duration::from_secs(2);

// === impl LedgerDesk ===

impl LedgerDesk {
    /// Waits until the kubelet has had the time to note what it gave away last.
    pub async fn lull(&self) {
        let noted = async {
            let unnoted = || self.0.snapshots.borrow().unnoted();
            while let Some(left) = unnoted() {
                sleep(left).await;
            }
        };
        // Without a lull the question has to be asked all the same.
        let _ = deadline::timeout(PATIENCE, noted).await;
    }
}

// === impl Ledger ===

impl Ledger {
    /// How much longer what was given away last may not have been noted.
    fn unnoted(&self) -> Option<Duration> {
        let last = self.containers.values().filter_map(|hold| hold.given).max()?;
        (last + NOTED).checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{alone, resource},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_until_what_was_given_away_is_noted() {
        let (ledger, begun) = (LedgerDesk::default(), Instant::now());
        ledger.lull().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing was given away");
        ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
        ledger.lull().await;
        assert!((NOTED..PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn pods_without_end_put_a_question_off_and_do_not_prevent_it() {
        let (ledger, begun) = (LedgerDesk::default(), Instant::now());
        let pods = async {
            loop {
                ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
                sleep(NOTED / 2).await;
            }
        };
        tokio::select! {
            biased;
            () = pods => unreachable!("they never end"),
            () = ledger.lull() => {}
        }
        assert!((PATIENCE..PATIENCE + NOTED).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
}
