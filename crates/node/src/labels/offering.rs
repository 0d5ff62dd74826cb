//! How the policy offers each device, as far as labels tell it.

use std::collections::BTreeMap;

use windlass_config::{MigStrategy, Policy, Sharing, SharingMethod};
use windlass_core::{
    device::DeviceId,
    inventory::Inventory,
    labels::{self, InstanceNames, Offering},
};
use windlass_resources::offers::{self, Target};

/// How every device that is offered is offered.
pub(super) fn offerings(policy: &Policy, inventory: &Inventory) -> BTreeMap<DeviceId, Offering> {
    let targets = offers::targets(policy, inventory).into_iter();
    let offering = |(id, target): (DeviceId, Target)| {
        let usual = offers::usual_name(policy, inventory.get(id.as_str())?);
        let offering = offering(target.sharing, usual != Some(target.name));
        Some((id, offering))
    };
    targets.filter_map(offering).collect()
}

/// What labels call the strategy.
pub(super) fn instance_names(strategy: MigStrategy) -> InstanceNames {
    match strategy {
        MigStrategy::None => InstanceNames::None,
        MigStrategy::Single => InstanceNames::Single,
        MigStrategy::Mixed => InstanceNames::Mixed,
    }
}

fn offering(sharing: Sharing, renamed: bool) -> Offering {
    let (replicas, sharing) = match sharing {
        // Of GPUs alone there are labels, and these are not pooled.
        Sharing::Exclusive | Sharing::Pooled(_) => (1, labels::Sharing::Exclusive),
        Sharing::Shared(shared) => (shared.replicas.get(), method(shared.method)),
    };
    Offering { replicas, sharing, renamed }
}

fn method(method: SharingMethod) -> labels::Sharing {
    match method {
        SharingMethod::TimeSlicing | SharingMethod::Shared => labels::Sharing::TimeSlicing,
        SharingMethod::Mps => labels::Sharing::Mps,
    }
}
