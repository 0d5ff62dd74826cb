//! Detection of repartitioned or reprogrammed devices, which may have to move to another resource.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::Policy;
use windlass_core::{
    device::{DeviceId, DeviceKind},
    inventory::Inventory,
};
use windlass_resources::offers::{self, Fingerprints};

/// Reason for a migration, for the log.
pub(super) fn migration_reason(
    (before, now): (&Inventory, &Inventory),
    policy: &Policy,
    marked: &Fingerprints,
) -> Option<&'static str> {
    if shapes(now) != shapes(before) {
        return Some("MIG layout changed: devices move once their holders release them");
    }
    if offers::has_new_default(policy, before, now) {
        return Some("hardware behind ids changed: devices move once their holders release them");
    }
    let is_revealed = offers::exposes_held_hardware(marked, before, now);
    is_revealed.then_some("device ids changed: devices move once their holders release them")
}

/// MIG mode and instances by GPU.
fn shapes(inventory: &Inventory) -> BTreeMap<&DeviceId, (bool, BTreeSet<&DeviceId>)> {
    let gpus = inventory.of_kind(DeviceKind::Gpu);
    let shapes = gpus.map(|gpu| {
        let parts = offers::present_parts(inventory, &gpu.id).map(|part| &part.id);
        (&gpu.id, (gpu.partitioned, parts.collect::<BTreeSet<_>>()))
    });
    shapes.filter(|(_, (on, parts))| *on || !parts.is_empty()).collect()
}
