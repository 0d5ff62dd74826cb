//! Processes on a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::state::Process;

use crate::{
    abi::{Out, OutArray},
    handle::{Device, Found},
    status::Answer,
};

/// Placeholder for no instance.
const WHOLE_GPU: c_uint = 0xffff_ffff;

export! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: Device,
        count: Out<c_uint>,
        infos: OutArray<sys::nvmlProcessInfo_v1_t>,
    ) {
        let brief = |process: &Process| sys::nvmlProcessInfo_v1_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib.saturating_mul(1024 * 1024),
        };
        let all: Vec<_> = computing(device)?.iter().map(brief).collect();
        infos.put_counted(count, &all)
    }

    fn [nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3](
        device: Device,
        count: Out<c_uint>,
        infos: OutArray<sys::nvmlProcessInfo_v2_t>,
    ) {
        let full = |process: &Process| sys::nvmlProcessInfo_v2_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib.saturating_mul(1024 * 1024),
            gpuInstanceId: process.gpu_instance.unwrap_or(WHOLE_GPU),
            // Each GPU instance contains one compute instance, with id 0.
            computeInstanceId: process.gpu_instance.map_or(WHOLE_GPU, |_| 0),
        };
        let all: Vec<_> = computing(device)?.iter().map(full).collect();
        infos.put_counted(count, &all)
    }

    /// Simulated processes neither draw graphics nor share a GPU over MPS.
    fn [
        nvmlDeviceGetGraphicsRunningProcesses
        nvmlDeviceGetGraphicsRunningProcesses_v2
        nvmlDeviceGetGraphicsRunningProcesses_v3
        nvmlDeviceGetMPSComputeRunningProcesses
        nvmlDeviceGetMPSComputeRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses_v3
    ](device: Device, count: Out<c_uint>, infos: OutArray<sys::nvmlProcessInfo_v2_t>) {
        device.find()?;
        infos.put_counted(count, &[])
    }
}

fn computing(device: Device) -> Answer<Vec<Process>> {
    Ok(computing_on(&device.find()?))
}

/// Compute processes on a GPU or in a MIG device.
pub(crate) fn computing_on(found: &Found) -> Vec<Process> {
    match found {
        Found::Gpu(gpu) => gpu.live.processes.clone(),
        Found::Mig(mig) => {
            let here = |process: &&Process| process.gpu_instance == Some(mig.gpu_instance);
            mig.gpu.live.processes.iter().filter(here).cloned().collect()
        }
    }
}
