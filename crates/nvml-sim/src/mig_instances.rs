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
        let (gpu, shape) = gpu_and_profile(device, profile_id)?;
        instance.put(create_gpu_instance(&gpu, shape, None)?)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Device,
        profile_id: c_uint,
        placement: Out<sys::nvmlGpuInstancePlacement_t>,
        instance: Out<GpuInstance>,
    ) {
        instance.check()?;
        let requested = placement.read()?;
        let (gpu, shape) = gpu_and_profile(device, profile_id)?;
        if requested.size != shape.memory_slices {
            return Err(Status::INVALID_ARGUMENT);
        }
        instance.put(create_gpu_instance(&gpu, shape, Some(requested.start))?)
    }

    fn nvmlGpuInstanceDestroy(instance: GpuInstance) {
        let found = instance.find()?;
        let id = found.gpu_instance;
        library::try_update_gpu(found.gpu.number, |gpu| gpu.destroy_gpu_instance(id))
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
        if (requested.start, requested.size) != (0, instance.find()?.gpu_instance_profile()?.slices) {
            return Err(Status::INVALID_ARGUMENT);
        }
        compute.put(create_compute_instance(instance, profile_id)?)
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: GpuInstance,
        profile_id: c_uint,
        count: Out<c_uint>,
    ) {
        let found = instance.find()?;
        let fits = profile_id == instance::full_compute_profile(found.gpu_instance_profile()?);
        count.put((fits && found.compute.is_none()).into())
    }

    fn nvmlComputeInstanceDestroy(compute: ComputeInstance) {
        let found = compute.find()?;
        let id = found.gpu_instance;
        library::try_update_gpu(found.gpu.number, |gpu| gpu.destroy_compute_instance(id))
    }
}

/// GPU in MIG mode, and the requested shape.
fn gpu_and_profile(
    device: Device,
    profile_id: c_uint,
) -> NvmlResult<(GpuSnapshot, GpuInstanceProfile)> {
    let gpu = device.gpu()?;
    gpu.instances()?;
    let shape = find_profile_by_id(&gpu, profile_id)?;
    Ok((gpu, shape))
}

fn create_gpu_instance(
    gpu: &GpuSnapshot,
    shape: GpuInstanceProfile,
    start: Option<u32>,
) -> NvmlResult<GpuInstance> {
    let id = library::try_update_gpu(gpu.number, |gpu| gpu.create_gpu_instance(shape, start))?;
    Ok(GpuInstance::with_id(gpu, id))
}

fn create_compute_instance(
    instance: GpuInstance,
    profile_id: c_uint,
) -> NvmlResult<ComputeInstance> {
    let found = instance.find()?;
    if profile_id != instance::full_compute_profile(found.gpu_instance_profile()?) {
        return Err(Status::NOT_SUPPORTED);
    }
    if let Some(code) = found.gpu.faults.compute_instance_error {
        return Err(Status(code));
    }
    let id = found.gpu_instance;
    let compute_id =
        library::try_update_gpu(found.gpu.number, |gpu| gpu.create_compute_instance(id))?;
    Ok(ComputeInstance::with_ids(&found.gpu, id, compute_id))
}
