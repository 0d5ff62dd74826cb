//! Telemetry of devices. Separate from the inventory, so that a new sample does not change the inventory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use windlass_core::{device::DeviceId, telemetry::Sample};

/// Newest sample of each device. Nothing is sampled without a receiver.
pub(crate) type Telemetry = BTreeMap<DeviceId, Sample>;

/// Receiver of a source's telemetry.
pub type TelemetryReceiver = watch::Receiver<Arc<Telemetry>>;

/// Number of probe intervals for which a sample stays valid. A probe may miss one interval by chance; a
/// driver that misses three hangs.
const VALIDITY_INTERVALS: u32 = 3;

pub(crate) fn expires_at(now: Timestamp, probe_interval: Duration) -> Timestamp {
    now.saturating_add(probe_interval * VALIDITY_INTERVALS).unwrap_or(Timestamp::MAX)
}

/// Publishes new samples and drops expired ones, such as those of removed partitions.
pub(crate) fn publish(
    sender: &watch::Sender<Arc<Telemetry>>,
    samples: Vec<(DeviceId, Sample)>,
    now: Timestamp,
) {
    sender.send_modify(|telemetry| {
        let telemetry = Arc::make_mut(telemetry);
        telemetry.retain(|_, sample| sample.stale_at >= now);
        telemetry.extend(samples);
    });
}
