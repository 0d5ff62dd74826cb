//! What was cut or programmed in another way, and may have to move though the policy is the same.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::Policy;
use windlass_core::{
    device::{DeviceId, DeviceKind},
    inventory::Inventory,
};
use windlass_resources::offers::{self, Marked};

/// Why devices may have to move, for the log.
pub(super) fn why_to_move(
    (before, now): (&Inventory, &Inventory),
    policy: &Policy,
    marked: &Marked,
) -> Option<&'static str> {
    if shapes(now) != shapes(before) {
        return Some("GPUs are cut in another way; what changes waits for its holders");
    }
    if offers::is_something_else(policy, before, now) {
        return Some("devices are something else by now; what changes waits for its holders");
    }
    let is_revealed = offers::reveals(marked, before, now);
    is_revealed.then_some("devices go by other ids now; what changes waits for its holders")
}

/// How GPUs are cut: which have MIG on, and which instances are there.
fn shapes(inventory: &Inventory) -> BTreeMap<&DeviceId, (bool, BTreeSet<&DeviceId>)> {
    let gpus = inventory.of_kind(DeviceKind::Gpu);
    let shapes = gpus.map(|gpu| {
        let parts = offers::present_parts(inventory, &gpu.id).map(|part| &part.id);
        (&gpu.id, (gpu.partitioned, parts.collect::<BTreeSet<_>>()))
    });
    shapes.filter(|(_, (on, parts))| *on || !parts.is_empty()).collect()
}
