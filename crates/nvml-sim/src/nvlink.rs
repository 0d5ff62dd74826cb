//! NVLink: ports, remote ends of links, and error counters.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    card::NvLinkPorts,
    profile::Switch,
    state::{Gpu, LinkEnd},
};

use crate::{
    abi::{Out, char_array},
    handle::{Device, GpuSnapshot},
    pci::{self, PciInfoV2},
    status::{NvmlResult, Status},
};

/// Bus id of a switch hidden from the host, in NVML's form. NCCL compares with the lower-case form
/// (`src/graph/xml.cc`).
const HIDDEN_SWITCH: &str = "FFFFFFF:FFFF:FF";

export! {
    fn nvmlDeviceGetNvLinkState(
        device: Device,
        link: c_uint,
        active: Out<sys::nvmlEnableState_t>,
    ) {
        let gpu = device.gpu()?;
        active.put(link_end(&gpu, link)?.is_some().into())
    }

    fn nvmlDeviceGetNvLinkVersion(device: Device, link: c_uint, version: Out<c_uint>) {
        let gpu = device.gpu()?;
        link_end(&gpu, link)?;
        version.put(match ports(&gpu)?.generation {
            1 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0,
            2 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0,
            3 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0,
            4 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0,
            _ => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0,
        })
    }

    fn nvmlDeviceGetNvLinkCapability(
        device: Device,
        link: c_uint,
        capability: c_uint,
        result: Out<c_uint>,
    ) {
        let gpu = device.gpu()?;
        let active = link_end(&gpu, link)?.is_some();
        result.put(match capability {
            sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED
            | sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS
            | sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID => active.into(),
            known if known < sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_COUNT => 0,
            _ => return Err(Status::INVALID_ARGUMENT),
        })
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: Device,
        link: c_uint,
        info: Out<sys::nvmlPciInfo_t>,
    ) {
        let gpu = device.gpu()?;
        info.put(remote_pci_info(&gpu, active_link_end(&gpu, link)?)?)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(device: Device, link: c_uint, info: Out<PciInfoV2>) {
        let gpu = device.gpu()?;
        info.put(remote_pci_info(&gpu, active_link_end(&gpu, link)?)?.into())
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        device: Device,
        link: c_uint,
        kind: Out<sys::nvmlIntNvLinkDeviceType_t>,
    ) {
        let gpu = device.gpu()?;
        kind.put(match active_link_end(&gpu, link)? {
            LinkEnd::Gpu(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            LinkEnd::Switch(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        })
    }

    /// The model counts the errors of all links together, so link 0 reports all errors.
    fn nvmlDeviceGetNvLinkErrorCounter(
        device: Device,
        link: c_uint,
        counter: c_uint,
        value: Out<c_ulonglong>,
    ) {
        let gpu = device.gpu()?;
        active_link_end(&gpu, link)?;
        let counts = gpu.live.nvlink;
        let count = match counter {
            sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY => counts.replays,
            sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY => counts.recoveries,
            sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT => counts.crc_flit_errors,
            sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA => counts.crc_data_errors,
            known if known < sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_COUNT => 0,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        value.put(if link == 0 { count } else { 0 })
    }

    fn nvmlDeviceResetNvLinkErrorCounters(device: Device, link: c_uint) {
        let gpu = device.gpu()?;
        active_link_end(&gpu, link).map(drop)
    }
}

/// True if NVLink connects two GPUs: directly, or through switches. All switches of a machine are connected.
pub(crate) fn are_linked(one: &Gpu, other: &Gpu) -> bool {
    let is_switch_link = |link: &Option<LinkEnd>| matches!(link, Some(LinkEnd::Switch(_)));
    let peer_link = Some(LinkEnd::Gpu(other.number));
    let over_switches =
        one.links.iter().any(is_switch_link) && other.links.iter().any(is_switch_link);
    one.links.contains(&peer_link) || (one.number != other.number && over_switches)
}

/// NVLink ports of the card. A card without ports is "not supported".
pub(crate) fn ports(gpu: &Gpu) -> NvmlResult<NvLinkPorts> {
    gpu.card.nvlink.ok_or(Status::NOT_SUPPORTED)
}

/// Remote end of a link; `None` for a link that is down or unplugged, and while MIG is on.
fn link_end(gpu: &Gpu, link: c_uint) -> NvmlResult<Option<LinkEnd>> {
    ports(gpu)?;
    gpu.links.get(link as usize).ok_or(Status::INVALID_ARGUMENT)?;
    Ok(gpu.link(link as usize).filter(|_| gpu.mig.is_none()))
}

fn active_link_end(gpu: &Gpu, link: c_uint) -> NvmlResult<LinkEnd> {
    link_end(gpu, link)?.ok_or(Status::NOT_SUPPORTED)
}

fn remote_pci_info(gpu: &GpuSnapshot, end: LinkEnd) -> NvmlResult<sys::nvmlPciInfo_t> {
    let model = gpu.machine();
    match end {
        LinkEnd::Gpu(number) => model.gpu(number).map(pci::info_of_gpu).ok_or(Status::GPU_IS_LOST),
        LinkEnd::Switch(index) => model.switches.get(index).map(switch_info).ok_or(Status::UNKNOWN),
    }
}

fn switch_info(switch: &Switch) -> sys::nvmlPciInfo_t {
    match &switch.path {
        Some(path) => pci::info(path.address(), switch.pci, switch.pci),
        None => sys::nvmlPciInfo_t {
            busIdLegacy: char_array(HIDDEN_SWITCH),
            domain: c_uint::MAX,
            bus: c_uint::MAX,
            device: c_uint::MAX,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: char_array(HIDDEN_SWITCH),
        },
    }
}
