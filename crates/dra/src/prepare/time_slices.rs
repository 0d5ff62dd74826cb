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
    pub(super) async fn set_time_slices(&self, record: &PreparedClaim) -> Result<(), String> {
        for (device, interval) in intervals(record) {
            self.set_time_slice(device, interval).await?;
        }
        Ok(())
    }

    /// Resets the time slices of a claim. A GPU that vanished or fell off the bus is skipped: it returns by a reset,
    /// which resets them too.
    pub(super) async fn reset_time_slices(&self, record: &PreparedClaim) -> Result<(), String> {
        for (device, _) in intervals(record) {
            if is_reachable(&self.state.borrow(), device) {
                self.set_time_slice(device, Interval::Default).await?;
            }
        }
        Ok(())
    }

    async fn set_time_slice(&self, device: &DeviceId, interval: Interval) -> Result<(), String> {
        let set_error = |reason: String| {
            format!("cannot set the time slice of {device} to {interval:?}: {reason}")
        };
        let arguments = [
            "compute-policy",
            "-i",
            device.as_str(),
            "--set-timeslice",
            interval.nvidia_smi_value(),
        ];
        match deadline::timeout(NVIDIA_SMI_TIMEOUT, self.partitions.nvidia_smi().run(&arguments))
            .await
        {
            Ok(result) => result.map_err(|error| set_error(causes(&error))),
            Err(_) => {
                Err(set_error(format!("nvidia-smi did not end within {NVIDIA_SMI_TIMEOUT:?}")))
            }
        }
    }
}

/// GPUs of a claim whose time slice is not the default.
fn intervals(record: &PreparedClaim) -> impl Iterator<Item = (&DeviceId, Interval)> {
    let with_interval = record.devices.iter().filter(|device| !device.interval.is_default());
    with_interval.filter_map(|device| Some((device.device.as_ref()?, device.interval)))
}

fn is_reachable(state: &NodeState, device: &DeviceId) -> bool {
    let current_device = state.inventory.get(device.as_str());
    let is_away = |reason| matches!(reason, Reason::Vanished | Reason::Lost);
    current_device.is_some_and(|device| {
        !device.health.failure().is_some_and(|failure| is_away(failure.reason))
    })
}
