//! Creation and destruction of MIG instances, as `nvidia-smi mig -cgi` and similar commands request it.
//!
//! A compute instance always fills its GPU instance. Smaller compute instances are not supported.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::mig::GpuInstanceProfile;

use crate::{
    abi::Out,
    handle::{ComputeInstance, Device, GpuInstance, GpuSnapshot},
    instance, library,
    mig::find_profile_by_id,
    status::{NvmlResult, Status},
};

export! {
    fn nvmlDeviceCreateGpuInstance(
        device: Device,
        profile_id: c_uint,
        instance: Out<GpuInstance>,
    ) {
        instance.check()?;
        let (gpu, profile) = gpu_and_profile(device, profile_id)?;
        instance.put(create_gpu_instance(&gpu, profile, None)?)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Device,
        profile_id: c_uint,
        placement: Out<sys::nvmlGpuInstancePlacement_t>,
        instance: Out<GpuInstance>,
    ) {
        instance.check()?;
        let requested = placement.read()?;
        let (gpu, profile) = gpu_and_profile(device, profile_id)?;
        if requested.size != profile.memory_slices {
            return Err(Status::INVALID_ARGUMENT);
        }
        instance.put(create_gpu_instance(&gpu, profile, Some(requested.start))?)
    }

    fn nvmlGpuInstanceDestroy(instance: GpuInstance) {
        let snapshot = instance.find()?;
        let id = snapshot.gpu_instance;
        library::try_update_gpu(snapshot.gpu.number, |gpu| gpu.destroy_gpu_instance(id))
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: GpuInstance,
        profile_id: c_uint,
        compute: Out<ComputeInstance>,
    ) {
        compute.check()?;
        compute.put(create_compute_instance(instance, profile_id)?)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: GpuInstance,
        profile_id: c_uint,
        placement: Out<sys::nvmlComputeInstancePlacement_t>,
        compute: Out<ComputeInstance>,
    ) {
        compute.check()?;
        let requested = placement.read()?;
        let slices = instance.find()?.gpu_instance_profile()?.slices;
        if (requested.start, requested.size) != (0, slices) {
            return Err(Status::INVALID_ARGUMENT);
        }
        compute.put(create_compute_instance(instance, profile_id)?)
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: GpuInstance,
        profile_id: c_uint,
        count: Out<c_uint>,
    ) {
        let snapshot = instance.find()?;
        let fits = profile_id == instance::full_compute_profile(snapshot.gpu_instance_profile()?);
        count.put((fits && snapshot.compute.is_none()).into())
    }

    fn nvmlComputeInstanceDestroy(compute: ComputeInstance) {
        let snapshot = compute.find()?;
        let id = snapshot.gpu_instance;
        library::try_update_gpu(snapshot.gpu.number, |gpu| gpu.destroy_compute_instance(id))
    }
}

/// GPU in MIG mode, and the requested profile.
fn gpu_and_profile(
    device: Device,
    profile_id: c_uint,
) -> NvmlResult<(GpuSnapshot, GpuInstanceProfile)> {
    let gpu = device.gpu()?;
    gpu.instances()?;
    let profile = find_profile_by_id(&gpu, profile_id)?;
    Ok((gpu, profile))
}

fn create_gpu_instance(
    gpu: &GpuSnapshot,
    profile: GpuInstanceProfile,
    start: Option<u32>,
) -> NvmlResult<GpuInstance> {
    let id = library::try_update_gpu(gpu.number, |gpu| gpu.create_gpu_instance(profile, start))?;
    Ok(GpuInstance::with_id(gpu, id))
}

fn create_compute_instance(
    instance: GpuInstance,
    profile_id: c_uint,
) -> NvmlResult<ComputeInstance> {
    let snapshot = instance.find()?;
    if profile_id != instance::full_compute_profile(snapshot.gpu_instance_profile()?) {
        return Err(Status::NOT_SUPPORTED);
    }
    if let Some(code) = snapshot.gpu.faults.compute_instance_error {
        return Err(Status(code));
    }
    let id = snapshot.gpu_instance;
    let compute_id =
        library::try_update_gpu(snapshot.gpu.number, |gpu| gpu.create_compute_instance(id))?;
    Ok(ComputeInstance::with_ids(&snapshot.gpu, id, compute_id))
}
