//! Time slices of a claim's GPUs. They are set after the record is written, and reset before it is removed, so that the
//! next agent can reset them after a kill.

use tokio::time::Duration;
use windlass_core::{device::DeviceId, health::Reason};
use windlass_host::{causes, deadline};
use windlass_resources::NodeState;

use super::environment::Environment;
use crate::{record::PreparedClaim, time_slice::Interval};

/// Deadline of `nvidia-smi`. It first queries every GPU of the node, which takes seconds each without persistence mode.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(20);

// === impl Environment ===

impl Environment {
    pub(super) async fn set_time_slices(&self, entry: &PreparedClaim) -> Result<(), String> {
        for (device, interval) in intervals(entry) {
            self.set_time_slice(device, interval).await?;
        }
        Ok(())
    }

    /// Resets the time slices of a claim. A GPU that vanished or fell off the bus is skipped: it returns by a reset,
    /// which resets them too.
    pub(super) async fn reset_time_slices(&self, entry: &PreparedClaim) -> Result<(), String> {
        for (device, _) in intervals(entry) {
            if is_reachable(&self.state.borrow(), device) {
                self.set_time_slice(device, Interval::Default).await?;
            }
        }
        Ok(())
    }

    async fn set_time_slice(&self, device: &DeviceId, interval: Interval) -> Result<(), String> {
        let failed = |why| format!("cannot set the time slice of {device} to {interval:?}: {why}");
        let arguments =
            ["compute-policy", "-i", device.as_str(), "--set-timeslice", interval.number()];
        match deadline::timeout(NVIDIA_SMI_TIMEOUT, self.partitions.nvidia_smi().run(&arguments))
            .await
        {
            Ok(done) => done.map_err(|error| failed(causes(&error))),
            Err(_) => Err(failed(format!("nvidia-smi did not end within {NVIDIA_SMI_TIMEOUT:?}"))),
        }
    }
}

/// GPUs of a claim whose time slice is not the default.
fn intervals(entry: &PreparedClaim) -> impl Iterator<Item = (&DeviceId, Interval)> {
    let held = entry.devices.iter().filter(|held| !held.interval.is_default());
    held.filter_map(|held| Some((held.device.as_ref()?, held.interval)))
}

fn is_reachable(state: &NodeState, device: &DeviceId) -> bool {
    let found = state.inventory.get(device.as_str());
    let is_away = |reason| matches!(reason, Reason::Vanished | Reason::Lost);
    found.is_some_and(|device| !device.health.failure().is_some_and(|it| is_away(it.reason)))
}
