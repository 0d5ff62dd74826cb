//! What the log is told of the node as a whole: each thing once, when it is new.

use std::collections::BTreeMap;

use windlass_cdi::CdiError;
use windlass_core::{cdi::Kind, device::DeviceId, inventory::Inventory};
use windlass_resources::{Absent, NodeState};

use super::disk::DEADLINE;

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
    tell_disk(known, state);
    tell_absent(&known.absent, &state.absent);
    if let Some(why) = state.offers_nothing().filter(|_| known.offers_nothing().is_none()) {
        tracing::warn!(why, "no resource is offered");
    }
    summarize(&known.inventory, &state.inventory);
    tell_withheld(known, state);
}

fn tell_disk(known: &NodeState, state: &NodeState) {
    match (known.slow_since, state.slow_since) {
        (None, Some(_)) => tracing::warn!(
            limit = ?DEADLINE,
            "the disk does not answer: devices that are new wait for it, and so do claims; look at the file systems \
             of the CDI folder and of the agent's state"
        ),
        (Some(since), None) => {
            tracing::info!(after = ?since.elapsed(), "the disk answers again");
        }
        _ => {}
    }
}

/// Devices whose nodes came or went: one line for all that is new.
fn tell_absent(known: &Absent, now: &Absent) {
    let news: Vec<_> = now.iter().filter(|(id, why)| known.get(*id) != Some(*why)).collect();
    if let [(device, why), ..] = news[..] {
        let devices = news.len();
        tracing::warn!(devices, %device, %why, "not handed out while a device node is not there");
    }
    let back = known.keys().filter(|id| !now.contains_key(*id)).count();
    if back > 0 {
        tracing::info!(devices = back, "device nodes are there again");
    }
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
