//! Wait for the kubelet's checkpoint after an Allocate, before a pod resources call.
//!
//! A kubelet up to 1.36 may forget an allocation if pod resources are listed between the Allocate call and its
//! checkpoint, and give the device to a second container. Listing rebuilds the kubelet's list of allocated devices
//! (`UpdateAllocatedDevices` in `cm/devicemanager/manager.go`) if a pod has ended. So the agent waits before it lists.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass_host::deadline;

use super::{Ledger, SharedLedger};

/// Longest time from the answer to Allocate to the kubelet's checkpoint. It is usually a few milliseconds; 150 were
/// seen on an overloaded machine.
const CHECKPOINT_DELAY: Duration = Duration::from_millis(500);

/// Longest wait. A scrape waits for the call, and an endless series of pods must not prevent it.
const MAX_WAIT: Duration = Duration::from_secs(2);

// === impl SharedLedger ===

impl SharedLedger {
    /// Waits until the kubelet's checkpoint can contain the last Allocate.
    pub async fn wait_for_checkpoint(&self) {
        let checkpoint_written = async {
            let remaining = || self.0.snapshots.borrow().checkpoint_delay_left();
            while let Some(remaining) = remaining() {
                sleep(remaining).await;
            }
        };
        // After the longest wait the caller continues.
        let _ = deadline::timeout(MAX_WAIT, checkpoint_written).await;
    }
}

// === impl Ledger ===

impl Ledger {
    /// Time left until the checkpoint can contain the last Allocate.
    fn checkpoint_delay_left(&self) -> Option<Duration> {
        let last_allocate = self.containers.values().filter_map(|hold| hold.allocated_at).max()?;
        let deadline = last_allocate + CHECKPOINT_DELAY;
        deadline.checked_duration_since(Instant::now()).filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{resource, without_overlaps},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn the_wait_ends_once_the_checkpoint_can_contain_the_last_allocate() {
        let (ledger, start) = (SharedLedger::default(), Instant::now());
        ledger.wait_for_checkpoint().await;
        assert_eq!(start.elapsed(), Duration::ZERO, "nothing was allocated");
        ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
        ledger.wait_for_checkpoint().await;
        assert!((CHECKPOINT_DELAY..MAX_WAIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn endless_allocations_delay_the_call_up_to_the_limit() {
        let (ledger, start) = (SharedLedger::default(), Instant::now());
        let pods = async {
            loop {
                ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
                sleep(CHECKPOINT_DELAY / 2).await;
            }
        };
        tokio::select! {
            biased;
            () = pods => unreachable!("the series of pods never ends"),
            () = ledger.wait_for_checkpoint() => {}
        }
        assert!(
            (MAX_WAIT..MAX_WAIT + CHECKPOINT_DELAY).contains(&start.elapsed()),
            "{:?}",
            start.elapsed()
        );
    }
}
