//! Use of an NVIDIA GPU by containers: their processes with memory and time, as the driver lists them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::device::DeviceId;
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    blocking,
    container::{GpuProcess, is_alive},
    drm_clients::DrmError,
};
use windlass_nvml::{Gpu, GpuProcess as ListedProcess, NvmlError, ProcessUtilization};

/// Use of a GPU by containers.
#[derive(Clone, Debug, Default)]
pub struct GpuUse {
    /// Processes of containers.
    pub processes: Vec<GpuProcess>,
    /// Memory in use that the driver counts for no process, in bytes, where it tells all sizes: managed memory
    /// (`cudaMallocManaged`), and about a hundred MiB of its own.
    pub uncounted_bytes: Option<u64>,
    /// For the next measurement.
    pub answers: DriverAnswers,
}

/// The driver's last answers about a GPU. They are used again for a while, because some take the driver long.
#[derive(Clone, Debug, Default)]
pub struct DriverAnswers {
    list: Option<ProcessList>,
    use_of_time: Option<UseOfTime>,
}

#[derive(Clone, Debug)]
struct ProcessList {
    read: Instant,
    processes: Vec<ListedProcess>,
    /// Memory of the GPU in use at that time, in bytes; `None` where the driver does not tell.
    used: Option<u64>,
}

/// Use of a GPU's time by its processes.
#[derive(Clone, Debug)]
struct UseOfTime {
    read: Instant,
    /// `None` where the driver does not measure it.
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
    Silent,
    /// The driver does not measure the memory of processes.
    #[error("the driver does not say how much memory a process holds")]
    Unmeasured,
    /// The agent does not see the host's processes.
    #[error(
        "the host's processes are hidden: the agent's pod needs hostPID, and the host's /proc below its root"
    )]
    Hidden,
    /// The clients of the kernel's drivers are unknown.
    #[error(transparent)]
    Drm(#[from] DrmError),
}

/// Age of the oldest sample that counts as the present use. The driver takes one a second, or more often.
const RECENT: Duration = Duration::from_secs(2);

/// Age from which on the use of a GPU's time is read again: that takes about 1 ms of CPU (H100, driver 580).
const USE_OF_TIME_EVERY: Duration = Duration::from_secs(10);

/// Age from which on the processes are listed again though the GPU's memory in use is the same. The lists take 0.3 ms of
/// CPU, the memory a tenth of that.
const LIST_EVERY: Duration = Duration::from_secs(5);

// === impl GpuUse ===

impl GpuUse {
    /// Measures the use of a GPU of NVIDIA's, with the answers of the measurement before. Takes as long as the driver does,
    /// which may be forever.
    ///
    /// # Errors
    ///
    /// Fails where the driver or the host hides processes: an empty list says that there are none.
    pub async fn measure(
        driver: &LiveDriver,
        gpu: &DeviceId,
        answers: DriverAnswers,
    ) -> Result<Self, ProcessError> {
        let (driver, gpu) = (driver.clone(), gpu.clone());
        blocking(move || Self::measure_now(&driver, &gpu, answers)).await
    }

    /// Blocks.
    fn measure_now(
        driver: &LiveDriver,
        gpu: &DeviceId,
        mut answers: DriverAnswers,
    ) -> Result<Self, ProcessError> {
        // NVML shuts down once nobody has it: this thread keeps it until the driver has answered.
        let nvml = driver.nvml().ok_or(ProcessError::NoDriver)?;
        let host = driver.host();
        if !host.shows_own_process() {
            return Err(ProcessError::Hidden);
        }
        let gpu = nvml.gpu_with_uuid(gpu.as_str())?;
        let list = answers.list(&gpu)?;
        let sizes = list.processes.iter().map(|process| process.memory_bytes);
        let counted = sizes.sum::<Option<u64>>();
        let uncounted_bytes = list.used.zip(counted).map(|(used, all)| used.saturating_sub(all));
        let busy = answers.use_of_time(&gpu);
        let percent = |pid: u32| {
            let samples = busy.as_ref()?.iter().filter(|sample| sample.pid == pid);
            Some(samples.map(|sample| sample.sm_percent).max().unwrap_or(0))
        };
        let mut processes = Vec::new();
        for process in list.processes {
            let container = match host.container_of(process.pid) {
                Ok(container) => container,
                // One that has ended meanwhile holds nothing.
                Err(_) if !is_alive(process.pid) => continue,
                Err(_) => return Err(ProcessError::Hidden),
            };
            // Programs that draw for the host may be of unknown size.
            let Some(container) = container else { continue };
            let memory_bytes = process.memory_bytes.ok_or(ProcessError::Unmeasured)?;
            let (pid, compute_percent) = (process.pid, percent(process.pid));
            processes.push(GpuProcess { pid, container, memory_bytes, compute_percent });
        }
        Ok(Self { processes, uncounted_bytes, answers })
    }
}

// === impl DriverAnswers ===

impl DriverAnswers {
    /// These without the list of processes: the next measurement lists them anew.
    #[must_use]
    pub fn without_list(self) -> Self {
        Self { list: None, ..self }
    }

    /// The processes, listed anew if the GPU's memory in use has changed, or after a while.
    fn list(&mut self, gpu: &Gpu) -> Result<ProcessList, NvmlError> {
        let used = gpu.memory_used().ok();
        let is_current = |last: &&ProcessList| {
            used.is_some() && last.used == used && last.read.elapsed() < LIST_EVERY
        };
        if let Some(last) = self.list.as_ref().filter(is_current) {
            return Ok(last.clone());
        }
        let newest = ProcessList { read: Instant::now(), processes: gpu.processes()?, used };
        self.list = Some(newest.clone());
        Ok(newest)
    }

    /// Use of the GPU's time; `None` for GPUs in MIG mode and old ones, whose memory counts all the same.
    fn use_of_time(&mut self, gpu: &Gpu) -> Option<Vec<ProcessUtilization>> {
        let is_current = |last: &&UseOfTime| last.read.elapsed() < USE_OF_TIME_EVERY;
        if let Some(last) = self.use_of_time.as_ref().filter(is_current) {
            return last.samples.clone();
        }
        let samples = gpu.process_utilization(recently_us()).ok();
        self.use_of_time = Some(UseOfTime { read: Instant::now(), samples: samples.clone() });
        samples
    }
}

/// Time from which on samples are recent, in microseconds since 1970, as the driver counts it.
fn recently_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.saturating_sub(RECENT).as_micros()).unwrap_or(u64::MAX)
}
