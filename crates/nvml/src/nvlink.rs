//! NVLinks of a GPU: state and remote ends.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    NvmlError, Result,
    gpu::Gpu,
    library::{get, text_in},
};

/// Remote end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Another GPU, by PCI address.
    Gpu(String),
    /// An `NVSwitch`, by PCI address if the driver reports it.
    Switch(Option<String>),
    /// Another device, such as a CPU.
    Other,
}

/// Maximum number of links of a GPU (`NVML_NVLINK_MAX_LINKS` in `nvml.h`).
const MAX_LINKS: u32 = sys::NVML_NVLINK_MAX_LINKS;

impl Gpu {
    /// Indexes of active links; empty without NVLink. An unreadable link counts as down, unless the GPU is
    /// lost.
    pub fn nvlinks_up(&self) -> Result<Vec<u32>> {
        let mut up_links = Vec::new();
        for link in 0..MAX_LINKS {
            match self.link_is_up(link) {
                Ok(true) => up_links.push(link),
                // The GPU has no link with this index, nor with a higher one.
                Err(error) if error.is_unsupported() || error.is_absent() => break,
                Err(error) if error.is_lost() => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(up_links)
    }

    fn link_is_up(&self, link: u32) -> Result<bool> {
        let state: u32 = get!(self.table, nvmlDeviceGetNvLinkState, self.handle.0, link)?;
        Ok(state == sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    /// NVLink generation of an active link, which is the same for all links of a GPU: 1 for Pascal to 5 for Blackwell.
    /// `None` for an unknown generation.
    pub fn nvlink_generation(&self, link: u32) -> Option<u32> {
        let version: u32 =
            get!(self.table, nvmlDeviceGetNvLinkVersion, self.handle.0, link).ok()?;
        generation(version)
    }

    /// Remote end of an active link.
    pub fn nvlink_remote(&self, link: u32) -> Remote {
        let kind: Result<u32, NvmlError> =
            get!(self.table, nvmlDeviceGetNvLinkRemoteDeviceType, self.handle.0, link);
        let address = self.remote_address(link).ok().filter(|address| !address.is_empty());
        match (kind, address) {
            (Ok(sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH), address) => {
                Remote::Switch(address)
            }
            (Ok(sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU), Some(address)) => {
                Remote::Gpu(address)
            }
            _ => Remote::Other,
        }
    }

    fn remote_address(&self, link: u32) -> Result<String> {
        let info = get!(self.table, nvmlDeviceGetNvLinkRemotePciInfo_v2, self.handle.0, link)?;
        Ok(text_in(&info.busId))
    }
}

/// Generation of an NVLink version. Some generations have two versions.
fn generation(version: sys::nvmlNvlinkVersion_enum) -> Option<u32> {
    match version {
        sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0 => Some(1),
        sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0
        | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_2 => Some(2),
        sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0
        | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_1 => Some(3),
        sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0 => Some(4),
        sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0 => Some(5),
        _ => None,
    }
}
