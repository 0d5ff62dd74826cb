//! PCI address of a GPU, and its link to the host.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    card::PcieLink,
    pci::{PciAddress, PciId},
    state::Gpu,
};

use crate::{
    abi::{Out, OutVersioned, char_array, struct_version, versioned},
    handle::{Device, DeviceSnapshot},
    status::Status,
};

versioned!(sys::nvmlPciInfoExt_t);

/// `nvmlPciInfo_t` as version 1 of the function fills it: without the later fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfoV1 {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
}

/// `nvmlPciInfo_t` as version 2 of the function fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfoV2 {
    first: PciInfoV1,
    pci_subsystem_id: c_uint,
    reserved: [c_uint; 4],
}

export! {
    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<sys::nvmlPciInfo_t>) {
        info.put(info_of(&device.find()?))
    }

    fn nvmlDeviceGetPciInfo_v2(device: Device, info: Out<PciInfoV2>) {
        info.put(PciInfoV2::from(info_of(&device.find()?)))
    }

    fn nvmlDeviceGetPciInfo(device: Device, info: Out<PciInfoV1>) {
        info.put(PciInfoV2::from(info_of(&device.find()?)).first)
    }

    fn nvmlDeviceGetPciInfoExt(device: Device, info: OutVersioned) {
        let base_info = info_of(&device.find()?);
        info.put(sys::nvmlPciInfoExt_t {
            version: struct_version::<sys::nvmlPciInfoExt_t>(1),
            domain: base_info.domain,
            bus: base_info.bus,
            device: base_info.device,
            pciDeviceId: base_info.pciDeviceId,
            pciSubSystemId: base_info.pciSubSystemId,
            // Class code of a 3D controller.
            baseClass: 3,
            subClass: 2,
            busId: base_info.busId,
        })
    }

    fn [
        nvmlDeviceGetCurrPcieLinkGeneration
        nvmlDeviceGetMaxPcieLinkGeneration
        nvmlDeviceGetGpuMaxPcieLinkGeneration
    ](device: Device, generation: Out<c_uint>) {
        generation.put(device.gpu()?.card.pcie.generation.into())
    }

    fn [nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkWidth](
        device: Device,
        width: Out<c_uint>,
    ) {
        width.put(device.gpu()?.card.pcie.width.into())
    }

    /// Speed in Mbit/s per lane.
    fn nvmlDeviceGetPcieSpeed(device: Device, speed: Out<c_uint>) {
        speed.put(lane_mbps(device.gpu()?.card.pcie))
    }

    /// Speed as `NVML_PCIE_LINK_MAX_SPEED_*`. The values equal the PCIe generations.
    fn nvmlDeviceGetPcieLinkMaxSpeed(device: Device, speed: Out<c_uint>) {
        speed.put(device.gpu()?.card.pcie.generation.into())
    }

    /// Throughput in KB/s of an idle link.
    fn nvmlDeviceGetPcieThroughput(device: Device, counter: c_uint, value: Out<c_uint>) {
        device.gpu()?;
        if counter >= sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_COUNT {
            return Err(Status::INVALID_ARGUMENT);
        }
        value.put(0)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Device, value: Out<c_uint>) {
        value.put(device.gpu()?.live.pcie_replays)
    }

    fn nvmlDeviceGetBusType(device: Device, kind: Out<c_uint>) {
        device.gpu()?;
        kind.put(sys::NVML_BUS_TYPE_PCIE)
    }

    /// Arbitrary number, different for each GPU.
    fn nvmlDeviceGetIrqNum(device: Device, number: Out<c_uint>) {
        number.put(100 + device.gpu()?.number)
    }
}

// === impl PciInfoV2 ===

impl From<sys::nvmlPciInfo_t> for PciInfoV2 {
    fn from(info: sys::nvmlPciInfo_t) -> Self {
        let first = PciInfoV1 {
            bus_id: info.busIdLegacy,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            pci_device_id: info.pciDeviceId,
        };
        Self { first, pci_subsystem_id: info.pciSubSystemId, reserved: [0; 4] }
    }
}

/// PCI function in NVML's format.
pub(crate) fn info(address: PciAddress, pci: PciId, subsystem: PciId) -> sys::nvmlPciInfo_t {
    let PciAddress { domain, bus, device, .. } = address;
    sys::nvmlPciInfo_t {
        busIdLegacy: char_array(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain: domain.into(),
        bus: bus.into(),
        device: device.into(),
        pciDeviceId: number(pci),
        pciSubSystemId: number(subsystem),
        busId: char_array(&address.nvml_bus_id()),
    }
}

/// PCI function of a GPU in NVML's format.
pub(crate) fn info_of_gpu(gpu: &Gpu) -> sys::nvmlPciInfo_t {
    info(gpu.address(), gpu.card.pci, gpu.card.subsystem)
}

/// PCI function of a device. A MIG device has the function of its GPU.
fn info_of(snapshot: &DeviceSnapshot) -> sys::nvmlPciInfo_t {
    match snapshot {
        DeviceSnapshot::Gpu(gpu) => info_of_gpu(gpu),
        DeviceSnapshot::Mig(mig) => info_of_gpu(&mig.gpu),
    }
}

/// Id as a number: device in the high half, vendor in the low half.
fn number(id: PciId) -> c_uint {
    (c_uint::from(id.device) << 16) | c_uint::from(id.vendor)
}

fn lane_mbps(link: PcieLink) -> c_uint {
    match link.generation {
        0 | 1 => 2500,
        2 => 5000,
        3 => 8000,
        4 => 16_000,
        5 => 32_000,
        _ => 64_000,
    }
}
