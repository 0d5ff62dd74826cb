//! ECC: mode, error counters, retired pages and remapped rows.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::state::EccCounts;

use crate::{
    abi::{Out, OutArray},
    handle::{Device, GpuSnapshot},
    status::{NvmlResult, Status},
};

export! {
    fn nvmlDeviceGetEccMode(
        device: Device,
        current: Out<sys::nvmlEnableState_t>,
        pending: Out<sys::nvmlEnableState_t>,
    ) {
        gpu_with_ecc(device)?;
        current.put(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)?;
        pending.put(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetDefaultEccMode(device: Device, mode: Out<sys::nvmlEnableState_t>) {
        gpu_with_ecc(device)?;
        mode.put(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetTotalEccErrors(
        device: Device,
        kind: c_uint,
        since: c_uint,
        count: Out<c_ulonglong>,
    ) {
        count.put(error_count(&gpu_with_ecc(device)?, kind, since)?)
    }

    /// All simulated errors are in device memory.
    fn nvmlDeviceGetDetailedEccErrors(
        device: Device,
        kind: c_uint,
        since: c_uint,
        counts: Out<sys::nvmlEccErrorCounts_t>,
    ) {
        let deviceMemory = error_count(&gpu_with_ecc(device)?, kind, since)?;
        let none = 0;
        counts.put(sys::nvmlEccErrorCounts_t {
            l1Cache: none,
            l2Cache: none,
            deviceMemory,
            registerFile: none,
        })
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: Device,
        kind: c_uint,
        since: c_uint,
        location: c_uint,
        count: Out<c_ulonglong>,
    ) {
        let errors = error_count(&gpu_with_ecc(device)?, kind, since)?;
        let memory = sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY;
        match location {
            sys::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT.. => {
                Err(Status::INVALID_ARGUMENT)
            }
            _ => count.put(if location == memory { errors } else { 0 }),
        }
    }

    /// Ampere and later remap rows and retire no pages.
    fn nvmlDeviceGetRetiredPages(
        device: Device,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: OutArray<c_ulonglong>,
    ) {
        addresses.put_counted(count, &retired_pages(&gpu_with_ecc(device)?, cause)?)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        device: Device,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: OutArray<c_ulonglong>,
        times: OutArray<c_ulonglong>,
    ) {
        let pages = retired_pages(&gpu_with_ecc(device)?, cause)?;
        addresses.put_counted(count, &pages)?;
        // Retirement times are unknown, so each is zero.
        times.put(pages.len(), &vec![0; pages.len()])
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(
        device: Device,
        pending: Out<sys::nvmlEnableState_t>,
    ) {
        let gpu = gpu_with_ecc(device)?;
        check_retires_pages(&gpu)?;
        pending.put(gpu.live.remapped.pending.into())
    }

    fn nvmlDeviceGetRemappedRows(
        device: Device,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        let gpu = gpu_with_ecc(device)?;
        if check_retires_pages(&gpu).is_ok() {
            return Err(Status::NOT_SUPPORTED);
        }
        let rows = gpu.live.remapped;
        corrected.put(rows.corrected)?;
        uncorrected.put(rows.uncorrected)?;
        pending.put(rows.pending.into())?;
        failed.put(rows.failed.into())
    }

    fn nvmlDeviceGetRowRemapperHistogram(
        device: Device,
        values: Out<sys::nvmlRowRemapperHistogramValues_t>,
    ) {
        let gpu = gpu_with_ecc(device)?;
        if check_retires_pages(&gpu).is_ok() {
            return Err(Status::NOT_SUPPORTED);
        }
        // Numbers of banks by remaining spare rows: each remapped row is in another bank.
        let banks = 640;
        let high = gpu.live.remapped.uncorrected.min(banks);
        values.put(sys::nvmlRowRemapperHistogramValues_t {
            max: banks - high,
            high,
            partial: 0,
            low: 0,
            none: 0,
        })
    }
}

/// Error count of a kind, by `nvmlMemoryErrorType_t` and `nvmlEccCounterType_t`.
pub(crate) fn error_count(gpu: &GpuSnapshot, kind: c_uint, since: c_uint) -> NvmlResult<u64> {
    let EccCounts { corrected, uncorrected } = match since {
        sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC => gpu.live.ecc_volatile,
        sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC => gpu.live.ecc_aggregate,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    match kind {
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => Ok(corrected),
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => Ok(uncorrected),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

/// Addresses of pages retired for a cause. The addresses are arbitrary, but distinct.
fn retired_pages(gpu: &GpuSnapshot, cause: c_uint) -> NvmlResult<Vec<c_ulonglong>> {
    use sys::{
        nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE_BIT,
        nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as SINGLE_BIT,
    };
    check_retires_pages(gpu)?;
    let count = match cause {
        SINGLE_BIT => gpu.live.remapped.corrected,
        DOUBLE_BIT => gpu.live.remapped.uncorrected,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    Ok((0..count).map(|page| c_ulonglong::from(page) * 4096).collect())
}

fn gpu_with_ecc(device: Device) -> NvmlResult<GpuSnapshot> {
    let gpu = device.gpu()?;
    if gpu.card.ecc { Ok(gpu) } else { Err(Status::NOT_SUPPORTED) }
}

fn check_retires_pages(gpu: &GpuSnapshot) -> NvmlResult {
    if gpu.card.architecture.remaps_rows() { Err(Status::NOT_SUPPORTED) } else { Ok(()) }
}
