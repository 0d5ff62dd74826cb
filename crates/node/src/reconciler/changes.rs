//! Detection of repartitioned or reprogrammed devices, which may have to move to another resource.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::Policy;
use windlass_core::{
    device::{DeviceId, DeviceKind},
    inventory::Inventory,
};
use windlass_resources::offers::{self, Fingerprints};

/// Log message of a change after which devices may have to move to another resource; `None` for any
/// other change. `allocated_hardware` has the hardware behind each id at its allocation.
pub(super) fn migration_reason(
    (previous, current): (&Inventory, &Inventory),
    policy: &Policy,
    allocated_hardware: &Fingerprints,
) -> Option<&'static str> {
    if mig_layouts(current) != mig_layouts(previous) {
        return Some("MIG layout changed: devices move once their holders release them");
    }
    if offers::has_new_default(policy, previous, current) {
        return Some("default resources changed: devices move once their holders release them");
    }
    let has_new_id = offers::exposes_held_hardware(allocated_hardware, previous, current);
    has_new_id.then_some("device ids changed: devices move once their holders release them")
}

/// MIG mode and instances by GPU.
fn mig_layouts(inventory: &Inventory) -> BTreeMap<&DeviceId, (bool, BTreeSet<&DeviceId>)> {
    let gpus = inventory.of_kind(DeviceKind::Gpu);
    let layouts = gpus.map(|gpu| {
        let parts = offers::present_parts(inventory, &gpu.id).map(|part| &part.id);
        (&gpu.id, (gpu.partitioned, parts.collect::<BTreeSet<_>>()))
    });
    layouts.filter(|(_, (is_partitioned, parts))| *is_partitioned || !parts.is_empty()).collect()
}
