//! What devices measure about themselves, apart from the inventory: it changes at every look, and the
//! inventory only when something is news.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use windlass_core::device::DeviceId;

/// The newest sample of each device that gave one. Nothing is sampled while nobody has a receiver.
pub(crate) type Telemetry = BTreeMap<DeviceId, Sample>;

/// Where a source's telemetry is found.
pub type TelemetryReceiver = watch::Receiver<Arc<Telemetry>>;

/// What one device measured; what it does not measure is absent, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When it was read.
    pub at: Timestamp,
    /// Until when it may be told: a GPU that is no longer read measures nothing.
    pub until: Timestamp,
    /// Memory in use.
    pub memory_used_bytes: Option<u64>,
    /// Memory in all.
    pub memory_bytes: Option<u64>,
    /// Share of time in which a kernel ran.
    pub compute_percent: Option<u32>,
    /// Share of time in which memory was read or written.
    pub memory_percent: Option<u32>,
    /// The temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// The power that is drawn.
    pub power_milliwatts: Option<u32>,
    /// Since the driver was loaded.
    pub energy_millijoules: Option<u64>,
}
