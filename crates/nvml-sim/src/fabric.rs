//! The GPU fabric: whether the fabric manager has put a GPU into its NVLink domain.

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    Architecture,
    state::{Gpu, LinkEnd},
};

use crate::{
    abi::{Out, OutVersioned, struct_version, versioned},
    handle::Device,
    status::{Answer, Status},
};

versioned!(sys::nvmlGpuFabricInfo_v2_t, sys::nvmlGpuFabricInfo_v3_t);

/// Within one machine there is one cluster, and it has no UUID.
const NO_CLUSTER: [u8; 16] = [0; 16];

/// The two states that our GPUs are in; the type in the ABI is narrower than the constants.
const COMPLETED: sys::nvmlGpuFabricState_t = 3;
const NOT_ON_A_FABRIC: sys::nvmlGpuFabricState_t = 0;
const _: () = assert!(COMPLETED as u32 == sys::NVML_GPU_FABRIC_STATE_COMPLETED);
const _: () = assert!(NOT_ON_A_FABRIC as u32 == sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);

export! {
    fn nvmlDeviceGetGpuFabricInfo(device: Device, info: Out<sys::nvmlGpuFabricInfo_t>) {
        let gpu = device.gpu()?;
        let state = state_of(&gpu)?;
        info.put(sys::nvmlGpuFabricInfo_t {
            clusterUuid: NO_CLUSTER,
            status: sys::nvmlReturn_enum_NVML_SUCCESS,
            cliqueId: 0,
            state,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: OutVersioned) {
        let gpu = device.gpu()?;
        let state = state_of(&gpu)?;
        if info.version()? == struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2) {
            info.put(version_2(state))
        } else {
            info.put(version_3(state))
        }
    }
}

/// Hopper and later are put into the fabric by the fabric manager; it is done when a client looks.
fn state_of(gpu: &Gpu) -> Answer<sys::nvmlGpuFabricState_t> {
    let on_switch = gpu.links.iter().any(|link| matches!(link, Some(LinkEnd::Switch(_))));
    match gpu.card.architecture {
        Architecture::Hopper | Architecture::Blackwell if on_switch => Ok(COMPLETED),
        Architecture::Hopper | Architecture::Blackwell => Ok(NOT_ON_A_FABRIC),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn version_2(state: sys::nvmlGpuFabricState_t) -> sys::nvmlGpuFabricInfo_v2_t {
    sys::nvmlGpuFabricInfo_v2_t {
        version: struct_version::<sys::nvmlGpuFabricInfo_v2_t>(2),
        clusterUuid: NO_CLUSTER,
        status: sys::nvmlReturn_enum_NVML_SUCCESS,
        cliqueId: 0,
        state,
        healthMask: 0,
    }
}

fn version_3(state: sys::nvmlGpuFabricState_t) -> sys::nvmlGpuFabricInfo_v3_t {
    sys::nvmlGpuFabricInfo_v3_t {
        version: struct_version::<sys::nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: NO_CLUSTER,
        status: sys::nvmlReturn_enum_NVML_SUCCESS,
        cliqueId: 0,
        state,
        healthMask: 0,
        #[expect(clippy::cast_possible_truncation, reason = "the constant is 1")]
        healthSummary: sys::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY as u8,
    }
}
