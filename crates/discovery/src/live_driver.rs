//! Drivers while they are in use: processes on GPUs with their memory and containers, and support of memory limits by
//! NVIDIA's.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;
use windlass_core::device::DeviceId;
use windlass_host::{
    Host, Roots, blocking,
    container::{GpuProcess, is_alive},
    dmem::{CGROUPS, VERSION_2},
    drm_clients::DrmError,
};
use windlass_nvml::{Gpu, GpuProcess as ListedProcess, Nvml, NvmlError, ProcessUtilization};

/// NVIDIA's driver while it is in use. Clones share it.
#[derive(Clone, Debug)]
pub struct LiveDriver {
    roots: Roots,
    /// The configured library; `None` for the one of the roots.
    named: Option<PathBuf>,
    library: watch::Receiver<Option<Nvml>>,
    last_answers: Arc<Mutex<BTreeMap<DeviceId, LastAnswers>>>,
}

/// The driver's last answers about a GPU. They are used again for a while, because some take the driver long.
#[derive(Debug, Default)]
struct LastAnswers {
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

/// Use of a GPU by containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Processes of containers.
    pub processes: Vec<GpuProcess>,
    /// Memory in use that the driver counts for no process, in bytes, where it tells: managed memory (`cudaMallocManaged`), and
    /// about a hundred MiB of its own.
    pub uncounted_bytes: Option<u64>,
}

/// Places on the host that the driver's memory limits need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimitPlaces {
    /// NVML.
    pub library: PathBuf,
    /// Mount point of cgroup v2.
    pub cgroups: PathBuf,
}

/// Reason why the driver cannot limit the memory of containers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMemoryLimits {
    /// NVML is not initialised.
    #[error("NVML is not initialised: the driver is missing or failing")]
    NoDriver,
    /// The driver is older than memory limits.
    #[error("NVIDIA's driver limits no memory: it has to be 615 or newer")]
    OldDriver,
    /// The host has cgroup v1.
    #[error("the node has no cgroup v2, which the driver's limits need")]
    NoCgroups,
    /// The path of NVML on the host is unknown.
    #[error("the path of libnvidia-ml.so.1 on the host is unknown: name it by nvmlLibrary")]
    NoLibrary,
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

/// Age from which on the processes are listed again though the GPU's memory in use is the same. The lists take 0.3 ms of CPU, the
/// memory a tenth of that.
const LIST_EVERY: Duration = Duration::from_secs(5);

// === impl LiveDriver ===

impl LiveDriver {
    pub(crate) fn new(
        roots: Roots,
        named: Option<PathBuf>,
        library: watch::Receiver<Option<Nvml>>,
    ) -> Self {
        Self { roots, named, library, last_answers: Arc::default() }
    }

    /// The host, whose `/proc` has the processes.
    pub fn host(&self) -> &Host {
        &self.roots.host
    }

    /// Places on the host, if the driver limits the memory of control groups. Blocks for small files. An agent that does not
    /// see the host's control groups leaves their version to the hook.
    pub fn memory_limits(&self) -> Result<MemoryLimitPlaces, NoMemoryLimits> {
        let has_limits = self.library.borrow().as_ref().map(Nvml::has_memory_limits);
        if !has_limits.ok_or(NoMemoryLimits::NoDriver)? {
            return Err(NoMemoryLimits::OldDriver);
        }
        let host = &self.roots.host;
        if host.has_folder(CGROUPS) && !host.has(VERSION_2) {
            return Err(NoMemoryLimits::NoCgroups);
        }
        let path = self.roots.nvml_library(self.named.clone());
        let on_node = path.and_then(|path| {
            let roots = [&self.roots.driver, host];
            let found = roots.into_iter().find_map(|root| root.on_node(&path));
            // Where the runtime has the agent's own paths.
            let is_same = host.path("/") == host.path_on_node("/");
            found.or_else(|| is_same.then_some(path))
        });
        let library = on_node.filter(|path| path.is_absolute()).ok_or(NoMemoryLimits::NoLibrary)?;
        Ok(MemoryLimitPlaces { library, cgroups: host.path_on_node(CGROUPS) })
    }

    /// Processes of containers on a GPU of NVIDIA's, and its memory. Takes as long as the driver does, which may be forever.
    ///
    /// # Errors
    ///
    /// Fails where the driver or the host hides them: an empty list says that there are none.
    pub async fn gpu_use(&self, gpu: &DeviceId) -> Result<GpuUse, ProcessError> {
        let (driver, gpu) = (self.clone(), gpu.clone());
        blocking(move || driver.gpu_use_now(&gpu)).await
    }

    /// Blocks.
    fn gpu_use_now(&self, id: &DeviceId) -> Result<GpuUse, ProcessError> {
        // NVML shuts down once nobody has it: this thread keeps it until the driver has answered.
        let nvml = self.library.borrow().clone().ok_or(ProcessError::NoDriver)?;
        if !self.host().shows_own_process() {
            return Err(ProcessError::Hidden);
        }
        let gpu = nvml.gpu_with_uuid(id.as_str())?;
        let busy = self.use_of_time(id, &gpu);
        let percent = |pid: u32| {
            let samples = busy.as_ref()?.iter().filter(|sample| sample.pid == pid);
            Some(samples.map(|sample| sample.sm_percent).max().unwrap_or(0))
        };
        let ProcessList { processes: listed, used, .. } = self.list(id, &gpu)?;
        let counted: u64 = listed.iter().filter_map(|process| process.memory_bytes).sum();
        let uncounted_bytes = used.map(|used| used.saturating_sub(counted));
        let mut processes = Vec::new();
        for process in listed {
            let container = match self.host().container_of(process.pid) {
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
        Ok(GpuUse { processes, uncounted_bytes })
    }

    /// Use of a GPU's time by its processes; `None` for GPUs in MIG mode and old ones, whose memory counts all the same.
    fn use_of_time(&self, id: &DeviceId, gpu: &Gpu) -> Option<Vec<ProcessUtilization>> {
        let last = self.answers(id, |last| last.use_of_time.clone());
        if let Some(last) = last.filter(|last| last.read.elapsed() < USE_OF_TIME_EVERY) {
            return last.samples;
        }
        let samples = gpu.process_utilization(recently_us()).ok();
        let read = UseOfTime { read: Instant::now(), samples: samples.clone() };
        self.answers(id, |last| last.use_of_time = Some(read));
        samples
    }

    /// The processes of a GPU, listed anew if its memory in use has changed, or after a while.
    fn list(&self, id: &DeviceId, gpu: &Gpu) -> Result<ProcessList, NvmlError> {
        let used = gpu.memory_used().ok();
        let last = self.answers(id, |last| last.list.clone());
        let is_current = |last: &ProcessList| {
            used.is_some() && last.used == used && last.read.elapsed() < LIST_EVERY
        };
        if let Some(last) = last.filter(is_current) {
            return Ok(last);
        }
        let newest = ProcessList { read: Instant::now(), processes: gpu.processes()?, used };
        self.answers(id, |last| last.list = Some(newest.clone()));
        Ok(newest)
    }

    /// Reads or replaces the last answers about a GPU.
    fn answers<T>(&self, id: &DeviceId, with: impl FnOnce(&mut LastAnswers) -> T) -> T {
        let mut all = self.last_answers.lock().unwrap_or_else(PoisonError::into_inner);
        with(all.entry(id.clone()).or_default())
    }
}

/// Time from which on samples are recent, in microseconds since 1970, as the driver counts it.
fn recently_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.saturating_sub(RECENT).as_micros()).unwrap_or(u64::MAX)
}
