//! A partition as the device that it would be, so that it is chosen and described before it is made.

use windlass_core::{
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

/// The device that a partition of this GPU would be. It goes by the name of its place, and is as well as the
/// GPU is.
pub(crate) fn imagined(gpu: &Device, possible: &PossiblePartition) -> Device {
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
pub(crate) fn standing<'a>(inventory: &'a Inventory, place: &Partition) -> Option<&'a Device> {
    let is_it = |device: &&Device| {
        device.partition.as_ref() == Some(place) && !device.health.has_vanished()
    };
    inventory.devices.iter().find(is_it)
}
