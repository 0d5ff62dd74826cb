//! Power, temperature, fans.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    abi::{Out, OutVersioned, struct_version, versioned},
    handle::{Device, GpuSnapshot},
    library,
    status::{NvmlResult, Status},
};

versioned!(sys::nvmlTemperature_v1_t, sys::nvmlMarginTemperature_v1_t);

/// Temperature thresholds of a data centre card.
const SLOWDOWN_C: u32 = 87;
const SHUTDOWN_C: u32 = 92;
const MEMORY_MAX_C: u32 = 95;

/// Difference of the memory's temperature to the chip's, as on an H100.
const MEMORY_ABOVE_CHIP_C: u32 = 10;

export! {
    fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: Out<c_uint>) {
        milliwatts.put(device.gpu()?.live.power_mw)
    }

    fn [
        nvmlDeviceGetPowerManagementLimit
        nvmlDeviceGetPowerManagementDefaultLimit
        nvmlDeviceGetEnforcedPowerLimit
    ](device: Device, milliwatts: Out<c_uint>) {
        milliwatts.put(limit_mw(&device.gpu()?))
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(
        device: Device,
        min: Out<c_uint>,
        max: Out<c_uint>,
    ) {
        let limit = limit_mw(&device.gpu()?);
        min.put(limit / 4)?;
        max.put(limit)
    }

    fn nvmlDeviceGetPowerManagementMode(device: Device, mode: Out<sys::nvmlEnableState_t>) {
        device.gpu()?;
        mode.put(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(device: Device, millijoules: Out<c_ulonglong>) {
        millijoules.put(energy_mj(&device.gpu()?))
    }

    fn nvmlDeviceGetTemperature(device: Device, sensor: c_uint, celsius: Out<c_uint>) {
        let gpu = device.gpu()?;
        core_sensor(sensor)?;
        celsius.put(gpu.live.temperature_c)
    }

    fn nvmlDeviceGetTemperatureV(device: Device, temperature: OutVersioned) {
        let gpu = device.gpu()?;
        let version = struct_version::<sys::nvmlTemperature_v1_t>(1);
        let request: sys::nvmlTemperature_v1_t = temperature.read(version)?;
        core_sensor(request.sensorType)?;
        temperature.put(sys::nvmlTemperature_v1_t {
            version,
            sensorType: request.sensorType,
            temperature: gpu.live.temperature_c.cast_signed(),
        })
    }

    fn nvmlDeviceGetMarginTemperature(device: Device, margin: OutVersioned) {
        let gpu = device.gpu()?;
        let slowdown = SLOWDOWN_C.cast_signed();
        margin.put(sys::nvmlMarginTemperature_v1_t {
            version: struct_version::<sys::nvmlMarginTemperature_v1_t>(1),
            marginTemperature: slowdown.saturating_sub_unsigned(gpu.live.temperature_c),
        })
    }

    fn nvmlDeviceGetTemperatureThreshold(device: Device, threshold: c_uint, celsius: Out<c_uint>) {
        device.gpu()?;
        celsius.put(threshold_c(threshold)?)
    }

    /// Data centre cards have no fans.
    fn nvmlDeviceGetNumFans(device: Device, count: Out<c_uint>) {
        device.gpu()?;
        count.check()?;
        Err(Status::NOT_SUPPORTED)
    }
}

/// Energy in mJ since the first `nvmlInit` of this process, at constant power.
pub(crate) fn energy_mj(gpu: &GpuSnapshot) -> u64 {
    u64::from(gpu.live.power_mw) * library::seconds_in_use()
}

/// Temperature of the memory. HBM has a sensor, and the shipped cards with NVLink or MIG have HBM.
pub(crate) fn memory_c(gpu: &GpuSnapshot) -> NvmlResult<u32> {
    let has_hbm = gpu.card.nvlink.is_some() || gpu.card.mig.is_some();
    has_hbm.then(|| gpu.live.temperature_c + MEMORY_ABOVE_CHIP_C).ok_or(Status::NOT_SUPPORTED)
}

/// Power limit in mW, always the card's default.
pub(crate) fn limit_mw(gpu: &GpuSnapshot) -> u32 {
    gpu.card.power_limit_w.saturating_mul(1000)
}

fn threshold_c(threshold: c_uint) -> NvmlResult<u32> {
    use sys::{
        nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT as COUNT,
        nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX as GPU_MAX,
        nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX as MEM_MAX,
        nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN as SHUTDOWN,
        nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN as SLOWDOWN,
    };
    match threshold {
        SHUTDOWN => Ok(SHUTDOWN_C),
        SLOWDOWN | GPU_MAX => Ok(SLOWDOWN_C),
        MEM_MAX => Ok(MEMORY_MAX_C),
        known if known < COUNT => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn core_sensor(sensor: c_uint) -> NvmlResult {
    let core = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
    if sensor == core { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}
