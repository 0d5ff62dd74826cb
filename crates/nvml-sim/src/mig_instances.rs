//! Creation and destruction of MIG instances, as `nvidia-smi mig -cgi` and similar commands request it.
//!
//! A compute instance always fills its GPU instance. Smaller compute instances are not supported.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::mig::Shape;

use crate::{
    abi::Out,
    handle::{ComputeInstance, Device, FoundGpu, GpuInstance},
    instance, library,
    mig::shape_with_id,
    status::{Answer, Status},
};

export! {
    fn nvmlDeviceCreateGpuInstance(
        device: Device,
        profile_id: c_uint,
        instance: Out<GpuInstance>,
    ) {
        instance.check()?;
        let (gpu, shape) = gpu_and_shape(device, profile_id)?;
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
        let (gpu, shape) = gpu_and_shape(device, profile_id)?;
        if requested.size != shape.memory_slices {
            return Err(Status::INVALID_ARGUMENT);
        }
        instance.put(create_gpu_instance(&gpu, shape, Some(requested.start))?)
    }

    fn nvmlGpuInstanceDestroy(instance: GpuInstance) {
        let found = instance.find()?;
        let id = found.gpu_instance;
        library::try_change(found.gpu.number, |gpu| gpu.destroy_gpu_instance(id))
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
        if (requested.start, requested.size) != (0, instance.find()?.shape()?.slices) {
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
        let fits = profile_id == instance::filling_profile(found.shape()?);
        count.put((fits && found.compute.is_none()).into())
    }

    fn nvmlComputeInstanceDestroy(compute: ComputeInstance) {
        let found = compute.find()?;
        let id = found.gpu_instance;
        library::try_change(found.gpu.number, |gpu| gpu.destroy_compute_instance(id))
    }
}

/// GPU in MIG mode, and the requested shape.
fn gpu_and_shape(device: Device, profile_id: c_uint) -> Answer<(FoundGpu, Shape)> {
    let gpu = device.gpu()?;
    gpu.instances()?;
    let shape = shape_with_id(&gpu, profile_id)?;
    Ok((gpu, shape))
}

fn create_gpu_instance(gpu: &FoundGpu, shape: Shape, start: Option<u32>) -> Answer<GpuInstance> {
    let id = library::try_change(gpu.number, |gpu| gpu.make_gpu_instance(shape, start))?;
    Ok(GpuInstance::with_id(gpu, id))
}

fn create_compute_instance(instance: GpuInstance, profile_id: c_uint) -> Answer<ComputeInstance> {
    let found = instance.find()?;
    if profile_id != instance::filling_profile(found.shape()?) {
        return Err(Status::NOT_SUPPORTED);
    }
    if let Some(code) = found.gpu.faults.compute_instance_error {
        return Err(Status(code));
    }
    let id = found.gpu_instance;
    let compute_id = library::try_change(found.gpu.number, |gpu| gpu.make_compute_instance(id))?;
    Ok(ComputeInstance::with_ids(&found.gpu, id, compute_id))
}
