//! Memory limits of shares: the node's means, and the driver's limit of a container.

mod records;

use std::path::PathBuf;

use windlass_config::Policy;
use windlass_core::{
    cdi::Hook,
    device::{Device, DeviceId},
    enforcement::Enforcement,
    memory_limit::{GpuMemoryLimit, MemoryLimitError, MemoryLimitRecord},
};
use windlass_discovery::live_driver::{LiveDriver, MemoryLimitPlaces, NoMemoryLimits};
use windlass_host::causes;

pub use self::records::{LimitRecords, LimitedHolders, limited};

/// Means of this node to keep containers to their memory of a shared GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitMeans {
    /// Places that the driver's limits need; `None` before they were looked for.
    pub driver: Option<Result<MemoryLimitPlaces, NoMemoryLimits>>,
    /// True if the agent sees the host's processes, which the watchdog needs.
    pub shows_processes: bool,
}

/// Memory of a GPU that a container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU.
    pub device: DeviceId,
    /// Memory of the share in MiB; 0 is no request.
    pub memory_mib: u64,
    /// Memory of the whole GPU in MiB.
    pub of_mib: u64,
}

/// A limit that the hook sets before the container's first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverLimit {
    /// The hook's record.
    pub record: MemoryLimitRecord,
    /// Path of the record.
    path: PathBuf,
    /// Path of the hook on the host.
    hook: PathBuf,
}

/// Reason that a container may not start, because its memory would be limited by less than `memoryLimits.atLeast`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeakLimit {
    /// A weaker limit is the best.
    #[error(
        "its memory would be limited by `{found}`, and memoryLimits.atLeast asks for `{wanted}`: {without}"
    )]
    Found {
        /// The best limit.
        found: Enforcement,
        /// The weakest that the configuration allows.
        wanted: Enforcement,
        /// Reason against the driver's limit.
        without: String,
    },
    /// The container asks for no memory.
    #[error(
        "it asks for no memory, which `{0}` cannot limit as memoryLimits.atLeast wants: let it ask for memory too"
    )]
    NoMemory(Enforcement),
}

/// The stage at which a container has its control group and has not started.
const STAGE: &str = "createRuntime";

/// Seconds until the runtime gives the hook up. It takes milliseconds; a driver that hangs takes for ever.
const TIMEOUT: i64 = 30;

// === impl LimitMeans ===

impl LimitMeans {
    /// The means at present. Blocks for small files.
    pub fn read(driver: &LiveDriver) -> Self {
        let shows_processes = driver.host().shows_own_process();
        Self { driver: Some(driver.memory_limits()), shows_processes }
    }

    /// The strongest enforcement of a share of a GPU's memory, apart from MPS daemons and MIG.
    pub fn strongest(&self, policy: &Policy) -> Enforcement {
        match self.driver_limit(policy) {
            Ok(_) => Enforcement::Driver,
            Err(_) => self.without_driver(policy),
        }
    }

    /// The strongest enforcement of a share of this device.
    pub fn strongest_for(&self, device: &Device, policy: &Policy) -> Enforcement {
        if device.kind.is_instance() || device.partitioned {
            Enforcement::Mig
        } else if device.family().is_managed {
            self.strongest(policy)
        } else {
            Enforcement::None
        }
    }

    fn without_driver(&self, policy: &Policy) -> Enforcement {
        let is_watched = policy.watchdog.action.acts() && self.shows_processes;
        if is_watched { Enforcement::Watched } else { Enforcement::None }
    }

    /// The hook and its places, or the reason against the driver's limit.
    fn driver_limit(&self, policy: &Policy) -> Result<(&MemoryLimitPlaces, PathBuf), String> {
        let hook = policy.memory_limits.hook.clone();
        let hook = hook.ok_or_else(|| "the configuration names no hook".to_owned())?;
        match &self.driver {
            Some(Ok(places)) => Ok((places, hook)),
            Some(Err(why)) => Err(why.to_string()),
            None => Err("the driver was not asked yet".to_owned()),
        }
    }
}

// === impl DriverLimit ===

impl DriverLimit {
    /// The driver's limit of a container with parts of these GPUs; none where no part needs one, or where the configuration is
    /// content with less. `path` is the record's.
    pub fn of(
        gpus: &[GpuMemory],
        path: PathBuf,
        policy: &Policy,
        means: &LimitMeans,
    ) -> Result<Option<Self>, WeakLimit> {
        let wanted = policy.memory_limits.at_least.enforcement();
        if wanted > Enforcement::None && gpus.iter().any(|gpu| gpu.memory_mib == 0) {
            return Err(WeakLimit::NoMemory(wanted));
        }
        let parts = gpus.iter().filter(|gpu| (1..gpu.of_mib).contains(&gpu.memory_mib));
        let limits: Vec<_> = parts.map(GpuMemory::limit).collect();
        if limits.is_empty() {
            return Ok(None);
        }
        let found = means.driver_limit(policy).and_then(|(places, hook)| {
            let record = record(places, limits).map_err(|error| causes(&error))?;
            Ok(Self { record, path, hook })
        });
        match found {
            Ok(limit) => Ok(Some(limit)),
            Err(_) if means.without_driver(policy) >= wanted => Ok(None),
            Err(without) => {
                Err(WeakLimit::Found { found: means.without_driver(policy), wanted, without })
            }
        }
    }

    /// True if it limits memory of this GPU.
    pub fn is_of(&self, gpu: &DeviceId) -> bool {
        self.record.gpus().iter().any(|limit| limit.uuid == gpu.as_str())
    }

    /// The hook, for the container's document.
    pub fn hook(&self) -> Hook {
        let program = self.hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let arguments = ["memory-limit", "--record"].map(ToOwned::to_owned);
        let record = self.path.to_string_lossy().into_owned();
        Hook {
            hook_name: STAGE.to_owned(),
            path: self.hook.clone(),
            args: [program].into_iter().chain(arguments).chain([record]).collect(),
            env: Vec::new(),
            timeout: Some(TIMEOUT),
        }
    }
}

// === impl GpuMemory ===

impl GpuMemory {
    fn limit(&self) -> GpuMemoryLimit {
        GpuMemoryLimit { uuid: self.device.to_string(), hard_mib: self.memory_mib }
    }
}

fn record(
    places: &MemoryLimitPlaces,
    limits: Vec<GpuMemoryLimit>,
) -> Result<MemoryLimitRecord, MemoryLimitError> {
    MemoryLimitRecord::new(&places.library, limits)?.with_cgroup_root(&places.cgroups)
}
