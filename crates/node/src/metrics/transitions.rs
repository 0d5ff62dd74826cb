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
            for state in [HealthState::Healthy, HealthState::Unhealthy] {
                counts.add(kind, state, 0);
            }
        }
        let help = "Changes of a device's health, by the state it came into";
        registry.register("device_health_transitions", help, counts.0.clone());
        counts
    }

    /// Compares consecutive snapshots until the channel closes.
    pub(crate) async fn count(&self, mut state: watch::Receiver<Arc<NodeState>>) {
        let mut previous = BTreeMap::new();
        loop {
            let current = state.borrow_and_update().clone();
            previous = self.compare(&previous, &current.inventory);
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    fn compare(
        &self,
        previous: &BTreeMap<DeviceId, HealthState>,
        current: &Inventory,
    ) -> BTreeMap<DeviceId, HealthState> {
        for device in &current.devices {
            let (previous_state, state) = (previous.get(&device.id), device.health.state);
            if state != HealthState::Unknown && previous_state != Some(&state) {
                self.add(device.kind, state, 1);
            }
        }
        current.devices.iter().map(|device| (device.id.clone(), device.health.state)).collect()
    }

    fn add(&self, kind: DeviceKind, state: HealthState, changes: u64) {
        let labels = vec![("kind", kind.to_string()), ("to", state.to_string().to_lowercase())];
        self.0.get_or_create(&labels).inc_by(changes);
    }
}
