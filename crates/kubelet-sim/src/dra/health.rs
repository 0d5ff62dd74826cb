//! What drivers say about the health of their devices, for as long as they go on saying it.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::Instant;
use windlass_kubelet_api::dra::health::{self as wire, HealthStatus};

/// How long a device's health counts if the driver does not say (`DefaultHealthTimeout`).
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
    /// `Unknown`: the driver says so, or says nothing, or not any more.
    #[default]
    Unknown,
}

/// What is known about a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceHealth {
    /// Its health.
    pub(crate) health: HealthWord,
    /// The driver's explanation, if there is one.
    pub(crate) message: String,
}

/// A device: driver, pool, name.
type Key = (String, String, String);

/// What drivers said, and when.
#[derive(Debug, Default)]
pub(crate) struct HealthCache {
    devices: BTreeMap<Key, Said>,
}

/// What a driver said about a device.
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
    /// Takes a driver's list. Devices that are not in it keep their health until it is too old. Returns
    /// what changed.
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

    /// Forgets what a driver said.
    pub(crate) fn clear(&mut self, driver: &str) {
        self.devices.retain(|(known, _, _), _| known != driver);
    }

    /// The health of a device at a moment.
    pub(crate) fn get(&self, driver: &str, pool: &str, device: &str) -> DeviceHealth {
        let key = (driver.to_owned(), pool.to_owned(), device.to_owned());
        let fresh = self.devices.get(&key).filter(|said| said.too_old_at() > Instant::now());
        fresh.map(|said| said.health.clone()).unwrap_or_default()
    }

    /// When something becomes too old next, after now.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let now = Instant::now();
        self.devices.values().map(Said::too_old_at).filter(|at| *at > now).min()
    }
}

// === impl Said ===

impl Said {
    /// Takes a device of a message that arrived now: the driver's own time does not count.
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
