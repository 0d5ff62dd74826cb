//! MIG mode, MIG devices, and the instances below them.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    mig::{GpuInstanceProfile, MigMode, ModeChangeOutcome},
    state::Gpu,
};

use crate::{
    abi::{Out, OutArray, OutVersioned, struct_version},
    handle::{ComputeInstance, Device, DeviceSnapshot, GpuInstance, GpuSnapshot, InstanceSnapshot},
    instance, library,
    status::{Code, NvmlResult, Status},
};

/// `nvmlComputeInstanceInfo_t` of version 1 of the function: without the placement.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ComputeInstanceInfoV1 {
    device: sys::nvmlDevice_t,
    gpu_instance: sys::nvmlGpuInstance_t,
    id: c_uint,
    profile_id: c_uint,
}

export! {
    fn nvmlDeviceGetMigMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) {
        let gpu = device.gpu()?;
        gpu.card.mig.ok_or(Status::NOT_SUPPORTED)?;
        current.put(mode_number(gpu.mig_mode()))?;
        pending.put(mode_number(gpu.mig_at_reset.unwrap_or(gpu.mig_mode())))
    }

    /// The call succeeds for every outcome, and `activation` reports the outcome. While instances exist or a process
    /// computes, the outcome is "in use" and the mode is unchanged. Before Hopper the mode takes effect at a reset;
    /// since Hopper it takes effect at once.
    fn nvmlDeviceSetMigMode(device: Device, mode: c_uint, activation: Out<Code>) {
        let gpu = device.gpu()?;
        gpu.card.mig.ok_or(Status::NOT_SUPPORTED)?;
        activation.check()?;
        let modes = [MigMode::Off, MigMode::On];
        let requested = modes.into_iter().find(|candidate| mode_number(*candidate) == mode);
        let requested = requested.ok_or(Status::INVALID_ARGUMENT)?;
        let request = |gpu: &mut Gpu| Ok(gpu.set_mig_mode(requested));
        activation.put(match library::try_update_gpu(gpu.number, request)? {
            ModeChangeOutcome::Applied => sys::nvmlReturn_enum_NVML_SUCCESS,
            ModeChangeOutcome::InUse => Status::IN_USE.0,
            ModeChangeOutcome::PendingReset => Status::RESET_REQUIRED.0,
        })
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<c_uint>) {
        is_mig.put(matches!(device.find()?, DeviceSnapshot::Mig(_)).into())
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<c_uint>) {
        let gpu = device.gpu()?;
        let capability = gpu.card.mig.filter(|_| gpu.mig.is_some());
        count.put(capability.map_or(0, |capability| capability.slices))
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: c_uint, mig: Out<Device>) {
        let gpu = device.gpu()?;
        if index >= gpu.capability()?.slices {
            return Err(Status::INVALID_ARGUMENT);
        }
        // While MIG is off, every index is "not found".
        let mig_device = gpu.mig_devices().nth(index as usize).ok_or(Status::NOT_FOUND)?;
        mig.put(Device::of_instance(&gpu, mig_device.0, mig_device.1))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, gpu: Out<Device>) {
        gpu.put(Device::of_gpu(&mig_device(device)?.gpu))
    }

    fn nvmlDeviceGetGpuInstanceId(device: Device, id: Out<c_uint>) {
        id.put(mig_device(device)?.gpu_instance)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Device, id: Out<c_uint>) {
        id.put(mig_device(device)?.compute()?.id)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: Device,
        profile: c_uint,
        info: Out<sys::nvmlGpuInstanceProfileInfo_t>,
    ) {
        let gpu = device.gpu()?;
        info.put(instance::gpu_instance_profile(find_profile(&gpu, profile)?, &gpu.card)?)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Device,
        profile: c_uint,
        info: OutVersioned,
    ) {
        let gpu = device.gpu()?;
        put_profile(&gpu, find_profile(&gpu, profile)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: Device,
        profile_id: c_uint,
        info: OutVersioned,
    ) {
        let gpu = device.gpu()?;
        put_profile(&gpu, find_profile_by_id(&gpu, profile_id)?, info)
    }

    fn [nvmlDeviceGetGpuInstancePossiblePlacements nvmlDeviceGetGpuInstancePossiblePlacements_v2](
        device: Device,
        profile_id: c_uint,
        placements: OutArray<sys::nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>,
    ) {
        let gpu = device.gpu()?;
        let profile = find_profile_by_id(&gpu, profile_id)?;
        let size = profile.memory_slices;
        let placement = |&start| sys::nvmlGpuInstancePlacement_t { start, size };
        let possible_placements: Vec<_> =
            profile.possible_starts.iter().map(placement).collect();
        placements.put_or_count(count, &possible_placements)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: Device,
        profile_id: c_uint,
        count: Out<c_uint>,
    ) {
        let gpu = device.gpu()?;
        let instances = gpu.instances()?;
        let profile = find_profile_by_id(&gpu, profile_id)?;
        let occupied_slices = gpu.occupied_slices();
        let is_free = |start: &&u32| profile.slice_mask(**start) & occupied_slices == 0;
        let free_starts = profile.possible_starts.iter().filter(is_free);
        let same_profile = instances.iter().filter(|instance| instance.profile_id == profile_id);
        let existing_count = crate::lookup::as_count(same_profile.count())?;
        let remaining_count = profile.max_instances().saturating_sub(existing_count);
        count.put(crate::lookup::as_count(free_starts.count())?.min(remaining_count))
    }

    fn nvmlDeviceGetGpuInstances(
        device: Device,
        profile_id: c_uint,
        instances: OutArray<GpuInstance>,
        count: Out<c_uint>,
    ) {
        let gpu = device.gpu()?;
        let gpu_instances = gpu.instances()?;
        find_profile_by_id(&gpu, profile_id)?;
        let with_profile = gpu_instances.iter().filter(|mig| mig.profile_id == profile_id);
        let handles: Vec<_> = with_profile.map(|mig| GpuInstance::of(&gpu, mig)).collect();
        // As in the real function, the caller must provide room for the `instanceCount` of the profile.
        count.put(crate::lookup::as_count(handles.len())?)?;
        instances.put(handles.len(), &handles)
    }

    fn nvmlDeviceGetGpuInstanceById(device: Device, id: c_uint, instance: Out<GpuInstance>) {
        let gpu = device.gpu()?;
        let mig_instance = gpu.instances()?.iter().find(|mig| mig.gpu_instance == id);
        instance.put(GpuInstance::of(&gpu, mig_instance.ok_or(Status::NOT_FOUND)?))
    }

    fn nvmlGpuInstanceGetInfo(
        instance: GpuInstance,
        info: Out<sys::nvmlGpuInstanceInfo_t>,
    ) {
        let snapshot = instance.find()?;
        info.put(sys::nvmlGpuInstanceInfo_t {
            device: Device::of_gpu(&snapshot.gpu).raw(),
            id: snapshot.gpu_instance,
            profileId: snapshot.profile_id,
            placement: sys::nvmlGpuInstancePlacement_t {
                start: snapshot.start,
                size: snapshot.gpu_instance_profile()?.memory_slices,
            },
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: GpuInstance,
        profile: c_uint,
        _engine_profile: c_uint,
        info: Out<sys::nvmlComputeInstanceProfileInfo_t>,
    ) {
        let snapshot = instance.find()?;
        let (gpu_profile, card) = (snapshot.gpu_instance_profile()?, &snapshot.gpu.card);
        info.put(instance::compute_instance_profile(profile, gpu_profile, card)?)
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: GpuInstance,
        profile: c_uint,
        _engine_profile: c_uint,
        info: OutVersioned,
    ) {
        let snapshot = instance.find()?;
        let (gpu_profile, card) = (snapshot.gpu_instance_profile()?, &snapshot.gpu.card);
        let v3 = struct_version::<sys::nvmlComputeInstanceProfileInfo_v3_t>(3);
        if info.version()? == v3 {
            info.put(instance::compute_instance_profile_v3(profile, gpu_profile, card)?)
        } else {
            info.put(instance::compute_instance_profile_v2(profile, gpu_profile, card)?)
        }
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: GpuInstance,
        profile_id: c_uint,
        instances: OutArray<ComputeInstance>,
        count: Out<c_uint>,
    ) {
        let snapshot = instance.find()?;
        let full_profile_id = instance::full_compute_profile(snapshot.gpu_instance_profile()?);
        let compute = snapshot.compute.as_ref().filter(|_| profile_id == full_profile_id);
        let handles: Vec<_> = compute
            .iter()
            .map(|compute| ComputeInstance::of(&snapshot.gpu, &snapshot, compute))
            .collect();
        count.put(crate::lookup::as_count(handles.len())?)?;
        instances.put(handles.len(), &handles)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: GpuInstance,
        id: c_uint,
        compute_instance: Out<ComputeInstance>,
    ) {
        let snapshot = instance.find()?;
        let compute = snapshot.compute.as_ref().filter(|compute| compute.id == id);
        let compute = compute.ok_or(Status::NOT_FOUND)?;
        compute_instance.put(ComputeInstance::of(&snapshot.gpu, &snapshot, compute))
    }

    fn nvmlComputeInstanceGetInfo_v2(
        instance: ComputeInstance,
        info: Out<sys::nvmlComputeInstanceInfo_t>,
    ) {
        info.put(compute_instance(&instance.find()?)?)
    }

    fn nvmlComputeInstanceGetInfo(
        instance: ComputeInstance,
        info: Out<ComputeInstanceInfoV1>,
    ) {
        let info_v2 = compute_instance(&instance.find()?)?;
        info.put(ComputeInstanceInfoV1 {
            device: info_v2.device,
            gpu_instance: info_v2.gpuInstance,
            id: info_v2.id,
            profile_id: info_v2.profileId,
        })
    }
}

fn mode_number(mode: MigMode) -> c_uint {
    match mode {
        MigMode::Off => sys::NVML_DEVICE_MIG_DISABLE,
        MigMode::On => sys::NVML_DEVICE_MIG_ENABLE,
    }
}

fn compute_instance(snapshot: &InstanceSnapshot) -> NvmlResult<sys::nvmlComputeInstanceInfo_t> {
    let profile = snapshot.gpu_instance_profile()?;
    Ok(sys::nvmlComputeInstanceInfo_t {
        device: Device::of_gpu(&snapshot.gpu).raw(),
        gpuInstance: GpuInstance::of(&snapshot.gpu, snapshot).raw(),
        id: snapshot.compute()?.id,
        profileId: instance::full_compute_profile(profile),
        placement: sys::nvmlComputeInstancePlacement_t { start: 0, size: profile.slices },
    })
}

fn mig_device(device: Device) -> NvmlResult<InstanceSnapshot> {
    match device.find()? {
        DeviceSnapshot::Mig(instance) => Ok(instance),
        DeviceSnapshot::Gpu(_) => Err(Status::INVALID_ARGUMENT),
    }
}

fn put_profile(gpu: &GpuSnapshot, profile: GpuInstanceProfile, info: OutVersioned) -> NvmlResult {
    let v3 = struct_version::<sys::nvmlGpuInstanceProfileInfo_v3_t>(3);
    if info.version()? == v3 {
        info.put(instance::gpu_instance_profile_v3(profile, &gpu.card)?)
    } else {
        info.put(instance::gpu_instance_profile_v2(profile, &gpu.card)?)
    }
}

/// Profile by its NVML number. A profile known to NVML and absent from the card is "not supported".
fn find_profile(gpu: &GpuSnapshot, profile: c_uint) -> NvmlResult<GpuInstanceProfile> {
    if profile >= sys::NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(Status::INVALID_ARGUMENT);
    }
    GpuInstanceProfile::with_nvml_profile(profile, gpu.capability()?).ok_or(Status::NOT_SUPPORTED)
}

/// Profile by the driver's profile id, with the errors of [`find_profile`].
pub(crate) fn find_profile_by_id(gpu: &GpuSnapshot, id: c_uint) -> NvmlResult<GpuInstanceProfile> {
    GpuInstanceProfile::with_profile_id(id, gpu.capability()?).ok_or(Status::INVALID_ARGUMENT)
}
