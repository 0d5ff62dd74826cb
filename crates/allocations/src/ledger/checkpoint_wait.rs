//! Wait for the kubelet's checkpoint after an Allocate, before a pod resources call.
//!
//! A kubelet up to 1.36 may forget an allocation if pod resources are listed between the Allocate
//! call and its checkpoint, and give the device to a second container. The call rebuilds the kubelet's list
//! of allocated devices (`UpdateAllocatedDevices` in `cm/devicemanager/manager.go`) if a pod has ended. So
//! the agent does not call it then.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass_host::deadline;

use super::{Ledger, SharedLedger};

/// Time from the answer to Allocate to the kubelet's checkpoint. It takes a few milliseconds; 150 were seen
/// on an overloaded machine.
const CHECKPOINT_DELAY: Duration = Duration::from_millis(500);

/// Longest wait: neither an endless series of pods nor a scrape may prevent the call.
const MAX_WAIT: Duration = Duration::from_secs(2);

// === impl SharedLedger ===

impl SharedLedger {
    /// Waits until the kubelet's checkpoint can contain the last Allocate.
    pub async fn wait_for_checkpoint(&self) {
        let written = async {
            let left = || self.0.snapshots.borrow().checkpoint_delay_left();
            while let Some(left) = left() {
                sleep(left).await;
            }
        };
        // After the longest wait the call goes ahead.
        let _ = deadline::timeout(MAX_WAIT, written).await;
    }
}

// === impl Ledger ===

impl Ledger {
    /// Time left until the checkpoint can contain the last Allocate.
    fn checkpoint_delay_left(&self) -> Option<Duration> {
        let last = self.containers.values().filter_map(|hold| hold.allocated_at).max()?;
        let written = last + CHECKPOINT_DELAY;
        written.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
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
        let (ledger, begun) = (SharedLedger::default(), Instant::now());
        ledger.wait_for_checkpoint().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing was given away");
        ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
        ledger.wait_for_checkpoint().await;
        assert!((CHECKPOINT_DELAY..MAX_WAIT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn pods_without_end_put_a_question_off_and_do_not_prevent_it() {
        let (ledger, begun) = (SharedLedger::default(), Instant::now());
        let pods = async {
            loop {
                ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
                sleep(CHECKPOINT_DELAY / 2).await;
            }
        };
        tokio::select! {
            biased;
            () = pods => unreachable!("they never end"),
            () = ledger.wait_for_checkpoint() => {}
        }
        assert!(
            (MAX_WAIT..MAX_WAIT + CHECKPOINT_DELAY).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}
