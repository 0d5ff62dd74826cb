//! Clocks, utilization, performance states.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{card::Clocks, state::Gpu};

use crate::{
    abi::Out,
    handle::Device,
    status::{NvmlResult, Status},
};

/// Graphics clock of an idle card.
const IDLE_MHZ: u32 = 345;

export! {
    fn [nvmlDeviceGetMaxClockInfo nvmlDeviceGetMaxCustomerBoostClock](
        device: Device,
        clock: c_uint,
        megahertz: Out<c_uint>,
    ) {
        let clocks = device.gpu()?.card.clocks_mhz;
        megahertz.put(clock_mhz(clock, clocks.graphics, clocks)?)
    }

    fn [nvmlDeviceGetApplicationsClock nvmlDeviceGetDefaultApplicationsClock](
        device: Device,
        clock: c_uint,
        megahertz: Out<c_uint>,
    ) {
        let clocks = device.gpu()?.card.clocks_mhz;
        megahertz.put(clock_mhz(clock, clocks.graphics, clocks)?)
    }

    fn nvmlDeviceGetClockInfo(device: Device, clock: c_uint, megahertz: Out<c_uint>) {
        let gpu = device.gpu()?;
        megahertz.put(clock_mhz(clock, current_graphics_mhz(&gpu), gpu.card.clocks_mhz)?)
    }

    fn nvmlDeviceGetClock(device: Device, clock: c_uint, id: c_uint, megahertz: Out<c_uint>) {
        let gpu = device.gpu()?;
        let graphics = match id {
            sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => current_graphics_mhz(&gpu),
            _ => gpu.card.clocks_mhz.graphics,
        };
        megahertz.put(clock_mhz(clock, graphics, gpu.card.clocks_mhz)?)
    }

    fn nvmlDeviceGetUtilizationRates(device: Device, rates: Out<sys::nvmlUtilization_t>) {
        let gpu = device.gpu()?;
        // The real library reports no utilization for a partitioned GPU.
        if gpu.mig.is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        rates.put(sys::nvmlUtilization_t {
            gpu: gpu.live.utilization_percent,
            memory: gpu.live.memory_utilization_percent,
        })
    }

    fn [
        nvmlDeviceGetEncoderUtilization
        nvmlDeviceGetDecoderUtilization
        nvmlDeviceGetJpgUtilization
        nvmlDeviceGetOfaUtilization
    ](device: Device, percent: Out<c_uint>, period_us: Out<c_uint>) {
        device.gpu()?;
        percent.put(0)?;
        period_us.put(167_000)
    }

    /// Data centre cards always report P0.
    fn [nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState](
        device: Device,
        state: Out<sys::nvmlPstates_t>,
    ) {
        device.gpu()?;
        state.put(sys::nvmlPStates_enum_NVML_PSTATE_0)
    }

    fn [nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetCurrentClocksEventReasons](
        device: Device,
        reasons: Out<c_ulonglong>,
    ) {
        reasons.put(clock_reasons(&*device.gpu()?))
    }

    /// Mask of all reasons in NVML.
    fn [nvmlDeviceGetSupportedClocksThrottleReasons nvmlDeviceGetSupportedClocksEventReasons](
        device: Device,
        reasons: Out<c_ulonglong>,
    ) {
        device.gpu()?;
        reasons.put(0x1ff)
    }
}

/// Reasons for reduced clocks, as bits of `nvmlClocksEventReason*`.
fn clock_reasons(gpu: &Gpu) -> c_ulonglong {
    let throttle_reasons = gpu.faults.slowed;
    [
        (gpu.live.utilization_percent == 0, sys::nvmlClocksEventReasonGpuIdle),
        // The driver reports a hardware reason together with the general one.
        (
            throttle_reasons.thermal || throttle_reasons.power,
            sys::nvmlClocksThrottleReasonHwSlowdown,
        ),
        (throttle_reasons.thermal, sys::nvmlClocksThrottleReasonHwThermalSlowdown),
        (throttle_reasons.power, sys::nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
    ]
    .into_iter()
    .filter_map(|(is_active, reason)| is_active.then_some(c_ulonglong::from(reason)))
    .sum()
}

fn current_graphics_mhz(gpu: &Gpu) -> u32 {
    match gpu.live.utilization_percent {
        0 => IDLE_MHZ.min(gpu.card.clocks_mhz.graphics),
        _ => gpu.card.clocks_mhz.graphics,
    }
}

fn clock_mhz(clock: c_uint, graphics: u32, clocks: Clocks) -> NvmlResult<u32> {
    match clock {
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | sys::nvmlClockType_enum_NVML_CLOCK_SM => {
            Ok(graphics)
        }
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(clocks.memory),
        // Video engines run at nine tenths of the graphics clock.
        sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(graphics / 10 * 9),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}
