//! Ids that containers held at the last migration and still hold.

use std::collections::BTreeSet;

use windlass_allocations::HeldIds;
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, device_of_id},
};

#[derive(Debug, Default)]
pub(super) struct Holdings(HeldIds);

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(held_ids: HeldIds) -> Self {
        Self(held_ids)
    }

    pub(super) fn ids(&self) -> &HeldIds {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Devices that are held, whole or in part.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.0.values().flatten().filter_map(|id| device_of_id(id))
    }

    /// Devices with held replicas.
    pub(super) fn shared_devices(&self) -> BTreeSet<DeviceId> {
        let ids = self.0.values().flatten();
        ids.filter_map(|id| Some(id.parse::<ReplicaId>().ok()?.device)).collect()
    }

    /// Drops released ids; ids that were allocated since are ignored.
    pub(super) fn retain(&mut self, held_ids: &HeldIds) {
        self.0.retain(|name, ids| {
            ids.retain(|id| held_ids.get(name).is_some_and(|held| held.contains(id)));
            !ids.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_ids_are_dropped_and_later_ids_are_ignored() {
        let held_ids = |ids: &[&str]| {
            let ids = ids.iter().map(ToString::to_string).collect();
            HeldIds::from([("nvidia.com/gpu".parse().expect("valid"), ids)])
        };
        let mut holdings = Holdings::new(held_ids(&["a", "b::1"]));
        holdings.retain(&held_ids(&["a", "c"]));
        assert_eq!(holdings.ids(), &held_ids(&["a"]));
        holdings.retain(&HeldIds::new());
        assert!(holdings.is_empty());
    }
}
