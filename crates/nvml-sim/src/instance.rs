//! Profiles of MIG instances, and attributes of a MIG device.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{card::Card, mig::GpuInstanceProfile};

use crate::{
    abi::{char_array, struct_version, versioned},
    handle::DeviceSnapshot,
    status::{NvmlResult, Status},
};

versioned!(
    sys::nvmlGpuInstanceProfileInfo_v2_t,
    sys::nvmlGpuInstanceProfileInfo_v3_t,
    sys::nvmlComputeInstanceProfileInfo_v2_t,
    sys::nvmlComputeInstanceProfileInfo_v3_t,
);

/// Name in a profile struct, of length `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
type ProfileName = [c_char; 96];

/// Attributes of a MIG device. A GPU is "not supported", as in the real library.
pub(crate) fn attributes(snapshot: &DeviceSnapshot) -> NvmlResult<sys::nvmlDeviceAttributes_t> {
    let DeviceSnapshot::Mig(mig) = snapshot else { return Err(Status::NOT_SUPPORTED) };
    let profile = mig.gpu_instance_profile()?;
    let info = gpu_instance_profile(profile, &mig.gpu.card)?;
    Ok(sys::nvmlDeviceAttributes_t {
        multiprocessorCount: info.multiprocessorCount,
        sharedCopyEngineCount: info.copyEngineCount,
        sharedDecoderCount: info.decoderCount,
        sharedEncoderCount: info.encoderCount,
        sharedJpegCount: info.jpegCount,
        sharedOfaCount: info.ofaCount,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: profile.slices,
        memorySizeMB: info.memorySizeMB,
    })
}

/// GPU instance profile on a card.
pub(crate) fn gpu_instance_profile(
    profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlGpuInstanceProfileInfo_t> {
    let resources = profile.resources(card, card.mig.ok_or(Status::NOT_SUPPORTED)?);
    Ok(sys::nvmlGpuInstanceProfileInfo_t {
        id: profile.profile_id,
        isP2pSupported: 0,
        sliceCount: profile.slices,
        instanceCount: profile.max_instances(),
        multiprocessorCount: resources.multiprocessors,
        copyEngineCount: resources.copy_engines,
        decoderCount: resources.decoders,
        encoderCount: 0,
        jpegCount: resources.jpeg,
        ofaCount: resources.optical_flow,
        memorySizeMB: profile.memory_mib(card),
    })
}

/// GPU instance profile with its name.
pub(crate) fn gpu_instance_profile_v2(
    profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlGpuInstanceProfileInfo_v2_t> {
    let info = gpu_instance_profile(profile, card)?;
    Ok(sys::nvmlGpuInstanceProfileInfo_v2_t {
        version: struct_version::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2),
        id: info.id,
        isP2pSupported: info.isP2pSupported,
        sliceCount: info.sliceCount,
        instanceCount: info.instanceCount,
        multiprocessorCount: info.multiprocessorCount,
        copyEngineCount: info.copyEngineCount,
        decoderCount: info.decoderCount,
        encoderCount: info.encoderCount,
        jpegCount: info.jpegCount,
        ofaCount: info.ofaCount,
        memorySizeMB: info.memorySizeMB,
        name: name(profile, card)?,
    })
}

/// GPU instance profile with capabilities in place of the P2P flag.
pub(crate) fn gpu_instance_profile_v3(
    profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlGpuInstanceProfileInfo_v3_t> {
    let info = gpu_instance_profile(profile, card)?;
    Ok(sys::nvmlGpuInstanceProfileInfo_v3_t {
        version: struct_version::<sys::nvmlGpuInstanceProfileInfo_v3_t>(3),
        id: info.id,
        sliceCount: info.sliceCount,
        instanceCount: info.instanceCount,
        multiprocessorCount: info.multiprocessorCount,
        copyEngineCount: info.copyEngineCount,
        decoderCount: info.decoderCount,
        encoderCount: info.encoderCount,
        jpegCount: info.jpegCount,
        ofaCount: info.ofaCount,
        memorySizeMB: info.memorySizeMB,
        name: name(profile, card)?,
        capabilities: 0,
    })
}

/// Compute instance profile within a GPU instance. Its id equals its `NVML_COMPUTE_INSTANCE_PROFILE_*` number.
pub(crate) fn compute_instance_profile(
    profile: c_uint,
    gpu_profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlComputeInstanceProfileInfo_t> {
    let slices = slices_of(profile)?;
    if slices > gpu_profile.slices {
        return Err(Status::NOT_SUPPORTED);
    }
    let capability = card.mig.ok_or(Status::NOT_SUPPORTED)?;
    let gpu_instance_info = gpu_instance_profile(gpu_profile, card)?;
    // Only a compute instance that fills the GPU instance gets the SMs beyond its slices.
    let slice_multiprocessors = slices * capability.multiprocessors;
    let multiprocessorCount = if slices == gpu_profile.slices {
        gpu_instance_info.multiprocessorCount
    } else {
        slice_multiprocessors
    };
    Ok(sys::nvmlComputeInstanceProfileInfo_t {
        id: profile,
        sliceCount: slices,
        instanceCount: gpu_profile.slices / slices,
        multiprocessorCount,
        sharedCopyEngineCount: gpu_instance_info.copyEngineCount,
        sharedDecoderCount: gpu_instance_info.decoderCount,
        sharedEncoderCount: gpu_instance_info.encoderCount,
        sharedJpegCount: gpu_instance_info.jpegCount,
        sharedOfaCount: gpu_instance_info.ofaCount,
    })
}

/// Compute instance profile with its name: `1c.3g.20gb`, or the GPU instance's name for a filling profile.
pub(crate) fn compute_instance_profile_v2(
    profile: c_uint,
    gpu_profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlComputeInstanceProfileInfo_v2_t> {
    let info = compute_instance_profile(profile, gpu_profile, card)?;
    Ok(sys::nvmlComputeInstanceProfileInfo_v2_t {
        version: struct_version::<sys::nvmlComputeInstanceProfileInfo_v2_t>(2),
        id: info.id,
        sliceCount: info.sliceCount,
        instanceCount: info.instanceCount,
        multiprocessorCount: info.multiprocessorCount,
        sharedCopyEngineCount: info.sharedCopyEngineCount,
        sharedDecoderCount: info.sharedDecoderCount,
        sharedEncoderCount: info.sharedEncoderCount,
        sharedJpegCount: info.sharedJpegCount,
        sharedOfaCount: info.sharedOfaCount,
        name: compute_profile_name(info.sliceCount, gpu_profile, card)?,
    })
}

/// Compute instance profile with capabilities.
pub(crate) fn compute_instance_profile_v3(
    profile: c_uint,
    gpu_profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<sys::nvmlComputeInstanceProfileInfo_v3_t> {
    let info = compute_instance_profile(profile, gpu_profile, card)?;
    Ok(sys::nvmlComputeInstanceProfileInfo_v3_t {
        version: struct_version::<sys::nvmlComputeInstanceProfileInfo_v3_t>(3),
        id: info.id,
        sliceCount: info.sliceCount,
        instanceCount: info.instanceCount,
        multiprocessorCount: info.multiprocessorCount,
        sharedCopyEngineCount: info.sharedCopyEngineCount,
        sharedDecoderCount: info.sharedDecoderCount,
        sharedEncoderCount: info.sharedEncoderCount,
        sharedJpegCount: info.sharedJpegCount,
        sharedOfaCount: info.sharedOfaCount,
        name: compute_profile_name(info.sliceCount, gpu_profile, card)?,
        capabilities: 0,
    })
}

/// Number of the compute instance profile that fills a GPU instance.
pub(crate) fn full_compute_profile(profile: GpuInstanceProfile) -> c_uint {
    (0..sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        .find(|number| slices_of(*number) == Ok(profile.slices))
        .unwrap_or(sys::NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
}

fn slices_of(profile: c_uint) -> NvmlResult<u32> {
    match profile {
        sys::NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE => Ok(1),
        sys::NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE => Ok(2),
        sys::NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE => Ok(3),
        sys::NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE => Ok(4),
        sys::NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE => Ok(7),
        known if known < sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn name(profile: GpuInstanceProfile, card: &Card) -> NvmlResult<ProfileName> {
    let capability = card.mig.ok_or(Status::NOT_SUPPORTED)?;
    Ok(char_array(&format!("MIG {}", profile.name(capability))))
}

fn compute_profile_name(
    slices: u32,
    gpu_profile: GpuInstanceProfile,
    card: &Card,
) -> NvmlResult<ProfileName> {
    let capability = card.mig.ok_or(Status::NOT_SUPPORTED)?;
    let gpu_instance_name = gpu_profile.name(capability);
    let prefix = if slices == gpu_profile.slices { String::new() } else { format!("{slices}c.") };
    Ok(char_array(&format!("MIG {prefix}{gpu_instance_name}")))
}
