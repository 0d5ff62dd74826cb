//! What the log is told of the node as a whole: each thing once, when it is new.

use std::collections::BTreeMap;

use windlass_core::{cdi::Kind, device::DeviceId, inventory::Inventory};

use super::NodeState;
use crate::cdi::CdiError;

/// Tells what is new since the state that was published last.
pub(super) fn news(known: &NodeState, state: &NodeState) {
    let is_news = |(kind, error): &(&Kind, &CdiError)| known.unwritten.get(*kind) != Some(*error);
    for (kind, error) in state.unwritten.iter().filter(is_news) {
        tracing::error!(%kind, %error, "devices cannot be handed out until this is mended");
    }
    let is_new = |trouble: &&String| !known.lacks.troubles.contains(trouble);
    for trouble in state.lacks.troubles.iter().filter(is_new) {
        tracing::warn!(trouble, "containers get less than they need");
    }
    summarize(&known.inventory, &state.inventory);
    tell_withheld(known, state);
}

/// One line whenever the numbers change; what happened to single devices is said by their source.
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

/// One line for each resource without a device, and for each reason for which devices are kept back, if it was
/// not told of them yet.
fn tell_withheld(before: &NodeState, now: &NodeState) {
    for (resource, why) in &now.empty {
        if before.empty.get(resource) != Some(why) {
            tracing::warn!(%resource, why, "no device of this node is for it");
        }
    }
    let is_news = |(device, why): &(&DeviceId, &String)| before.withheld.get(*device) != Some(*why);
    let mut reasons = BTreeMap::<_, Vec<_>>::new();
    for (device, why) in now.withheld.iter().filter(is_news) {
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
