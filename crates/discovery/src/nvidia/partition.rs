//! Possible MIG partitions of a GPU: every profile at every placement. The calls block, possibly forever.

use std::sync::Arc;

use windlass_core::{
    attribute::{Capacities, Quantity},
    device::{DeviceId, Partition, PossiblePartition},
};
use windlass_nvml::{Gpu, MigCapacities, MigProfile, NvmlError};

use super::describe::attribute_name;

/// Every possible partition, sorted by size, multiprocessors, profile and start.
pub(super) fn possible_partitions(
    gpu: &Gpu,
    id: &DeviceId,
) -> Result<Arc<[PossiblePartition]>, NvmlError> {
    let mut partitions = Vec::new();
    for profile in gpu.mig_profiles()? {
        partitions.extend(at_every_placement(gpu, id, &profile)?);
    }
    let order = |one: &PossiblePartition| {
        let Partition { size, profile, start, .. } = one.partition.clone();
        (size, one.capacity.get(&attribute_name("multiprocessors")).copied(), profile, start)
    };
    partitions.sort_by_key(order);
    Ok(partitions.into())
}

fn at_every_placement(
    gpu: &Gpu,
    id: &DeviceId,
    profile: &MigProfile,
) -> Result<Vec<PossiblePartition>, NvmlError> {
    let capacity = capacities(&profile.capacities);
    let at = |place: windlass_nvml::MigPlacement| PossiblePartition {
        partition: Partition {
            gpu: id.clone(),
            profile: profile.name.as_str().into(),
            profile_id: profile.id,
            start: place.start,
            size: place.size,
        },
        capacity: capacity.clone(),
    };
    Ok(gpu.mig_placements(profile.id)?.into_iter().map(at).collect())
}

pub(super) fn capacities(share: &MigCapacities) -> Capacities {
    Capacities::from([
        (attribute_name("memory"), Quantity::Bytes(share.memory_mib << 20)),
        (attribute_name("multiprocessors"), Quantity::Count(share.multiprocessors.into())),
        (attribute_name("copyEngines"), Quantity::Count(share.copy_engines.into())),
        (attribute_name("decoders"), Quantity::Count(share.decoders.into())),
        (attribute_name("encoders"), Quantity::Count(share.encoders.into())),
        (attribute_name("jpegEngines"), Quantity::Count(share.jpeg_engines.into())),
        (attribute_name("ofaEngines"), Quantity::Count(share.ofa_engines.into())),
    ])
}
