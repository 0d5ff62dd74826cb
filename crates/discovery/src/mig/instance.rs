//! MIG instances in NVML: creation and removal. All calls block, possibly forever.

use windlass_core::device::{DeviceId, Partition};
use windlass_nvml::{
    ComputeInstance, Gpu, GpuInstance, MigInstance, MigMode, MigPlacement, Nvml, NvmlError,
};

use super::{
    MigFailure,
    names::{id_of, mig_profile_in},
};

/// Makes the partition unless it exists. Returns its MIG device.
pub(super) fn create(nvml: &Nvml, partition: &Partition) -> Result<DeviceId, MigFailure> {
    let gpu = gpu_in_mig_mode(nvml, &partition.gpu)?;
    if let Some(instance) = find_instance(&gpu, partition)? {
        return ensure_compute_instance(&gpu, &instance);
    }
    let instance = create_instance(&gpu, partition)?;
    ensure_compute_instance(&gpu, &instance).map_err(|failure| roll_back(&instance, failure))
}

/// Removes the instance at a placement. Returns its MIG device, if it was complete.
pub(super) fn remove(nvml: &Nvml, partition: &Partition) -> Result<Option<DeviceId>, MigFailure> {
    let gpu = match gpu_in_mig_mode(nvml, &partition.gpu) {
        // Without MIG there is no instance.
        Err(MigFailure::MigDisabled) => return Ok(None),
        gpu => gpu?,
    };
    let Some(instance) = find_instance(&gpu, partition)? else { return Ok(None) };
    let device = complete_device(&gpu, &instance);
    destroy_instance(&instance).map(|()| device)
}

/// Removes the instance of a MIG device, if it exists.
pub(super) fn remove_device(nvml: &Nvml, device: &DeviceId) -> Result<(), MigFailure> {
    let instance = || -> Result<GpuInstance, NvmlError> {
        let device = nvml.gpu_with_uuid(device.as_str())?;
        device.parent_gpu()?.gpu_instance(device.gpu_instance_id()?)
    };
    match instance() {
        Err(error) if error.is_absent() => Ok(()),
        instance => destroy_instance(&instance?),
    }
}

pub(super) fn gpu(nvml: &Nvml, id: &DeviceId) -> Result<Gpu, MigFailure> {
    match nvml.gpu_with_uuid(id.as_str()) {
        Err(error) if error.is_absent() => Err(MigFailure::NoGpu),
        gpu => Ok(gpu?),
    }
}

fn gpu_in_mig_mode(nvml: &Nvml, id: &DeviceId) -> Result<Gpu, MigFailure> {
    let gpu = gpu(nvml, id)?;
    if gpu.mig_mode()? == MigMode::Enabled { Ok(gpu) } else { Err(MigFailure::MigDisabled) }
}

/// The GPU instance of a profile at a placement.
fn find_instance(gpu: &Gpu, partition: &Partition) -> Result<Option<GpuInstance>, NvmlError> {
    for instance in gpu.gpu_instances_of(partition.profile_id)? {
        if instance.info()?.placement == mig_placement(partition) {
            return Ok(Some(instance));
        }
    }
    Ok(None)
}

fn create_instance(gpu: &Gpu, partition: &Partition) -> Result<GpuInstance, MigFailure> {
    gpu.create_gpu_instance(partition.profile_id, mig_placement(partition)).map_err(|error| {
        if error.is_insufficient_resources() {
            MigFailure::PlacementOccupied(blocking_instances(gpu, partition))
        } else {
            error.into()
        }
    })
}

fn mig_placement(partition: &Partition) -> MigPlacement {
    MigPlacement { start: partition.start, size: partition.size }
}

/// Fills the GPU instance with a compute instance, unless it has one. Returns the MIG device of both.
fn ensure_compute_instance(gpu: &Gpu, instance: &GpuInstance) -> Result<DeviceId, MigFailure> {
    let compute = match sole_compute_instance(instance)? {
        Some(compute) => compute,
        None => instance.create_compute_instance()?,
    };
    let device = device_of(gpu, instance.info()?.id, compute.id()?)?;
    if is_partial(mig_profile_in(&device.device.name()?)) {
        return Err(MigFailure::SeveralComputeInstances);
    }
    Ok(id_of(&device.device)?)
}

/// The MIG device of a GPU instance, if it has its compute instance.
fn complete_device(gpu: &Gpu, instance: &GpuInstance) -> Option<DeviceId> {
    let compute = sole_compute_instance(instance).ok()??;
    let device = device_of(gpu, instance.info().ok()?.id, compute.id().ok()?).ok()?;
    id_of(&device.device).ok()
}

fn device_of(
    gpu: &Gpu,
    gpu_instance: u32,
    compute_instance: u32,
) -> Result<MigInstance, MigFailure> {
    let ids = (gpu_instance, compute_instance);
    let devices = gpu.mig_instances()?.into_iter().filter_map(Result::ok);
    let mut devices =
        devices.filter(|device| (device.gpu_instance, device.compute_instance) == ids);
    devices.next().ok_or(MigFailure::NoDevice)
}

/// The compute instance of a GPU instance, if it has one. Fails if it has several.
fn sole_compute_instance(instance: &GpuInstance) -> Result<Option<ComputeInstance>, MigFailure> {
    let mut compute_instances = instance.compute_instances()?;
    if compute_instances.len() > 1 {
        Err(MigFailure::SeveralComputeInstances)
    } else {
        Ok(compute_instances.pop())
    }
}

/// True for a compute instance that does not fill its GPU instance: `1c.3g.20gb`.
fn is_partial(profile: &str) -> bool {
    let slices = profile.split_once("c.").map(|(slices, _)| slices);
    slices.is_some_and(|slices| slices.parse::<u32>().is_ok())
}

/// Destroys the compute instance, then the GPU instance. A missing instance counts as destroyed.
fn destroy_instance(instance: &GpuInstance) -> Result<(), MigFailure> {
    match sole_compute_instance(instance) {
        Ok(Some(compute)) => destroyed_or_absent(compute.destroy())?,
        Ok(None) => {}
        Err(MigFailure::Driver(error)) if error.is_absent() => return Ok(()),
        Err(failure) => return Err(failure),
    }
    destroyed_or_absent(instance.destroy())
}

fn destroyed_or_absent(result: Result<(), NvmlError>) -> Result<(), MigFailure> {
    match result {
        Err(error) if error.is_in_use() => Err(MigFailure::InUse),
        Err(error) if !error.is_absent() => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes an instance that could not be filled, and returns the error for the caller.
fn roll_back(instance: &GpuInstance, failure: MigFailure) -> MigFailure {
    match destroy_instance(instance) {
        Ok(()) => failure,
        Err(rollback) => {
            MigFailure::RollbackFailed { cause: Box::new(failure), rollback: Box::new(rollback) }
        }
    }
}

/// Text that names all instances that overlap a partition.
fn blocking_instances(gpu: &Gpu, partition: &Partition) -> String {
    let partitions = match instances(gpu, &partition.gpu) {
        Ok(partitions) => partitions,
        Err(error) => return format!("blocking instances unknown ({error})"),
    };
    let blocking = partitions.iter().filter(|other| other.overlaps(partition));
    let names: Vec<_> = blocking.map(ToString::to_string).collect();
    if names.is_empty() {
        return format!("no more {} can be made", partition.profile);
    }
    format!("taken by {}", names.join(", "))
}

/// Placements of all instances on a GPU in MIG mode.
pub(super) fn instances(gpu: &Gpu, id: &DeviceId) -> Result<Vec<Partition>, NvmlError> {
    let mut partitions = Vec::new();
    for profile in gpu.mig_profiles()? {
        for instance in gpu.gpu_instances_of(profile.id)? {
            let MigPlacement { start, size } = instance.info()?.placement;
            let (gpu, name) = (id.clone(), profile.name.as_str().into());
            partitions.push(Partition { gpu, profile: name, profile_id: profile.id, start, size });
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_name_shows_a_partial_compute_instance() {
        for (profile, expected) in
            [("3g.20gb", false), ("1c.3g.20gb", true), ("1g.5gb+me", false), ("", false)]
        {
            assert_eq!(is_partial(profile), expected, "{profile}");
        }
    }
}
