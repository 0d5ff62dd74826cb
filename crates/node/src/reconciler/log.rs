//! Log messages about the node as a whole, each logged once per change.

use std::collections::BTreeMap;

use windlass_cdi::CdiError;
use windlass_core::{cdi::Kind, device::DeviceId, inventory::Inventory};
use windlass_resources::{Absences, NodeState};

use super::disk::DEADLINE;

/// Logs the differences between two published states.
pub(super) fn changes(previous: &NodeState, state: &NodeState) {
    let is_changed =
        |(kind, error): &(&Kind, &CdiError)| previous.document_errors.get(*kind) != Some(*error);
    for (kind, error) in state.document_errors.iter().filter(is_changed) {
        tracing::error!(%kind, %error, "CDI document not written: its devices are withheld");
    }
    let is_new = |problem: &&String| !previous.missing_parts.problems.contains(problem);
    for problem in state.missing_parts.problems.iter().filter(is_new) {
        tracing::warn!(problem, "containers lack driver files or device nodes");
    }
    disk(previous, state);
    absent(&previous.absences, &state.absences);
    if let Some(reason) = state.no_offer_warning().filter(|_| previous.no_offer_warning().is_none())
    {
        tracing::warn!(why = reason, "no resource is offered");
    }
    summarize(&previous.inventory, &state.inventory);
    withheld(previous, state);
}

fn disk(previous: &NodeState, state: &NodeState) {
    match (previous.disk_slow_since, state.disk_slow_since) {
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
fn absent(previous: &Absences, current: &Absences) {
    let changed: Vec<_> =
        current.iter().filter(|(id, reason)| previous.get(*id) != Some(*reason)).collect();
    if let [(device, reason), ..] = changed[..] {
        let devices = changed.len();
        tracing::warn!(devices, %device, why = %reason, "device nodes missing: devices are withheld");
    }
    let returned = previous.keys().filter(|id| !current.contains_key(*id)).count();
    if returned > 0 {
        tracing::info!(devices = returned, "device nodes present again");
    }
}

/// Logs changed totals; sources log single devices.
fn summarize(previous: &Inventory, current: &Inventory) {
    let healthy = |inventory: &Inventory| {
        inventory.devices.iter().filter(|device| device.health.is_healthy()).count()
    };
    let (devices, healthy_now) = (current.devices.len(), healthy(current));
    if (previous.devices.len(), healthy(previous)) != (devices, healthy_now) {
        let simulated = current.simulated.as_deref();
        tracing::info!(devices, healthy = healthy_now, simulated, "inventory changed");
    }
}

/// Logs resources without devices, and withheld devices by reason.
fn withheld(previous: &NodeState, current: &NodeState) {
    for (resource, reason) in &current.empty_resources {
        if previous.empty_resources.get(resource) != Some(reason) {
            tracing::warn!(%resource, why = reason, "resource has no matching device");
        }
    }
    let is_changed =
        |(device, reason): &(&DeviceId, &String)| previous.withheld.get(*device) != Some(*reason);
    let mut reasons = BTreeMap::<_, Vec<_>>::new();
    for (device, reason) in current.withheld.iter().filter(is_changed) {
        reasons.entry(reason).or_default().push(device);
    }
    for (reason, devices) in reasons {
        if let [device] = devices[..] {
            tracing::info!(%device, why = reason, "not offered");
        } else {
            tracing::info!(devices = devices.len(), why = reason, "not offered");
        }
    }
}
