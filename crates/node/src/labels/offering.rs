//! How the policy offers each device, as far as labels tell it.

use std::collections::BTreeMap;

use windlass_core::{
    attribute::AttributeValue,
    device::{Device, DeviceId, DeviceKind},
    inventory::Inventory,
    labels::{self, InstanceNames, Offering},
};

use crate::{
    config::{MigStrategy, Policy, ResourceRule, Resources, Sharing, SharingMethod},
    discovery::PROFILE,
};

/// How every device that is not kept back is offered.
pub(super) fn offerings(policy: &Policy, inventory: &Inventory) -> BTreeMap<DeviceId, Offering> {
    let devices = inventory.devices.iter();
    let offered =
        devices.filter_map(|device| Some((device.id.clone(), shared_as(policy, device)?)));
    offered.collect()
}

/// What labels call the strategy.
pub(super) fn instance_names(strategy: MigStrategy) -> InstanceNames {
    match strategy {
        MigStrategy::None => InstanceNames::None,
        MigStrategy::Single => InstanceNames::Single,
        MigStrategy::Mixed => InstanceNames::Mixed,
    }
}

fn shared_as(policy: &Policy, device: &Device) -> Option<Offering> {
    let profile = profile(device);
    // What cannot be ruled out counts as excluded.
    if policy.exclude.iter().any(|rule| rule.matches(device, profile).unwrap_or(true)) {
        return None;
    }
    match &policy.resources {
        Resources::Default => Some(offering(Sharing::Exclusive, false)),
        Resources::Rules(rules) => {
            let picks = |rule: &&ResourceRule| rule.devices.matches(device, profile);
            let rule = rules.iter().find(|rule| picks(rule).unwrap_or(false))?;
            let usual = usual_name(policy.mig, device.kind, profile);
            Some(offering(rule.sharing, rule.name.as_str() != usual))
        }
    }
}

fn offering(sharing: Sharing, renamed: bool) -> Offering {
    let (replicas, sharing) = match sharing {
        Sharing::Exclusive => (1, labels::Sharing::Exclusive),
        Sharing::Shared(shared) => (shared.replicas.get(), method(shared.method)),
    };
    Offering { replicas, sharing, renamed }
}

fn method(method: SharingMethod) -> labels::Sharing {
    match method {
        SharingMethod::TimeSlicing => labels::Sharing::TimeSlicing,
        SharingMethod::Mps => labels::Sharing::Mps,
    }
}

/// The name that NVIDIA's plugin gives such a device.
fn usual_name(strategy: MigStrategy, kind: DeviceKind, profile: Option<&str>) -> String {
    match (kind, strategy, profile) {
        (DeviceKind::Mig, MigStrategy::Mixed, Some(profile)) => {
            format!("nvidia.com/mig-{}", profile.replace('+', "."))
        }
        _ => "nvidia.com/gpu".to_owned(),
    }
}

fn profile(device: &Device) -> Option<&str> {
    match device.attributes.get(&PROFILE) {
        Some(AttributeValue::String(profile)) => Some(profile),
        _ => None,
    }
}
