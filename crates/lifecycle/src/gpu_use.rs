//! Use of an NVIDIA GPU by containers: their processes with memory and time, as the driver lists them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::device::DeviceId;
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    Host, blocking,
    container::{GpuProcess, is_alive},
    drm_clients::DrmError,
};
use windlass_nvml::{Gpu, NvmlError, ProcessUtilization};

/// Use of a GPU by containers.
#[derive(Clone, Debug, Default)]
pub struct GpuUse {
    /// Processes of containers.
    pub processes: Vec<GpuProcess>,
    /// Used memory in bytes that the driver counts for no process: managed memory (`cudaMallocManaged`), and about a
    /// hundred MiB of the driver. `None` if the driver does not report the memory of every process.
    pub uncounted_bytes: Option<u64>,
    /// Cache for the next measurement.
    pub cache: DriverCache,
}

/// Cache of the driver's last answers about a GPU, because some calls take long.
#[derive(Clone, Debug, Default)]
pub struct DriverCache {
    list: Option<ProcessList>,
    compute_samples: Option<ComputeSamples>,
}

/// Processes on a GPU, and its memory, at one time.
#[derive(Clone, Debug)]
struct ProcessList {
    read_at: Instant,
    /// Processes of containers, without their use of time.
    processes: Vec<GpuProcess>,
    /// Used memory of the GPU in bytes; `None` if the driver does not report it.
    used: Option<u64>,
    /// Used memory of all processes, those outside containers too; `None` if the driver does not report one's.
    counted: Option<u64>,
}

/// Samples of the compute time that a GPU's processes use.
#[derive(Clone, Debug)]
struct ComputeSamples {
    read_at: Instant,
    /// `None` if the driver does not measure compute time by process.
    samples: Option<Vec<ProcessUtilization>>,
}

/// Reason why the processes of a GPU are unknown.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// NVML is not initialised.
    #[error("NVML is not initialised: the driver is missing or failing")]
    NoDriver,
    /// The driver refused, or does not know the GPU.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The driver does not answer.
    #[error("the driver does not answer")]
    Unresponsive,
    /// The driver does not measure the memory of processes.
    #[error("the driver does not report how much memory a process uses")]
    MemoryUnsupported,
    /// The agent does not see the host's processes.
    #[error(
        "the host's processes are hidden: the agent's pod needs hostPID, and the host's /proc below its root"
    )]
    ProcessesHidden,
    /// The clients of the kernel's drivers are unknown.
    #[error(transparent)]
    Drm(#[from] DrmError),
}

/// Age of the oldest sample that counts as current use. The driver takes a sample every second, or more often.
const RECENT_WINDOW: Duration = Duration::from_secs(2);

/// Age at which the samples of compute time are read again. A read takes about 1 ms of CPU (H100, driver 580).
const COMPUTE_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Age at which the processes are listed again although the GPU's used memory is the same. A listing takes 0.3 ms of
/// CPU and two reads per process, a read of the used memory a tenth of that.
const LIST_INTERVAL: Duration = Duration::from_secs(5);

// === impl GpuUse ===

impl GpuUse {
    /// Measures the use of an NVIDIA GPU. `cache` is that of the previous measurement. Waits for the driver, which may
    /// never answer.
    ///
    /// # Errors
    ///
    /// Fails if driver or host hide processes. An empty list means that there are none.
    pub async fn measure(
        driver: &LiveDriver,
        gpu: &DeviceId,
        cache: DriverCache,
    ) -> Result<Self, ProcessError> {
        let (driver, gpu) = (driver.clone(), gpu.clone());
        blocking(move || Self::measure_blocking(&driver, &gpu, cache)).await
    }

    /// Blocking form of [`Self::measure`].
    fn measure_blocking(
        driver: &LiveDriver,
        gpu: &DeviceId,
        mut cache: DriverCache,
    ) -> Result<Self, ProcessError> {
        // NVML is shut down when its last clone is dropped: this clone keeps it until the driver has answered.
        let nvml = driver.nvml().ok_or(ProcessError::NoDriver)?;
        let gpu = nvml.gpu_with_uuid(gpu.as_str())?;
        let list = cache.list(driver.host(), &gpu)?;
        let uncounted_bytes =
            list.used.zip(list.counted).map(|(used, counted)| used.saturating_sub(counted));
        let compute_samples = cache.compute_samples(&gpu);
        let compute_percent_of = |pid: u32| {
            let samples = compute_samples.as_ref()?.iter().filter(|sample| sample.pid == pid);
            Some(samples.map(|sample| sample.sm_percent).max().unwrap_or(0))
        };
        let mut processes = list.processes;
        for process in &mut processes {
            process.compute_percent = compute_percent_of(process.pid);
        }
        Ok(Self { processes, uncounted_bytes, cache })
    }
}

// === impl DriverCache ===

impl DriverCache {
    /// The cache without the list of processes, so that the next measurement lists them again.
    #[must_use]
    pub fn without_list(self) -> Self {
        Self { list: None, ..self }
    }

    /// The processes, listed again if the GPU's used memory has changed, or after [`LIST_INTERVAL`].
    fn list(&mut self, host: &Host, gpu: &Gpu) -> Result<ProcessList, ProcessError> {
        let used = gpu.memory_used().ok();
        let is_current = |cached: &&ProcessList| {
            used.is_some() && cached.used == used && cached.read_at.elapsed() < LIST_INTERVAL
        };
        if let Some(cached) = self.list.as_ref().filter(is_current) {
            return Ok(cached.clone());
        }
        let newest = ProcessList::read(host, gpu, used)?;
        self.list = Some(newest.clone());
        Ok(newest)
    }

    /// Samples of compute time. `None` for old GPUs and those in MIG mode, whose memory is measured all the same.
    fn compute_samples(&mut self, gpu: &Gpu) -> Option<Vec<ProcessUtilization>> {
        let is_current =
            |cached: &&ComputeSamples| cached.read_at.elapsed() < COMPUTE_SAMPLE_INTERVAL;
        if let Some(cached) = self.compute_samples.as_ref().filter(is_current) {
            return cached.samples.clone();
        }
        let samples = gpu.process_utilization(recent_since_us()).ok();
        self.compute_samples =
            Some(ComputeSamples { read_at: Instant::now(), samples: samples.clone() });
        samples
    }
}

// === impl ProcessList ===

impl ProcessList {
    fn read(host: &Host, gpu: &Gpu, used: Option<u64>) -> Result<Self, ProcessError> {
        if !host.shows_own_process() {
            return Err(ProcessError::ProcessesHidden);
        }
        let read_at = Instant::now();
        let listed_processes = gpu.processes()?;
        let counted = listed_processes.iter().map(|process| process.memory_bytes).sum();
        let mut processes = Vec::new();
        for process in listed_processes {
            let container = match host.container_of(process.pid) {
                Ok(container) => container,
                // A process that has ended meanwhile holds no memory.
                Err(_) if !is_alive(process.pid) => continue,
                Err(_) => return Err(ProcessError::ProcessesHidden),
            };
            // A process outside containers is skipped before its size is needed: graphics programs may have none.
            let Some(container) = container else { continue };
            let memory_bytes = process.memory_bytes.ok_or(ProcessError::MemoryUnsupported)?;
            let pid = process.pid;
            processes.push(GpuProcess { pid, container, memory_bytes, compute_percent: None });
        }
        Ok(Self { read_at, processes, used, counted })
    }
}

/// Start of the recent period, in microseconds since 1970, the driver's unit of time.
fn recent_since_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.saturating_sub(RECENT_WINDOW).as_micros()).unwrap_or(u64::MAX)
}
