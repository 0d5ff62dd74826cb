//! NVLink fabric of a GPU: registration and health.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    NvmlError, Result,
    error::UnsupportedAsNone as _,
    gpu::{Gpu, versioned},
    library::{Zeros, get},
};

/// Fabric registration of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Progress of the registration.
    pub state: FabricState,
    /// Result of the registration; meaningful once it is completed.
    pub outcome: Result<()>,
    /// Cluster UUID; `None` within one machine, where the driver reports zeros.
    pub cluster: Option<String>,
    /// Clique id: GPUs of a cluster with the same clique can access each other's memory.
    pub clique: u32,
    /// Health, as the fabric manager reports it.
    pub health: FabricHealth,
}

/// Progress of a registration (`nvmlGpuFabricState_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricState {
    /// Not started: the fabric manager is not running yet.
    NotStarted,
    /// In progress.
    InProgress,
    /// Completed, with or without success.
    Completed,
}

/// Health of a GPU's fabric connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricHealth {
    /// No problem is reported.
    Good,
    /// Reduced bandwidth.
    Degraded,
    /// Broken routes to peers.
    Bad,
}

/// Fields that all versions of the structure have.
struct Registration {
    state: sys::nvmlGpuFabricState_t,
    status: sys::nvmlReturn_t,
    cluster: [u8; 16],
    clique: u32,
    health: FabricHealth,
}

/// Name of the function in errors, for all versions.
const CALL: &str = "nvmlDeviceGetGpuFabricInfoV";

impl Gpu {
    /// Fabric registration; `None` for GPUs without fabric support, and for older drivers.
    pub fn fabric(&self) -> Result<Option<Fabric>> {
        let newest = versioned::<sys::nvmlGpuFabricInfo_v3_t>(3);
        let since_545 = versioned::<sys::nvmlGpuFabricInfo_v2_t>(2);
        for version in [newest, since_545] {
            if let Some(registration) = self.fabric_of_version(version).unsupported_as_none()? {
                return Ok(Fabric::from_registration(&registration));
            }
        }
        Ok(self
            .fabric_before_545()
            .unsupported_as_none()?
            .as_ref()
            .and_then(Fabric::from_registration))
    }

    /// Reads version 2 or 3 of the structure. Version 2 is a prefix of version 3 without summary, and the driver writes
    /// only the fields of the requested version.
    fn fabric_of_version(&self, version: u32) -> Result<Registration> {
        let request = sys::nvmlGpuFabricInfo_v3_t { version, ..Zeros::zeros() };
        let info = get!(self.table, nvmlDeviceGetGpuFabricInfoV, self.handle.0; request)?;
        let summary = FabricHealth::from_summary(info.healthSummary.into());
        Ok(Registration {
            state: info.state,
            status: info.status,
            cluster: info.clusterUuid,
            clique: info.cliqueId,
            health: summary.unwrap_or_else(|| FabricHealth::from_mask(info.healthMask)),
        })
    }

    fn fabric_before_545(&self) -> Result<Registration> {
        let info = get!(self.table, nvmlDeviceGetGpuFabricInfo, self.handle.0)?;
        Ok(Registration {
            state: info.state,
            status: info.status,
            cluster: info.clusterUuid,
            clique: info.cliqueId,
            health: FabricHealth::Good,
        })
    }
}

// === impl Fabric ===

impl Fabric {
    fn from_registration(registration: &Registration) -> Option<Self> {
        let state = match u32::from(registration.state) {
            sys::NVML_GPU_FABRIC_STATE_NOT_STARTED => FabricState::NotStarted,
            sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS => FabricState::InProgress,
            sys::NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Completed,
            _ => return None,
        };
        Some(Self {
            state,
            outcome: NvmlError::check(CALL, registration.status),
            cluster: cluster_uuid(registration.cluster),
            clique: registration.clique,
            health: registration.health,
        })
    }

    /// True if the GPU has joined the fabric.
    pub fn is_joined(&self) -> bool {
        self.state == FabricState::Completed && self.outcome.is_ok()
    }
}

// === impl FabricHealth ===

impl FabricHealth {
    /// Health from `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`; `None` without a summary.
    fn from_summary(summary: u32) -> Option<Self> {
        match summary {
            sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY => Some(Self::Good),
            sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY => Some(Self::Degraded),
            sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY => Some(Self::Bad),
            _ => None,
        }
    }

    /// Health from `NVML_GPU_FABRIC_HEALTH_MASK_*`. Each "width" in nvml.h is a bit mask.
    fn from_mask(mask: u32) -> Self {
        let bits = |shift: u32, width: u32| (mask >> shift) & width;
        let route = bits(
            sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
            sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
        );
        let bandwidth = bits(
            sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
            sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
        );
        if route == sys::NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE {
            Self::Bad
        } else if bandwidth == sys::NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE {
            Self::Degraded
        } else {
            Self::Good
        }
    }
}

/// Cluster UUID as text; `None` for zeros.
fn cluster_uuid(bytes: [u8; 16]) -> Option<String> {
    if bytes == [0; 16] {
        return None;
    }
    let dashes = |(index, byte): (usize, &u8)| {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        format!("{dash}{byte:02x}")
    };
    Some(bytes.iter().enumerate().map(dashes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_contain_the_size_of_the_structure() {
        // nvmlGpuFabricInfo_v2 and _v3 in NVIDIA's own bindings.
        assert_eq!(versioned::<sys::nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(versioned::<sys::nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
    }

    #[test]
    fn version_2_is_a_prefix_of_version_3() {
        use std::mem::offset_of;
        use sys::{nvmlGpuFabricInfo_v2_t as V2, nvmlGpuFabricInfo_v3_t as V3};
        assert_eq!(offset_of!(V2, clusterUuid), offset_of!(V3, clusterUuid));
        assert_eq!(offset_of!(V2, status), offset_of!(V3, status));
        assert_eq!(offset_of!(V2, cliqueId), offset_of!(V3, cliqueId));
        assert_eq!(offset_of!(V2, state), offset_of!(V3, state));
        assert_eq!(offset_of!(V2, healthMask), offset_of!(V3, healthMask));
    }

    #[test]
    fn a_zero_cluster_is_none_and_others_are_uuids() {
        assert_eq!(cluster_uuid([0; 16]), None);
        let bytes: [u8; 16] = std::array::from_fn(|index| u8::try_from(index).expect("small"));
        let expected = "00010203-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!(cluster_uuid(bytes).as_deref(), Some(expected));
    }

    #[test]
    fn a_broken_route_is_bad_and_less_bandwidth_is_degraded() {
        for (mask, expected) in [
            (0b10_00_00_10, FabricHealth::Good),
            (0b00_00_00_01, FabricHealth::Degraded),
            (0b00_01_00_01, FabricHealth::Bad),
        ] {
            assert_eq!(FabricHealth::from_mask(mask), expected, "{mask:#b}");
        }
    }
}
