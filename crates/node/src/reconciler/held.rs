//! The ids that containers held when devices were last free to move, and hold still.

use std::collections::BTreeSet;

use windlass_allocations::Held;
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, device_of},
};

/// What containers hold, as far as it matters.
#[derive(Debug, Default)]
pub(super) struct Holdings(Held);

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(held: Held) -> Self {
        Self(held)
    }

    pub(super) fn held(&self) -> &Held {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The devices that are held, whole or in part.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.0.values().flatten().filter_map(|id| device_of(id))
    }

    /// The devices of which replicas are held.
    pub(super) fn shared_devices(&self) -> BTreeSet<DeviceId> {
        let ids = self.0.values().flatten();
        ids.filter_map(|id| Some(id.parse::<ReplicaId>().ok()?.device)).collect()
    }

    /// Forgets what containers hold no longer.
    pub(super) fn retain(&mut self, held: &Held) {
        self.0.retain(|name, ids| {
            ids.retain(|id| held.get(name).is_some_and(|held| held.contains(id)));
            !ids.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containers_hold_no_longer_is_forgotten_and_what_they_got_since_is_not_taken_in() {
        let held = |ids: &[&str]| {
            let ids = ids.iter().map(ToString::to_string).collect();
            Held::from([("nvidia.com/gpu".parse().expect("valid"), ids)])
        };
        let mut holdings = Holdings::new(held(&["a", "b::1"]));
        holdings.retain(&held(&["a", "c"]));
        assert_eq!(holdings.held(), &held(&["a"]));
        holdings.retain(&Held::new());
        assert!(holdings.is_empty());
    }
}
