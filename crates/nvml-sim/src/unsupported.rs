//! Functions that these cards do not support: a client finds them, and is told so.

use crate::{
    handle::Device,
    status::{Answer, Code, Status, code},
};

/// Each takes a device first. The parameters behind it are not read, and in C a function may take
/// fewer than it is given.
macro_rules! not_supported {
    ($($name:ident)*) => {$(
        // SAFETY: the name is NVML's; whoever loads this library wants it in place of NVIDIA's.
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Device) -> Code {
            code(refuse(device))
        }
    )*};
}

not_supported! {
    nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts
    nvmlDeviceCreateGpuInstance
    nvmlDeviceCreateGpuInstanceWithPlacement
    nvmlDeviceGetAPIRestriction
    nvmlDeviceGetAccountingMode
    nvmlDeviceGetAdaptiveClockInfoStatus
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetCapabilities
    nvmlDeviceGetConfComputeProtectedMemoryUsage
    nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats
    nvmlDeviceGetFBCStats
    nvmlDeviceGetFanSpeed
    nvmlDeviceGetFanSpeed_v2
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion
    nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetNumaNodeId
    nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetPlatformInfo
    nvmlDeviceGetPowerSource
    nvmlDeviceGetProcessUtilization
    nvmlDeviceGetProcessesUtilizationInfo
    nvmlDeviceGetRunningProcessDetailList
    nvmlDeviceGetSamples
    nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks
    nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetThermalSettings
    nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetViolationStatus
    nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetCpuAffinity
    nvmlDeviceSetEccMode
    nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetPowerManagementLimit
    nvmlDeviceValidateInforom
}

fn refuse(device: Device) -> Answer {
    device.find()?;
    Err(Status::NOT_SUPPORTED)
}
