//! Counter of health transitions.

use std::{collections::BTreeMap, sync::Arc};

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use windlass_core::{
    device::{DeviceId, DeviceKind},
    health::HealthState,
    inventory::Inventory,
};
use windlass_host::counters::CounterFamily;
use windlass_resources::NodeState;

/// Counts health transitions by device kind and new state.
///
/// A device that fails and recovers between two snapshots is not counted. The quiet period before a recovery makes that
/// unlikely.
#[derive(Clone, Debug)]
pub(crate) struct Transitions(CounterFamily);

// === impl Transitions ===

impl Transitions {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let counts = Self(CounterFamily::default());
        for &kind in DeviceKind::ALL {
            for to in [HealthState::Healthy, HealthState::Unhealthy] {
                counts.add(kind, to, 0);
            }
        }
        let help = "Changes of a device's health, by the state it came into";
        registry.register("device_health_transitions", help, counts.0.clone());
        counts
    }

    /// Compares consecutive snapshots until the channel closes.
    pub(crate) async fn count(&self, mut state: watch::Receiver<Arc<NodeState>>) {
        let mut known = BTreeMap::new();
        loop {
            let now = state.borrow_and_update().clone();
            known = self.compare(&known, &now.inventory);
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    fn compare(
        &self,
        known: &BTreeMap<DeviceId, HealthState>,
        now: &Inventory,
    ) -> BTreeMap<DeviceId, HealthState> {
        for device in &now.devices {
            let (before, to) = (known.get(&device.id), device.health.state);
            if to != HealthState::Unknown && before != Some(&to) {
                self.add(device.kind, to, 1);
            }
        }
        now.devices.iter().map(|device| (device.id.clone(), device.health.state)).collect()
    }

    fn add(&self, kind: DeviceKind, to: HealthState, changes: u64) {
        let labels = vec![("kind", kind.to_string()), ("to", to.to_string().to_lowercase())];
        self.0.get_or_create(&labels).inc_by(changes);
    }
}
