//! GPUs and their partitions as the devices that they would be: a partition before it is made, and a GPU with MIG off.
//! So each is chosen and described before the driver is asked for it.

use crate::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceKind, Partition, PossiblePartition},
    inventory::Inventory,
};

/// What an instance has in common with its GPU.
const COMMON: [&str; 6] = [
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
];

const DOMAIN: &str = "nvidia.com";

/// The compute capability of Hopper. From it on a change of MIG's mode takes no reset of the GPU (NVIDIA's MIG
/// user guide, "Enable MIG Mode"); before, the mode that is asked for waits for one.
const HOPPER: (u32, u32) = (9, 0);

const MIG_ENABLED: AttributeName = AttributeName::new("nvidia.com", "migEnabled");

/// The device that a partition of this GPU would be. It goes by the name of its place, and is as well as the
/// GPU is.
pub fn prospective(gpu: &Device, possible: &PossiblePartition) -> Device {
    let partition = &possible.partition;
    let source = gpu.source.clone();
    Device {
        index: gpu.index,
        health: gpu.health.clone(),
        attributes: attributes(gpu, partition),
        capacity: possible.capacity.clone(),
        place: gpu.place.clone(),
        parent: Some(gpu.id.clone()),
        partition: Some(partition.clone()),
        ..Device::new(partition.id(), DeviceKind::Mig, source, gpu.health.since)
    }
}

fn attributes(gpu: &Device, partition: &Partition) -> Attributes {
    let is_common = |name: &AttributeName| name.domain() != DOMAIN || COMMON.contains(&name.name());
    let common = gpu.attributes.iter().filter(|(name, _)| is_common(name));
    let own = [
        ("type", AttributeValue::string("mig")),
        ("parentUUID", AttributeValue::string(gpu.id.as_str())),
        ("parentIndex", AttributeValue::Int(gpu.index.into())),
        ("profile", AttributeValue::string(partition.profile.as_str())),
    ];
    let own = own.map(|(name, value)| (AttributeName::new(DOMAIN, name), value));
    common.map(|(name, value)| (name.clone(), value.clone())).chain(own).collect()
}

/// The instance that stands at a place.
pub fn standing<'a>(inventory: &'a Inventory, place: &Partition) -> Option<&'a Device> {
    let is_it = |device: &&Device| {
        device.partition.as_ref() == Some(place) && !device.health.has_vanished()
    };
    inventory.devices.iter().find(is_it)
}

/// Whether MIG can be turned on and off at once on a GPU of this compute capability.
pub fn switches_at_once(compute_capability: Option<(u32, u32)>) -> bool {
    compute_capability.is_some_and(|capability| capability >= HOPPER)
}

/// The device that a GPU is with MIG off, whatever the mode is now.
pub fn full_gpu(gpu: &Device) -> Device {
    let mut whole = Device { partitioned: false, ..gpu.clone() };
    if let Some(enabled) = whole.attributes.get_mut(&MIG_ENABLED) {
        *enabled = AttributeValue::Bool(false);
    }
    whole
}
