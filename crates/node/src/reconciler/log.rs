//! Log messages about the node as a whole, each logged once per change.

use std::collections::BTreeMap;

use windlass_cdi::CdiError;
use windlass_core::{cdi::Kind, device::DeviceId, inventory::Inventory};
use windlass_resources::{Absences, NodeState};

use super::disk::DEADLINE;

/// Logs the differences between two published states.
pub(super) fn changes(before: &NodeState, state: &NodeState) {
    let is_changed =
        |(kind, error): &(&Kind, &CdiError)| before.document_errors.get(*kind) != Some(*error);
    for (kind, error) in state.document_errors.iter().filter(is_changed) {
        tracing::error!(%kind, %error, "CDI document not written: its devices are withheld");
    }
    let is_new = |problem: &&String| !before.missing_parts.problems.contains(problem);
    for problem in state.missing_parts.problems.iter().filter(is_new) {
        tracing::warn!(problem, "containers lack driver files or device nodes");
    }
    disk(before, state);
    absent(&before.absences, &state.absences);
    if let Some(why) = state.no_offer_warning().filter(|_| before.no_offer_warning().is_none()) {
        tracing::warn!(why, "no resource is offered");
    }
    summarize(&before.inventory, &state.inventory);
    withheld(before, state);
}

fn disk(before: &NodeState, state: &NodeState) {
    match (before.disk_slow_since, state.disk_slow_since) {
        (None, Some(_)) => tracing::warn!(
            limit = ?DEADLINE,
            "disk not responding: new devices and claims wait; check the file systems of the CDI folder and of the \
             state folder"
        ),
        (Some(since), None) => {
            tracing::info!(after = ?since.elapsed(), "disk responding again");
        }
        _ => {}
    }
}

/// Logs device nodes that vanished or returned, one line each.
fn absent(before: &Absences, now: &Absences) {
    let changed: Vec<_> = now.iter().filter(|(id, why)| before.get(*id) != Some(*why)).collect();
    if let [(device, why), ..] = changed[..] {
        let devices = changed.len();
        tracing::warn!(devices, %device, %why, "device nodes missing: devices are withheld");
    }
    let returned = before.keys().filter(|id| !now.contains_key(*id)).count();
    if returned > 0 {
        tracing::info!(devices = returned, "device nodes present again");
    }
}

/// Logs changed totals; sources log single devices.
fn summarize(before: &Inventory, now: &Inventory) {
    let healthy = |inventory: &Inventory| {
        inventory.devices.iter().filter(|device| device.health.is_healthy()).count()
    };
    let (devices, healthy_now) = (now.devices.len(), healthy(now));
    if (before.devices.len(), healthy(before)) != (devices, healthy_now) {
        let simulated = now.simulated.as_deref();
        tracing::info!(devices, healthy = healthy_now, simulated, "inventory changed");
    }
}

/// Logs resources without devices, and withheld devices by reason.
fn withheld(before: &NodeState, now: &NodeState) {
    for (resource, why) in &now.empty_resources {
        if before.empty_resources.get(resource) != Some(why) {
            tracing::warn!(%resource, why, "resource has no matching device");
        }
    }
    let is_changed =
        |(device, why): &(&DeviceId, &String)| before.withheld.get(*device) != Some(*why);
    let mut reasons = BTreeMap::<_, Vec<_>>::new();
    for (device, why) in now.withheld.iter().filter(is_changed) {
        reasons.entry(why).or_default().push(device);
    }
    for (why, devices) in reasons {
        if let [device] = devices[..] {
            tracing::info!(%device, why, "not offered");
        } else {
            tracing::info!(devices = devices.len(), why, "not offered");
        }
    }
}
