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

/// MIG mode, knowledge of the possible instances, and present instances, by GPU.
///
/// The possible instances of a GPU with MIG off are read after the policy has turned `dra.migMode: onDemand` on. The GPU
/// then belongs to claims, though the migration for the new policy may have ended.
fn mig_layouts(inventory: &Inventory) -> BTreeMap<&DeviceId, (bool, bool, BTreeSet<&DeviceId>)> {
    let gpus = inventory.of_kind(DeviceKind::Gpu);
    let layouts = gpus.map(|gpu| {
        let parts = offers::present_parts(inventory, &gpu.id).map(|part| &part.id);
        (&gpu.id, (gpu.partitioned, !gpu.partitions.is_empty(), parts.collect::<BTreeSet<_>>()))
    });
    let has_layout = |(is_partitioned, may_have_parts, parts): &(bool, bool, BTreeSet<_>)| {
        *is_partitioned || *may_have_parts || !parts.is_empty()
    };
    layouts.filter(|(_, layout)| has_layout(layout)).collect()
}
