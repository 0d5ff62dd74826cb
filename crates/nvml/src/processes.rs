//! Processes on a GPU, with their memory and their use of the multiprocessors.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{UnsupportedAsNone as _, at_most},
    gpu::Gpu,
    library::call,
};

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id in the caller's PID namespace.
    pub pid: u32,
    /// Memory of the process in bytes, including its contexts; `None` if the driver does not report it.
    pub memory_bytes: Option<u64>,
}

/// Use of a GPU's multiprocessors by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUtilization {
    /// Process id in the caller's PID namespace.
    pub pid: u32,
    /// Time in which its kernels ran during the driver's last sample period, in percent.
    pub sm_percent: u32,
    /// Time of the sample, in microseconds since 1970.
    pub timestamp_us: u64,
}

/// Entries of the first buffer: at least as many as a GPU usually has processes.
const INITIAL_CAPACITY: u32 = 32;

/// Upper bound of processes: more than the contexts that a GPU can have.
const MAX_PROCESSES: u32 = 1 << 16;

/// `NVML_VALUE_NOT_AVAILABLE` of `nvml.h`, as unsigned.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Defines a method that reads one of the driver's lists of processes, which differ only in the function.
macro_rules! process_list {
    ($(#[$doc:meta])* $name:ident, $call:ident) => {
        $(#[$doc])*
        fn $name(&self) -> Result<Vec<GpuProcess>> {
            let mut capacity = INITIAL_CAPACITY;
            loop {
                let (mut count, mut infos) = (capacity, vec![NO_PROCESS; capacity as usize]);
                let result =
                    call!(self.table, $call, self.handle.0, &raw mut count, infos.as_mut_ptr());
                match result {
                    // The list is longer than the buffer. More processes may start before the next call.
                    Err(error) if error.is_insufficient_size() && count > capacity => {
                        capacity = at_most(stringify!($call), count, MAX_PROCESSES)? + INITIAL_CAPACITY;
                    }
                    result => {
                        infos.truncate(count as usize);
                        return result.map(|()| infos.iter().map(GpuProcess::from_info).collect());
                    }
                }
            }
        }
    };
}

const NO_PROCESS: sys::nvmlProcessInfo_t =
    sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };

const NO_SAMPLE: sys::nvmlProcessUtilizationSample_t = sys::nvmlProcessUtilizationSample_t {
    pid: 0,
    timeStamp: 0,
    smUtil: 0,
    memUtil: 0,
    encUtil: 0,
    decUtil: 0,
};

// === impl Gpu ===

impl Gpu {
    /// Compute processes on a GPU or MIG device, by process id. Unsupported before driver 510.
    pub fn compute_pids(&self) -> Result<Vec<u32>> {
        Ok(self.compute_processes()?.iter().map(|process| process.pid).collect())
    }

    /// All processes on a GPU or MIG device: compute, clients of MPS, graphics. Unsupported before driver 510.
    pub fn processes(&self) -> Result<Vec<GpuProcess>> {
        let compute = self.compute_processes()?;
        let mps = self.mps_processes().unsupported_as_none()?.unwrap_or_default();
        let graphics = self.graphics_processes().unsupported_as_none()?.unwrap_or_default();
        // A process on two lists has the same memory on both.
        let mut memory_by_pid = BTreeMap::new();
        for GpuProcess { pid, memory_bytes } in compute.into_iter().chain(mps).chain(graphics) {
            let memory: &mut Option<u64> = memory_by_pid.entry(pid).or_default();
            *memory = (*memory).max(memory_bytes);
        }
        Ok(memory_by_pid
            .into_iter()
            .map(|(pid, memory_bytes)| GpuProcess { pid, memory_bytes })
            .collect())
    }

    /// The latest sample of each process that used a GPU since `since_us`, in microseconds since 1970; 0 means the
    /// driver's oldest sample. Unsupported before Maxwell, and in MIG mode.
    pub fn process_utilization(&self, since_us: u64) -> Result<Vec<ProcessUtilization>> {
        let mut capacity = INITIAL_CAPACITY;
        loop {
            let (mut count, mut samples) = (capacity, vec![NO_SAMPLE; capacity as usize]);
            let result = call!(
                self.table,
                nvmlDeviceGetProcessUtilization,
                self.handle.0,
                samples.as_mut_ptr(),
                &raw mut count,
                since_us
            );
            match result {
                // No process used the GPU in this time.
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                Err(error) if error.is_insufficient_size() && count > capacity => {
                    capacity = at_most("nvmlDeviceGetProcessUtilization", count, MAX_PROCESSES)?
                        + INITIAL_CAPACITY;
                }
                result => {
                    samples.truncate(count as usize);
                    return result.map(|()| {
                        samples.iter().filter_map(ProcessUtilization::from_sample).collect()
                    });
                }
            }
        }
    }

    process_list!(compute_processes, nvmlDeviceGetComputeRunningProcesses_v3);
    process_list!(
        /// Clients of an MPS daemon.
        mps_processes,
        nvmlDeviceGetMPSComputeRunningProcesses_v3
    );
    process_list!(graphics_processes, nvmlDeviceGetGraphicsRunningProcesses_v3);
}

// === impl GpuProcess ===

impl GpuProcess {
    fn from_info(info: &sys::nvmlProcessInfo_t) -> Self {
        let memory_bytes = Some(info.usedGpuMemory).filter(|bytes| *bytes != NOT_AVAILABLE);
        Self { pid: info.pid, memory_bytes }
    }
}

// === impl ProcessUtilization ===

impl ProcessUtilization {
    /// Converts a sample; `None` if its value is not a percentage.
    fn from_sample(sample: &sys::nvmlProcessUtilizationSample_t) -> Option<Self> {
        let sm_percent = Some(sample.smUtil).filter(|percent| *percent <= 100)?;
        Some(Self { pid: sample.pid, sm_percent, timestamp_us: sample.timeStamp })
    }
}
