//! Prospective devices: MIG partitions before they exist, and GPUs with MIG off.
//!
//! Claims choose among these before the driver creates anything.

use crate::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceKind, Partition, PossiblePartition},
    inventory::Inventory,
};

/// Attributes in NVIDIA's domain that an instance shares with its GPU. It shares all attributes of other domains.
const INHERITED_ATTRIBUTES: &[&str] = &[
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
];

const DOMAIN: &str = "nvidia.com";

/// Compute capability of Hopper. Since Hopper a MIG mode change needs no GPU reset; on older GPUs it stays
/// pending until a reset (NVIDIA MIG user guide, "Enable MIG Mode").
const HOPPER: (u32, u32) = (9, 0);

const MIG_ENABLED: AttributeName = AttributeName::new("nvidia.com", "migEnabled");

/// Device for a partition that does not exist yet. Its id is that of the placement; its health is the GPU's.
pub fn prospective_device(gpu: &Device, possible: &PossiblePartition) -> Device {
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
    let is_inherited = |name: &AttributeName| {
        name.domain() != DOMAIN || INHERITED_ATTRIBUTES.contains(&name.name())
    };
    let inherited = gpu.attributes.iter().filter(|(name, _)| is_inherited(name));
    let own_attributes = [
        ("type", AttributeValue::string("mig")),
        ("parentUUID", AttributeValue::string(gpu.id.as_str())),
        ("parentIndex", AttributeValue::Int(gpu.index.into())),
        ("profile", AttributeValue::string(partition.profile.as_str())),
    ];
    let own_attributes =
        own_attributes.map(|(name, value)| (AttributeName::new(DOMAIN, name), value));
    inherited.map(|(name, value)| (name.clone(), value.clone())).chain(own_attributes).collect()
}

/// The existing instance at a placement.
pub fn instance_at<'a>(inventory: &'a Inventory, placement: &Partition) -> Option<&'a Device> {
    let is_instance = |device: &&Device| {
        device.partition.as_ref() == Some(placement) && !device.health.has_vanished()
    };
    inventory.devices.iter().find(is_instance)
}

/// True if the MIG mode changes without a GPU reset.
pub fn switches_mig_without_reset(compute_capability: Option<(u32, u32)>) -> bool {
    compute_capability.is_some_and(|capability| capability >= HOPPER)
}

/// The whole GPU with MIG off, independent of its present MIG mode.
pub fn with_mig_off(gpu: &Device) -> Device {
    let mut with_mig_off = Device { partitioned: false, ..gpu.clone() };
    if let Some(enabled) = with_mig_off.attributes.get_mut(&MIG_ENABLED) {
        *enabled = AttributeValue::Bool(false);
    }
    with_mig_off
}
