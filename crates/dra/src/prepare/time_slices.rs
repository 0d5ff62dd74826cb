//! Time slices of a claim's GPUs. They are set after the record is written, and reset before the record
//! forgets the claim: a killed agent leaves the reset to the next one.

use tokio::time::Duration;
use windlass_core::{device::DeviceId, health::Reason};
use windlass_host::{causes, deadline};
use windlass_resources::NodeState;

use super::environment::Environment;
use crate::{record::Entry, time_slice::Interval};

/// Deadline of the program. It queries every GPU of the node first, which takes seconds each if the driver
/// is not kept loaded.
const LIMIT: Duration = Duration::from_secs(20);

// === impl Environment ===

impl Environment {
    pub(super) async fn set_time_slices(&self, entry: &Entry) -> Result<(), String> {
        for (device, interval) in intervals(entry) {
            self.set_time_slice(device, interval).await?;
        }
        Ok(())
    }

    /// Resets the time slices of a claim. A GPU that is gone or lost needs a reset to return, which resets
    /// them too.
    pub(super) async fn set_time_slices_back(&self, entry: &Entry) -> Result<(), String> {
        for (device, _) in intervals(entry) {
            if is_in_reach(&self.state.borrow(), device) {
                self.set_time_slice(device, Interval::Default).await?;
            }
        }
        Ok(())
    }

    async fn set_time_slice(&self, device: &DeviceId, interval: Interval) -> Result<(), String> {
        let failed = |why| format!("cannot set the time slice of {device} to {interval:?}: {why}");
        let arguments =
            ["compute-policy", "-i", device.as_str(), "--set-timeslice", interval.number()];
        match deadline::timeout(LIMIT, self.partitions.nvidia_smi().run(&arguments)).await {
            Ok(done) => done.map_err(|error| failed(causes(&error))),
            Err(_) => Err(failed(format!("nvidia-smi did not end within {LIMIT:?}"))),
        }
    }
}

/// GPUs of a claim with another time slice than the default.
fn intervals(entry: &Entry) -> impl Iterator<Item = (&DeviceId, Interval)> {
    let held = entry.devices.iter().filter(|held| !held.interval.is_default());
    held.filter_map(|held| Some((held.device.as_ref()?, held.interval)))
}

fn is_in_reach(state: &NodeState, device: &DeviceId) -> bool {
    let found = state.inventory.get(device.as_str());
    let is_away = |reason| matches!(reason, Reason::Vanished | Reason::Lost);
    found.is_some_and(|device| !device.health.trouble().is_some_and(|it| is_away(it.reason)))
}
