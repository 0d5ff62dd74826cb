//! Processes on a GPU or in a MIG device.

use std::{
    ffi::{c_uint, c_ulonglong},
    time::{SystemTime, UNIX_EPOCH},
};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::state::Process;

use crate::{
    abi::{Out, OutArray},
    handle::{Device, DeviceSnapshot},
    status::{NvmlResult, Status},
};

/// Instance id of a process that uses the whole GPU.
const WHOLE_GPU: c_uint = 0xffff_ffff;

export! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: Device,
        count: Out<c_uint>,
        infos: OutArray<sys::nvmlProcessInfo_v1_t>,
    ) {
        let to_info_v1 = |process: &Process| sys::nvmlProcessInfo_v1_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib.saturating_mul(1024 * 1024),
        };
        let processes: Vec<_> = compute_processes(device)?.iter().map(to_info_v1).collect();
        infos.put_counted(count, &processes)
    }

    fn [nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3](
        device: Device,
        count: Out<c_uint>,
        infos: OutArray<sys::nvmlProcessInfo_v2_t>,
    ) {
        let to_info_v2 = |process: &Process| sys::nvmlProcessInfo_v2_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib.saturating_mul(1024 * 1024),
            gpuInstanceId: process.gpu_instance.unwrap_or(WHOLE_GPU),
            // Each GPU instance contains one compute instance, with id 0.
            computeInstanceId: process.gpu_instance.map_or(WHOLE_GPU, |_| 0),
        };
        let processes: Vec<_> = compute_processes(device)?.iter().map(to_info_v2).collect();
        infos.put_counted(count, &processes)
    }

    /// Returns one current sample for each process with a utilization. A MIG device is "not supported".
    fn nvmlDeviceGetProcessUtilization(
        device: Device,
        samples: OutArray<sys::nvmlProcessUtilizationSample_t>,
        count: Out<c_uint>,
        since: c_ulonglong,
    ) {
        let gpu = device.gpu()?;
        let now = since_epoch_us();
        let busy_processes = gpu.live.processes.iter().filter(|process| process.sm_percent > 0);
        let sample = |process: &Process| sys::nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: now,
            smUtil: process.sm_percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let new_samples: Vec<_> = busy_processes.filter(|_| now > since).map(sample).collect();
        if new_samples.is_empty() {
            return Err(Status::NOT_FOUND);
        }
        samples.put_counted(count, &new_samples)
    }

    /// Simulated processes use neither graphics nor MPS, so these lists are empty.
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

/// Current time, in microseconds since the Unix epoch.
fn since_epoch_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn compute_processes(device: Device) -> NvmlResult<Vec<Process>> {
    Ok(compute_processes_of(&device.find()?))
}

/// Compute processes on a GPU or in a MIG device.
pub(crate) fn compute_processes_of(snapshot: &DeviceSnapshot) -> Vec<Process> {
    match snapshot {
        DeviceSnapshot::Gpu(gpu) => gpu.live.processes.clone(),
        DeviceSnapshot::Mig(mig) => {
            let is_in_instance =
                |process: &&Process| process.gpu_instance == Some(mig.gpu_instance);
            mig.gpu.live.processes.iter().filter(is_in_instance).cloned().collect()
        }
    }
}
