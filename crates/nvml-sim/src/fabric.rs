//! GPU fabric: state of a GPU's registration in its NVLink domain by the fabric manager.

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::profile::{ClusterUuid, Fabric};

use crate::{
    abi::{Out, OutVersioned, struct_version, versioned},
    handle::{Device, GpuSnapshot},
    status::{Code, NvmlResult, Status},
};

versioned!(sys::nvmlGpuFabricInfo_v2_t, sys::nvmlGpuFabricInfo_v3_t);

/// Fabric within one machine: its cluster has no UUID.
const NO_CLUSTER: Fabric = Fabric { cluster: ClusterUuid([0; 16]), clique: 0 };

/// Registration states of simulated GPUs, in the ABI's type, which is narrower than the constants of the bindings.
const COMPLETED: sys::nvmlGpuFabricState_t = 3;
const NOT_ON_A_FABRIC: sys::nvmlGpuFabricState_t = 0;
const _: () = assert!(COMPLETED as u32 == sys::NVML_GPU_FABRIC_STATE_COMPLETED);
const _: () = assert!(NOT_ON_A_FABRIC as u32 == sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);

/// Fields common to all versions of the structure.
struct FabricRegistration {
    fabric: Fabric,
    state: sys::nvmlGpuFabricState_t,
    status: Code,
    /// Health as bits of `NVML_GPU_FABRIC_HEALTH_MASK_*`.
    health_mask: u32,
    health_summary: u32,
}

export! {
    fn nvmlDeviceGetGpuFabricInfo(device: Device, info: Out<sys::nvmlGpuFabricInfo_t>) {
        let registration = FabricRegistration::of(&device.gpu()?)?;
        info.put(sys::nvmlGpuFabricInfo_t {
            clusterUuid: registration.fabric.cluster.0,
            status: registration.status,
            cliqueId: registration.fabric.clique,
            state: registration.state,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: OutVersioned) {
        let registration = FabricRegistration::of(&device.gpu()?)?;
        if info.version()? == struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2) {
            info.put(registration.version_2())
        } else {
            info.put(registration.version_3())
        }
    }
}

// === impl FabricRegistration ===

impl FabricRegistration {
    /// Registration of a GPU. On a fabric it is completed and never in progress; a fabric fault completes it with an
    /// error.
    fn of(gpu: &GpuSnapshot) -> NvmlResult<Self> {
        if !gpu.card.architecture.has_fabric() {
            return Err(Status::NOT_SUPPORTED);
        }
        let state = if gpu.is_on_fabric() { COMPLETED } else { NOT_ON_A_FABRIC };
        let fabric = gpu.machine().fabric.clone().filter(|_| state == COMPLETED);
        let unhealthy_route = sys::NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE
            << sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY;
        let (status, health_mask, health_summary) = if gpu.faults.fabric {
            (Status::UNKNOWN.0, unhealthy_route, sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY)
        } else {
            let success = sys::nvmlReturn_enum_NVML_SUCCESS;
            (success, 0, sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)
        };
        Ok(Self {
            fabric: fabric.unwrap_or(NO_CLUSTER),
            state,
            status,
            health_mask,
            health_summary,
        })
    }

    fn version_2(&self) -> sys::nvmlGpuFabricInfo_v2_t {
        sys::nvmlGpuFabricInfo_v2_t {
            version: struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2),
            clusterUuid: self.fabric.cluster.0,
            status: self.status,
            cliqueId: self.fabric.clique,
            state: self.state,
            healthMask: self.health_mask,
        }
    }

    fn version_3(&self) -> sys::nvmlGpuFabricInfo_v3_t {
        sys::nvmlGpuFabricInfo_v3_t {
            version: struct_version::<sys::nvmlGpuFabricInfo_v3_t>(3),
            clusterUuid: self.fabric.cluster.0,
            status: self.status,
            cliqueId: self.fabric.clique,
            state: self.state,
            healthMask: self.health_mask,
            #[expect(clippy::cast_possible_truncation, reason = "the constants are 1 and 2")]
            healthSummary: self.health_summary as u8,
        }
    }
}
