//! Exported functions without a simulation. Calls return "not supported".
//!
//! Real cards support some of these functions. The exports exist for clients that resolve all symbols at the start,
//! such as programs linked against the library.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    handle::Device,
    library,
    status::{Code, NvmlResult, Status, run_call},
};

/// Exports unsupported functions with the parameter types of the bindings. A function with a handle first reports
/// errors of the handle.
macro_rules! not_supported {
    (for $handle:ty: $($name:ident($($type:ty),*))*) => {$(
        // SAFETY: the name is NVML's. A process loads this library in place of NVIDIA's.
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: $handle, $(_: $type),*) -> Code {
            run_call(|| handle.find().map(drop).and_then(|()| refuse()))
        }
    )*};
    ($($name:ident($($type:ty),*))*) => {$(
        // SAFETY: the name is NVML's. A process loads this library in place of NVIDIA's.
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) -> Code {
            run_call(refuse)
        }
    )*};
}

not_supported! {
    for Device:
    nvmlDeviceClearCpuAffinity()
    nvmlDeviceClearEccErrorCounts(sys::nvmlEccCounterType_t)
    nvmlDeviceGetAPIRestriction(sys::nvmlRestrictedAPI_t, *mut sys::nvmlEnableState_t)
    nvmlDeviceGetAccountingMode(*mut sys::nvmlEnableState_t)
    nvmlDeviceGetAdaptiveClockInfoStatus(*mut c_uint)
    nvmlDeviceGetAutoBoostedClocksEnabled(*mut sys::nvmlEnableState_t, *mut sys::nvmlEnableState_t)
    nvmlDeviceGetBridgeChipInfo(*mut sys::nvmlBridgeChipHierarchy_t)
    nvmlDeviceGetCapabilities(*mut sys::nvmlDeviceCapabilities_t)
    nvmlDeviceGetConfComputeProtectedMemoryUsage(*mut sys::nvmlMemory_t)
    nvmlDeviceGetDriverModel(*mut sys::nvmlDriverModel_t, *mut sys::nvmlDriverModel_t)
    nvmlDeviceGetDriverModel_v2(*mut sys::nvmlDriverModel_t, *mut sys::nvmlDriverModel_t)
    nvmlDeviceGetEncoderSessions(*mut c_uint, *mut sys::nvmlEncoderSessionInfo_t)
    nvmlDeviceGetEncoderStats(*mut c_uint, *mut c_uint, *mut c_uint)
    nvmlDeviceGetFBCStats(*mut sys::nvmlFBCStats_t)
    nvmlDeviceGetFanSpeed(*mut c_uint)
    nvmlDeviceGetFanSpeed_v2(c_uint, *mut c_uint)
    nvmlDeviceGetGpuOperationMode(
        *mut sys::nvmlGpuOperationMode_t,
        *mut sys::nvmlGpuOperationMode_t
    )
    nvmlDeviceGetGspFirmwareVersion(*mut c_char)
    nvmlDeviceGetInforomConfigurationChecksum(*mut c_uint)
    nvmlDeviceGetInforomImageVersion(*mut c_char, c_uint)
    nvmlDeviceGetInforomVersion(sys::nvmlInforomObject_t, *mut c_char, c_uint)
    nvmlDeviceGetMemoryBusWidth(*mut c_uint)
    nvmlDeviceGetNumaNodeId(*mut c_uint)
    nvmlDeviceGetNvLinkInfo(*mut sys::nvmlNvLinkInfo_t)
    nvmlDeviceGetNvLinkUtilizationCounter(c_uint, c_uint, *mut c_ulonglong, *mut c_ulonglong)
    nvmlDeviceGetPlatformInfo(*mut sys::nvmlPlatformInfo_t)
    nvmlDeviceGetPowerSource(*mut sys::nvmlPowerSource_t)
    nvmlDeviceGetProcessesUtilizationInfo(*mut sys::nvmlProcessesUtilizationInfo_t)
    nvmlDeviceGetRunningProcessDetailList(*mut sys::nvmlProcessDetailList_t)
    nvmlDeviceGetSamples(
        sys::nvmlSamplingType_t,
        c_ulonglong,
        *mut sys::nvmlValueType_t,
        *mut c_uint,
        *mut sys::nvmlSample_t
    )
    nvmlDeviceGetSramEccErrorStatus(*mut sys::nvmlEccSramErrorStatus_t)
    nvmlDeviceGetSupportedGraphicsClocks(c_uint, *mut c_uint, *mut c_uint)
    nvmlDeviceGetSupportedMemoryClocks(*mut c_uint, *mut c_uint)
    nvmlDeviceGetSupportedVgpus(*mut c_uint, *mut sys::nvmlVgpuTypeId_t)
    nvmlDeviceGetThermalSettings(c_uint, *mut sys::nvmlGpuThermalSettings_t)
    nvmlDeviceGetVgpuMetadata(*mut sys::nvmlVgpuPgpuMetadata_t, *mut c_uint)
    nvmlDeviceGetViolationStatus(sys::nvmlPerfPolicyType_t, *mut sys::nvmlViolationTime_t)
    nvmlDeviceResetGpuLockedClocks()
    nvmlDeviceResetMemoryLockedClocks()
    nvmlDeviceSetApplicationsClocks(c_uint, c_uint)
    nvmlDeviceSetCpuAffinity()
    nvmlDeviceSetEccMode(sys::nvmlEnableState_t)
    nvmlDeviceSetGpuLockedClocks(c_uint, c_uint)
    nvmlDeviceSetMemoryLockedClocks(c_uint, c_uint)
    nvmlDeviceSetPowerManagementLimit(c_uint)
    nvmlDeviceValidateInforom()
    nvmlGpmMigSampleGet(c_uint, sys::nvmlGpmSample_t)
    nvmlGpmQueryDeviceSupport(*mut sys::nvmlGpmSupport_t)
    nvmlGpmQueryIfStreamingEnabled(*mut c_uint)
    nvmlGpmSampleGet(sys::nvmlGpmSample_t)
    nvmlGpmSetStreamingEnabled(c_uint)
}

not_supported! {
    nvmlDeviceGetHandleByUUIDV(*const sys::nvmlUUID_t, *mut sys::nvmlDevice_t)
    nvmlGpmMetricsGet(*mut sys::nvmlGpmMetricsGet_t)
    nvmlGpmSampleAlloc(*mut sys::nvmlGpmSample_t)
    nvmlGpmSampleFree(sys::nvmlGpmSample_t)
    nvmlSystemGetConfComputeCapabilities(*mut sys::nvmlConfComputeSystemCaps_t)
    nvmlSystemGetConfComputeSettings(*mut sys::nvmlSystemConfComputeSettings_t)
    nvmlSystemGetConfComputeState(*mut sys::nvmlConfComputeSystemState_t)
}

fn refuse() -> NvmlResult {
    library::current_model()?;
    Err(Status::NOT_SUPPORTED)
}
