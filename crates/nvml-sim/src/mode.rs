//! Modes of a GPU: compute, persistence, display, virtualization.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use crate::{
    abi::Out,
    handle::Device,
    library,
    status::{NvmlResult, Status},
};

export! {
    fn nvmlDeviceGetComputeMode(device: Device, mode: Out<sys::nvmlComputeMode_t>) {
        mode.put(device.gpu()?.compute_mode)
    }

    fn nvmlDeviceSetComputeMode(device: Device, mode: sys::nvmlComputeMode_t) {
        let number = device.gpu()?.number;
        if mode >= sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_COUNT {
            return Err(Status::INVALID_ARGUMENT);
        }
        library::update_gpu(number, |gpu| gpu.compute_mode = mode)
    }

    fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<sys::nvmlEnableState_t>) {
        mode.put(device.gpu()?.persistence.into())
    }

    fn nvmlDeviceSetPersistenceMode(device: Device, mode: sys::nvmlEnableState_t) {
        let number = device.gpu()?.number;
        let enabled = is_enabled(mode)?;
        library::update_gpu(number, |gpu| gpu.persistence = enabled)
    }

    /// No display is connected.
    fn [nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive](
        device: Device,
        mode: Out<sys::nvmlEnableState_t>,
    ) {
        device.gpu()?;
        mode.put(sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetVirtualizationMode(device: Device, mode: Out<c_uint>) {
        device.gpu()?;
        mode.put(sys::nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_NONE)
    }

    fn nvmlDeviceGetGspFirmwareMode(device: Device, enabled: Out<c_uint>, default: Out<c_uint>) {
        device.gpu()?;
        enabled.put(1)?;
        default.put(1)
    }
}

fn is_enabled(state: sys::nvmlEnableState_t) -> NvmlResult<bool> {
    match state {
        sys::nvmlEnableState_enum_NVML_FEATURE_DISABLED => Ok(false),
        sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED => Ok(true),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}
