//! Device health reported by drivers, until it expires.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::Instant;
use windlass_kubelet_api::dra::health::{self as wire, HealthStatus};

/// Lifetime of a device's health without one from the driver (`DefaultHealthTimeout`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest message in a pod's status (`ResourceHealthMessageMaxLength`).
const MAX_MESSAGE_BYTES: usize = 1024;

/// Health of a device of a DRA driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthWord {
    /// `Healthy`.
    Healthy,
    /// `Unhealthy`.
    Unhealthy,
    /// `Unknown`: the driver says so, or sent no health, or its health expired.
    #[default]
    Unknown,
}

/// Known health of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceHealth {
    /// Health of the device.
    pub(crate) health: HealthWord,
    /// The driver's explanation, if there is one.
    pub(crate) message: String,
}

/// Identity of a device: driver, pool, name.
type Key = (String, String, String);

/// Reports of drivers, with their time of arrival.
#[derive(Debug, Default)]
pub(crate) struct HealthCache {
    devices: BTreeMap<Key, Said>,
}

/// A driver's report about a device.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) pool: String,
    pub(crate) device: String,
    health: DeviceHealth,
    timeout: Duration,
    at: Instant,
}

// === impl HealthCache ===

impl HealthCache {
    /// Takes a driver's list. Missing devices keep their health until it expires. Returns the
    /// changed reports.
    pub(crate) fn update(&mut self, driver: &str, list: Vec<Said>) -> Vec<Said> {
        let mut changed = Vec::new();
        for said in list {
            let key = (driver.to_owned(), said.pool.clone(), said.device.clone());
            let known = self.devices.insert(key, said.clone());
            if known.is_none_or(|known| !known.agrees(&said)) {
                changed.push(said);
            }
        }
        changed
    }

    /// Forgets a driver's reports.
    pub(crate) fn clear(&mut self, driver: &str) {
        self.devices.retain(|(known, _, _), _| known != driver);
    }

    /// Health of a device now.
    pub(crate) fn get(&self, driver: &str, pool: &str, device: &str) -> DeviceHealth {
        let key = (driver.to_owned(), pool.to_owned(), device.to_owned());
        let fresh = self.devices.get(&key).filter(|said| said.too_old_at() > Instant::now());
        fresh.map(|said| said.health.clone()).unwrap_or_default()
    }

    /// Time after now at which the next report expires.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let now = Instant::now();
        self.devices.values().map(Said::too_old_at).filter(|at| *at > now).min()
    }
}

// === impl Said ===

impl Said {
    /// Converts a device of a message that arrived now. The driver's own time is ignored.
    pub(crate) fn from_proto(device: wire::DeviceHealth) -> Self {
        let health = match device.health() {
            HealthStatus::Healthy => HealthWord::Healthy,
            HealthStatus::Unhealthy => HealthWord::Unhealthy,
            HealthStatus::Unknown => HealthWord::Unknown,
        };
        let seconds = u64::try_from(device.health_check_timeout_seconds).unwrap_or_default();
        let timeout = if seconds == 0 { DEFAULT_TIMEOUT } else { Duration::from_secs(seconds) };
        let id = device.device.unwrap_or_default();
        let message = shortened(device.message);
        let health = DeviceHealth { health, message };
        Self { pool: id.pool_name, device: id.device_name, health, timeout, at: Instant::now() }
    }

    fn agrees(&self, other: &Self) -> bool {
        (&self.health, self.timeout) == (&other.health, other.timeout)
    }

    fn too_old_at(&self) -> Instant {
        self.at.checked_add(self.timeout).unwrap_or(self.at + DEFAULT_TIMEOUT)
    }
}

impl fmt::Display for HealthWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        })
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let room = MAX_MESSAGE_BYTES - "...".len();
        let end = (0..=room).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.expect("the beginning is a boundary"));
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(health: HealthStatus, seconds: i64) -> Said {
        Said::from_proto(wire::DeviceHealth {
            device: Some(wire::DeviceIdentifier {
                pool_name: "pool".to_owned(),
                device_name: "dev".to_owned(),
            }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
            message: "why".to_owned(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn health_counts_until_it_is_too_old_and_only_changes_are_news() {
        let mut cache = HealthCache::default();
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
        assert_eq!(cache.update("drv", vec![said(HealthStatus::Unhealthy, 0)]).len(), 1);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(cache.update("drv", vec![said(HealthStatus::Unhealthy, -1)]).len(), 0);
        tokio::time::advance(Duration::from_secs(20)).await;
        let known = cache.get("drv", "pool", "dev");
        assert_eq!((known.health, &*known.message), (HealthWord::Unhealthy, "why"));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
        assert_eq!(cache.update("drv", vec![said(HealthStatus::Unhealthy, 5)]).len(), 1);
        cache.clear("drv");
        assert_eq!(cache.get("drv", "pool", "dev"), DeviceHealth::default());
    }

    #[test]
    fn a_long_message_is_cut_to_1024_bytes() {
        assert_eq!(shortened("x".repeat(1024)).len(), 1024);
        let cut = shortened("ü".repeat(600));
        assert!(cut.len() <= 1024 && cut.ends_with("..."), "{cut}");
    }
}
