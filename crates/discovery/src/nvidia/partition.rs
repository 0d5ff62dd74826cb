//! Possible MIG partitions of a GPU: every profile at every placement. The calls block, possibly forever.

use std::sync::Arc;

use windlass_core::{
    attribute::{Capacities, Quantity},
    device::{DeviceId, Partition, PossiblePartition},
};
use windlass_nvml::{Gpu, MigProfile, MigShare, NvmlError};

use super::describe::named;

/// Every possible partition, sorted by size, multiprocessors, profile and start.
pub(super) fn possible(gpu: &Gpu, id: &DeviceId) -> Result<Arc<[PossiblePartition]>, NvmlError> {
    let mut partitions = Vec::new();
    for profile in gpu.mig_profiles()? {
        partitions.extend(at_every_place(gpu, id, &profile)?);
    }
    let order = |one: &PossiblePartition| {
        let Partition { size, profile, start, .. } = one.partition.clone();
        (size, one.capacity.get(&named("multiprocessors")).copied(), profile, start)
    };
    partitions.sort_by_key(order);
    Ok(partitions.into())
}

fn at_every_place(
    gpu: &Gpu,
    id: &DeviceId,
    profile: &MigProfile,
) -> Result<Vec<PossiblePartition>, NvmlError> {
    let capacity = capacities(&profile.share);
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

pub(super) fn capacities(share: &MigShare) -> Capacities {
    Capacities::from([
        (named("memory"), Quantity::Bytes(share.memory_mib << 20)),
        (named("multiprocessors"), Quantity::Count(share.multiprocessors.into())),
        (named("copyEngines"), Quantity::Count(share.copy_engines.into())),
        (named("decoders"), Quantity::Count(share.decoders.into())),
        (named("encoders"), Quantity::Count(share.encoders.into())),
        (named("jpegEngines"), Quantity::Count(share.jpeg_engines.into())),
        (named("ofaEngines"), Quantity::Count(share.ofa_engines.into())),
    ])
}
