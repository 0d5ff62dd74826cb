//! Sizes and offsets of the structs of `nvml.h`. A change in the bindings fails the build.
//!
//! The values agree with a C compiler's, for `nvml.h` in NVIDIA's package `nvidia-nvml-dev` 13.5.37. The test `header`
//! repeats the comparison. Structs with pointers are smaller on 32-bit machines. NVIDIA has no driver for these
//! machines, so 32-bit builds omit this module.

use std::mem::offset_of;

use nvml_wrapper_sys::bindings as sys;

use crate::{
    events::EventDataV1,
    memory_limits::{GetMemoryLimits, SetMemoryLimits},
    mig::ComputeInstanceInfoV1,
    pci::{PciInfoV1, PciInfoV2},
};

// Structs of earlier function versions, absent from later headers.
const _: () = assert!(size_of::<EventDataV1>() == 24);
const _: () = assert!(size_of::<PciInfoV1>() == 32);
const _: () = assert!(size_of::<PciInfoV2>() == 52);
const _: () = assert!(size_of::<ComputeInstanceInfoV1>() == 24);

// Structs of CUDA 13.4.
const _: () = assert!(size_of::<SetMemoryLimits>() == 24);
const _: () = assert!(size_of::<GetMemoryLimits>() == 32);

macro_rules! sizes {
    ($($type:ident: $size:literal),* $(,)?) => {
        $(const _: () = assert!(size_of::<sys::$type>() == $size);)*
    };
}

macro_rules! offsets {
    ($($type:ident.$field:ident: $offset:literal),* $(,)?) => {
        $(const _: () = assert!(offset_of!(sys::$type, $field) == $offset);)*
    };
}

sizes! {
    nvmlBAR1Memory_t: 24,
    nvmlComputeInstanceInfo_t: 32,
    nvmlComputeInstanceProfileInfo_t: 36,
    nvmlComputeInstanceProfileInfo_v2_t: 136,
    nvmlComputeInstanceProfileInfo_v3_t: 140,
    nvmlDeviceAddressingMode_t: 8,
    nvmlDeviceAttributes_t: 40,
    nvmlEccErrorCounts_t: 32,
    nvmlEventData_t: 32,
    nvmlFieldValue_t: 40,
    nvmlGpuFabricInfo_t: 28,
    nvmlGpuFabricInfo_v2_t: 36,
    nvmlGpuFabricInfo_v3_t: 40,
    nvmlGpuInstanceInfo_t: 24,
    nvmlGpuInstancePlacement_t: 8,
    nvmlGpuInstanceProfileInfo_t: 48,
    nvmlGpuInstanceProfileInfo_v2_t: 152,
    nvmlGpuInstanceProfileInfo_v3_t: 152,
    nvmlMarginTemperature_v1_t: 8,
    nvmlMemory_t: 24,
    nvmlMemory_v2_t: 40,
    nvmlPciInfoExt_t: 64,
    nvmlPciInfo_t: 68,
    nvmlProcessInfo_v1_t: 16,
    nvmlProcessInfo_v2_t: 24,
    nvmlRowRemapperHistogramValues_t: 20,
    nvmlTemperature_v1_t: 12,
    nvmlUtilization_t: 8,
}

offsets! {
    nvmlDeviceAttributes_t.memorySizeMB: 32,
    nvmlEventData_t.eventData: 16,
    nvmlEventData_t.gpuInstanceId: 24,
    nvmlFieldValue_t.nvmlReturn: 28,
    nvmlFieldValue_t.value: 32,
    nvmlGpuFabricInfo_v2_t.state: 28,
    nvmlGpuFabricInfo_v3_t.healthSummary: 36,
    nvmlGpuInstanceProfileInfo_v2_t.memorySizeMB: 48,
    nvmlGpuInstanceProfileInfo_v2_t.name: 56,
    nvmlMemory_v2_t.total: 8,
    nvmlPciInfo_t.busId: 36,
    nvmlPciInfo_t.pciSubSystemId: 32,
    nvmlProcessInfo_v2_t.gpuInstanceId: 16,
}
