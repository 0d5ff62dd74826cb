//! Intervals of time slices: set when a claim gets a GPU, after that is written down, and set back before the
//! record forgets the claim, so that an agent that was killed in between leaves the next one to do it.

use tokio::time::Duration;
use windlass_core::{device::DeviceId, health::Reason};
use windlass_host::{causes, deadline};
use windlass_resources::NodeState;

use super::ground::Ground;
use crate::{record::Entry, time_slice::Interval};

/// How long the program may take: it asks the driver for every GPU of the node first, and where nothing
/// keeps the driver loaded that can take seconds for each.
const LIMIT: Duration = Duration::from_secs(20);

// === impl Ground ===

impl Ground {
    /// Sets what a claim asks for.
    pub(super) async fn set_time_slices(&self, entry: &Entry) -> Result<(), String> {
        for (device, interval) in intervals(entry) {
            self.set_time_slice(device, interval).await?;
        }
        Ok(())
    }

    /// Sets back what a claim asked for. What is gone or lost needs a reset to come back, which sets it
    /// back.
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

/// The GPUs of a claim that have an interval other than the usual.
fn intervals(entry: &Entry) -> impl Iterator<Item = (&DeviceId, Interval)> {
    let held = entry.devices.iter().filter(|held| !held.interval.is_default());
    held.filter_map(|held| Some((held.device.as_ref()?, held.interval)))
}

fn is_in_reach(state: &NodeState, device: &DeviceId) -> bool {
    let found = state.inventory.get(device.as_str());
    let is_away = |reason| matches!(reason, Reason::Vanished | Reason::Lost);
    found.is_some_and(|device| !device.health.trouble().is_some_and(|it| is_away(it.reason)))
}
