//! Cache of the device health that drivers report. A report expires.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::Instant;
use windlass_kubelet_api::dra::health::{self as wire, HealthStatus};

/// Lifetime of a report without a timeout (`DefaultHealthTimeout`).
const DEFAULT_HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest message in a pod's status, in bytes (`ResourceHealthMessageMaxLength`).
const MAX_MESSAGE_BYTES: usize = 1024;

/// Health of a device of a DRA driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceHealthStatus {
    /// `Healthy`.
    Healthy,
    /// `Unhealthy`.
    Unhealthy,
    /// `Unknown`: reported by the driver. Also the health without a report, or after it expired.
    #[default]
    Unknown,
}

/// Health of a device, with the driver's message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceHealth {
    /// Health of the device.
    pub(crate) health: ResourceHealthStatus,
    /// The driver's explanation; may be empty.
    pub(crate) message: String,
}

/// Identity of a device: driver name, pool name, device name.
type DeviceKey = (String, String, String);

/// The last report about each device.
#[derive(Debug, Default)]
pub(crate) struct HealthCache {
    devices: BTreeMap<DeviceKey, HealthReport>,
}

/// A driver's report about a device.
#[derive(Clone, Debug)]
pub(crate) struct HealthReport {
    pub(crate) pool: String,
    pub(crate) device: String,
    health: DeviceHealth,
    timeout: Duration,
    received_at: Instant,
}

// === impl HealthCache ===

impl HealthCache {
    /// Stores a driver's reports. Other devices of the driver keep their reports until these expire.
    /// Returns the reports whose health or timeout changed.
    pub(crate) fn update(&mut self, driver: &str, reports: Vec<HealthReport>) -> Vec<HealthReport> {
        let mut changed = Vec::new();
        for report in reports {
            let key = (driver.to_owned(), report.pool.clone(), report.device.clone());
            let previous = self.devices.insert(key, report.clone());
            if previous.is_none_or(|previous| !previous.has_same_health(&report)) {
                changed.push(report);
            }
        }
        changed
    }

    /// Removes a driver's reports.
    pub(crate) fn clear(&mut self, driver: &str) {
        self.devices.retain(|(name, _, _), _| name != driver);
    }

    /// Current health of a device; `Unknown` if its report is missing or expired.
    pub(crate) fn get(&self, driver: &str, pool: &str, device: &str) -> DeviceHealth {
        let key = (driver.to_owned(), pool.to_owned(), device.to_owned());
        let report = self.devices.get(&key).filter(|report| report.expires_at() > Instant::now());
        report.map(|report| report.health.clone()).unwrap_or_default()
    }

    /// Time at which the next report expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let now = Instant::now();
        self.devices.values().map(HealthReport::expires_at).filter(|expiry| *expiry > now).min()
    }
}

// === impl HealthReport ===

impl HealthReport {
    /// Converts a protobuf message, received now. The driver's own time in the message is ignored.
    pub(crate) fn from_proto(device: wire::DeviceHealth) -> Self {
        let health = match device.health() {
            HealthStatus::Healthy => ResourceHealthStatus::Healthy,
            HealthStatus::Unhealthy => ResourceHealthStatus::Unhealthy,
            HealthStatus::Unknown => ResourceHealthStatus::Unknown,
        };
        let seconds = u64::try_from(device.health_check_timeout_seconds).unwrap_or_default();
        let timeout =
            if seconds == 0 { DEFAULT_HEALTH_TIMEOUT } else { Duration::from_secs(seconds) };
        let id = device.device.unwrap_or_default();
        let message = truncate_message(device.message);
        let health = DeviceHealth { health, message };
        let received_at = Instant::now();
        Self { pool: id.pool_name, device: id.device_name, health, timeout, received_at }
    }

    fn has_same_health(&self, other: &Self) -> bool {
        (&self.health, self.timeout) == (&other.health, other.timeout)
    }

    fn expires_at(&self) -> Instant {
        let default = self.received_at + DEFAULT_HEALTH_TIMEOUT;
        self.received_at.checked_add(self.timeout).unwrap_or(default)
    }
}

impl fmt::Display for ResourceHealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        })
    }
}

/// Cuts a message to [`MAX_MESSAGE_BYTES`], with `...` at its end.
fn truncate_message(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let max_text_bytes = MAX_MESSAGE_BYTES - "...".len();
        let end = (0..=max_text_bytes).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.expect("the beginning is a boundary"));
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(health: HealthStatus, seconds: i64) -> HealthReport {
        HealthReport::from_proto(wire::DeviceHealth {
            device: Some(wire::DeviceIdentifier {
                pool_name: "pool".to_owned(),
                device_name: "dev".to_owned(),
            }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
            message: "overheated".to_owned(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn health_is_known_until_it_expires_and_update_returns_only_changes() {
        let mut cache = HealthCache::default();
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
        assert_eq!(cache.update("drv", vec![report(HealthStatus::Unhealthy, 0)]).len(), 1);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(cache.update("drv", vec![report(HealthStatus::Unhealthy, -1)]).len(), 0);
        tokio::time::advance(Duration::from_secs(20)).await;
        let current = cache.get("drv", "pool", "dev");
        assert_eq!(
            (current.health, &*current.message),
            (ResourceHealthStatus::Unhealthy, "overheated")
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
        assert_eq!(cache.update("drv", vec![report(HealthStatus::Unhealthy, 5)]).len(), 1);
        cache.clear("drv");
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
    }

    #[test]
    fn a_long_message_is_cut_to_1024_bytes() {
        assert_eq!(truncate_message("x".repeat(1024)).len(), 1024);
        let message = truncate_message("ü".repeat(600));
        assert!(message.len() <= 1024 && message.ends_with("..."), "{message}");
    }
}
