//! Telemetry of devices. Separate from the inventory, so that a new sample is no change of the inventory.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use windlass_core::device::DeviceId;

/// Newest sample of each device. Nothing is sampled without a receiver.
pub(crate) type Telemetry = BTreeMap<DeviceId, Sample>;

/// Receiver of a source's telemetry.
pub type TelemetryReceiver = watch::Receiver<Arc<Telemetry>>;

/// Measurements of a device; unsupported ones are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time of the read.
    pub at: Timestamp,
    /// End of validity.
    pub until: Timestamp,
    /// Used memory.
    pub memory_used_bytes: Option<u64>,
    /// Total memory.
    pub memory_bytes: Option<u64>,
    /// Share of time in which kernels ran.
    pub compute_percent: Option<u32>,
    /// Share of time in which memory was accessed.
    pub memory_percent: Option<u32>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Power draw.
    pub power_milliwatts: Option<u32>,
    /// Energy since the driver was loaded.
    pub energy_millijoules: Option<u64>,
}
