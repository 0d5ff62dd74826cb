//! Possible MIG partitions of a GPU: every profile at every placement. The calls block, possibly forever.

use std::sync::Arc;

use windlass_core::{
    attribute::{Capacities, Quantity},
    device::{DeviceId, Partition, PossiblePartition},
};
use windlass_nvml::{Gpu, MigCapacities, MigProfile, NvmlError};

use super::describe::attribute_name;

/// Every possible partition, sorted by size in memory slices, multiprocessors, profile and first slice.
pub(super) fn possible_partitions(
    gpu: &Gpu,
    id: &DeviceId,
) -> Result<Arc<[PossiblePartition]>, NvmlError> {
    let mut partitions = Vec::new();
    for profile in gpu.mig_profiles()? {
        partitions.extend(at_every_placement(gpu, id, &profile)?);
    }
    let sort_key = |candidate: &PossiblePartition| {
        let Partition { size, profile, start, .. } = candidate.partition.clone();
        (size, candidate.capacity.get(&attribute_name("multiprocessors")).copied(), profile, start)
    };
    partitions.sort_by_key(sort_key);
    Ok(partitions.into())
}

fn at_every_placement(
    gpu: &Gpu,
    id: &DeviceId,
    profile: &MigProfile,
) -> Result<Vec<PossiblePartition>, NvmlError> {
    let capacity = capacities(&profile.capacities);
    let at_placement = |placement: windlass_nvml::MigPlacement| PossiblePartition {
        partition: Partition {
            gpu: id.clone(),
            profile: profile.name.as_str().into(),
            profile_id: profile.id,
            start: placement.start,
            size: placement.size,
        },
        capacity: capacity.clone(),
    };
    Ok(gpu.mig_placements(profile.id)?.into_iter().map(at_placement).collect())
}

pub(super) fn capacities(mig_capacities: &MigCapacities) -> Capacities {
    Capacities::from([
        (attribute_name("memory"), Quantity::Bytes(mig_capacities.memory_mib << 20)),
        (attribute_name("multiprocessors"), Quantity::Count(mig_capacities.multiprocessors.into())),
        (attribute_name("copyEngines"), Quantity::Count(mig_capacities.copy_engines.into())),
        (attribute_name("decoders"), Quantity::Count(mig_capacities.decoders.into())),
        (attribute_name("encoders"), Quantity::Count(mig_capacities.encoders.into())),
        (attribute_name("jpegEngines"), Quantity::Count(mig_capacities.jpeg_engines.into())),
        (attribute_name("ofaEngines"), Quantity::Count(mig_capacities.ofa_engines.into())),
    ])
}
