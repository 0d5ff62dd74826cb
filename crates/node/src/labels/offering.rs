//! Sharing and naming of each device, as labels describe them.

use std::collections::BTreeMap;

use windlass_config::{MigStrategy, Policy, Sharing, SharingMethod};
use windlass_core::{
    device::DeviceId,
    inventory::Inventory,
    labels::{self, InstanceNames, Offering},
};
use windlass_resources::offers::{self, AssignedResource};

pub(super) fn offerings(policy: &Policy, inventory: &Inventory) -> BTreeMap<DeviceId, Offering> {
    let targets = offers::assigned_resources(policy, inventory).into_iter();
    let offering = |(id, target): (DeviceId, AssignedResource)| {
        let default = windlass_discovery::default_resource(policy, inventory.get(id.as_str())?);
        let offering = offering(target.sharing, default != Some(target.name));
        Some((id, offering))
    };
    targets.filter_map(offering).collect()
}

pub(super) fn instance_names(strategy: MigStrategy) -> InstanceNames {
    match strategy {
        MigStrategy::None => InstanceNames::None,
        MigStrategy::Single => InstanceNames::Single,
        MigStrategy::Mixed => InstanceNames::Mixed,
    }
}

fn offering(sharing: Sharing, renamed: bool) -> Offering {
    let (replicas, sharing) = match sharing {
        // Labels describe GPUs only, and pools contain no GPUs.
        Sharing::Exclusive | Sharing::Pooled(_) => (1, labels::Sharing::Exclusive),
        Sharing::Shared(shared) => (shared.replicas.get(), method(shared.method)),
    };
    Offering { replicas, sharing, renamed }
}

fn method(method: SharingMethod) -> labels::Sharing {
    match method {
        SharingMethod::Mps => labels::Sharing::Mps,
        SharingMethod::TimeSlicing
        | SharingMethod::Driver
        | SharingMethod::Dmem
        | SharingMethod::Shared => labels::Sharing::TimeSlicing,
    }
}
