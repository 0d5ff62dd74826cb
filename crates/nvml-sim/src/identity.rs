//! Identity of a device: names, numbers, generation.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{Architecture, Brand};

use crate::{
    abi::{Out, OutText},
    handle::{Device, DeviceSnapshot},
    lookup::as_count,
    status::Status,
};

export! {
    fn nvmlDeviceGetName(device: Device, name: OutText, length: c_uint) {
        match device.find()? {
            DeviceSnapshot::Gpu(gpu) => name.put(length, &gpu.card.name),
            DeviceSnapshot::Mig(mig) => {
                name.put(length, &format!("{} MIG {}", mig.gpu.card.name, mig.profile))
            }
        }
    }

    fn nvmlDeviceGetUUID(device: Device, uuid: OutText, length: c_uint) {
        match device.find()? {
            DeviceSnapshot::Gpu(gpu) => uuid.put(length, &gpu.uuid),
            DeviceSnapshot::Mig(mig) => uuid.put(length, &mig.compute()?.uuid),
        }
    }

    fn nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) {
        match device.find()? {
            DeviceSnapshot::Gpu(gpu) => index.put(as_count(gpu.index())?),
            DeviceSnapshot::Mig(mig) => index.put(as_count(mig.index())?),
        }
    }

    fn nvmlDeviceGetSerial(device: Device, serial: OutText, length: c_uint) {
        serial.put(length, &device.gpu()?.serial)
    }

    fn nvmlDeviceGetMinorNumber(device: Device, minor: Out<c_uint>) {
        minor.put(device.gpu()?.minor)
    }

    fn nvmlDeviceGetBrand(device: Device, brand: Out<sys::nvmlBrandType_t>) {
        brand.put(match device.gpu()?.card.brand {
            Brand::Tesla => sys::nvmlBrandType_enum_NVML_BRAND_TESLA,
            Brand::Nvidia => sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA,
            Brand::GeForce => sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE,
        })
    }

    fn nvmlDeviceGetArchitecture(device: Device, architecture: Out<c_uint>) {
        architecture.put(match device.gpu()?.card.architecture {
            Architecture::Volta => sys::NVML_DEVICE_ARCH_VOLTA,
            Architecture::Turing => sys::NVML_DEVICE_ARCH_TURING,
            Architecture::Ampere => sys::NVML_DEVICE_ARCH_AMPERE,
            Architecture::Ada => sys::NVML_DEVICE_ARCH_ADA,
            Architecture::Hopper => sys::NVML_DEVICE_ARCH_HOPPER,
            Architecture::Blackwell => sys::NVML_DEVICE_ARCH_BLACKWELL,
        })
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) {
        let capability = match device.find()? {
            DeviceSnapshot::Gpu(gpu) => gpu.card.compute_capability,
            DeviceSnapshot::Mig(mig) => mig.gpu.card.compute_capability,
        };
        major.put(capability.major.into())?;
        minor.put(capability.minor.into())
    }

    fn nvmlDeviceGetNumGpuCores(device: Device, cores: Out<c_uint>) {
        cores.put(device.gpu()?.card.cores)
    }

    fn nvmlDeviceGetVbiosVersion(device: Device, version: OutText, length: c_uint) {
        version.put(length, &device.gpu()?.vbios())
    }

    fn nvmlDeviceGetBoardPartNumber(device: Device, number: OutText, length: c_uint) {
        let pci = device.gpu()?.card.pci;
        number.put(length, &format!("900-2{:04X}-0000-000", pci.device))
    }

    fn nvmlDeviceGetBoardId(device: Device, id: Out<c_uint>) {
        let address = device.gpu()?.address();
        id.put(c_uint::from(address.bus) << 8)
    }

    fn nvmlDeviceGetModuleId(device: Device, id: Out<c_uint>) {
        let gpu = device.gpu()?;
        gpu.card.nvlink.ok_or(Status::NOT_SUPPORTED)?;
        id.put(as_count(gpu.index())? + 1)
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Device, several: Out<c_uint>) {
        device.gpu()?;
        several.put(0)
    }

    fn nvmlDeviceOnSameBoard(one: Device, other: Device, same: Out<c_int>) {
        same.put((one.gpu()?.number == other.gpu()?.number).into())
    }

    fn nvmlDeviceGetAttributes_v2(
        device: Device,
        attributes: Out<sys::nvmlDeviceAttributes_t>,
    ) {
        attributes.put(crate::instance::attributes(&device.find()?)?)
    }

    /// Version 1 ends before the slice counts.
    fn nvmlDeviceGetAttributes(device: Device, attributes: Out<[c_uint; 6]>) {
        let attributes_v2 = crate::instance::attributes(&device.find()?)?;
        attributes.put([
            attributes_v2.multiprocessorCount,
            attributes_v2.sharedCopyEngineCount,
            attributes_v2.sharedDecoderCount,
            attributes_v2.sharedEncoderCount,
            attributes_v2.sharedJpegCount,
            attributes_v2.sharedOfaCount,
        ])
    }
}
