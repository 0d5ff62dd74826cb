//! Memory limits of shares: the node's means, and the driver's limit of a container.

mod records;
mod replicas;

use std::path::{Path, PathBuf};

use windlass_config::Policy;
use windlass_core::{
    cdi::Hook,
    device::{Device, DeviceId},
    enforcement::Enforcement,
    memory_limit::{GpuMemoryLimit, MemoryLimitError, MemoryLimitRecord},
};
use windlass_discovery::live_driver::{LiveDriver, MemoryLimitPlaces, NoMemoryLimits};
use windlass_host::causes;

pub use self::{
    records::{LimitRecords, LimitedHolders, limited},
    replicas::{ReplicaLimits, ReplicaMemory, replica_name},
};

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
    /// True if an MPS daemon limits it.
    pub is_by_mps: bool,
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
    /// Number of replicas, each of which has the record's memory; `None` for the record's alone.
    replicas: Option<u32>,
}

/// Reason that a container may not start: its memory would be limited by less than the configuration or its pod wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeakLimit {
    /// A weaker limit is the best.
    #[error(
        "its memory would be limited by `{found}`, and `{wanted}` is the least that memoryLimits.atLeast or its pod \
         wants: {without}"
    )]
    Found {
        /// The best limit.
        found: Enforcement,
        /// The weakest that is allowed.
        wanted: Enforcement,
        /// Reason against the driver's limit.
        without: String,
    },
    /// The container asks for no memory.
    #[error(
        "it asks for no memory, which `{0}` cannot limit as memoryLimits.atLeast or its pod wants: let it ask for \
         memory too"
    )]
    NoMemory(Enforcement),
}

/// Reason against an MPS daemon's limit.
const LEFT: &str = "an MPS daemon limits it, and a program can run without the daemon";

/// Reason against the driver's limit of a pod that wants more.
const SHARED: &str =
    "it shares a GPU: only a MIG instance of its own is kept apart by the hardware";

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

    /// The strongest enforcement apart from the driver's too.
    pub fn without_driver(&self, policy: &Policy) -> Enforcement {
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
    /// The driver's limit of a container with parts of these GPUs; none where no part needs one, or where less than the
    /// driver's will do. `at_least` is the weakest that the pod accepts, and `path` the record's.
    pub fn of(
        gpus: &[GpuMemory],
        at_least: Enforcement,
        path: PathBuf,
        policy: &Policy,
        means: &LimitMeans,
    ) -> Result<Option<Self>, WeakLimit> {
        let wanted = policy.memory_limits.at_least.enforcement().max(at_least);
        if wanted > Enforcement::None && gpus.iter().any(|gpu| gpu.memory_mib == 0) {
            return Err(WeakLimit::NoMemory(wanted));
        }
        let parts = || gpus.iter().filter(|gpu| (1..gpu.of_mib).contains(&gpu.memory_mib));
        if wanted > Enforcement::Mps && parts().any(|gpu| gpu.is_by_mps) {
            let (found, without) = (Enforcement::Mps, LEFT.to_owned());
            return Err(WeakLimit::Found { found, wanted, without });
        }
        let limits = parts().filter(|gpu| !gpu.is_by_mps).map(GpuMemory::limit);
        let limits: Vec<_> = limits.collect();
        if limits.is_empty() {
            return Ok(None);
        }
        let found = means.driver_limit(policy).and_then(|(places, hook)| {
            let record = record(places, limits).map_err(|error| causes(&error))?;
            Ok(Self { record, path, hook, replicas: None })
        });
        match found {
            Ok(_) if wanted > Enforcement::Driver => {
                let (found, without) = (Enforcement::Driver, SHARED.to_owned());
                Err(WeakLimit::Found { found, wanted, without })
            }
            Ok(limit) => Ok(Some(limit)),
            Err(_) if means.without_driver(policy) >= wanted => Ok(None),
            Err(without) => {
                Err(WeakLimit::Found { found: means.without_driver(policy), wanted, without })
            }
        }
    }

    /// The driver's limit of a container with so many replicas of a GPU, as [`Self::of`].
    pub fn of_replicas(
        each: &GpuMemory,
        replicas: u32,
        path: &Path,
        policy: &Policy,
        means: &LimitMeans,
    ) -> Result<Option<Self>, WeakLimit> {
        let memory_mib = each.memory_mib.saturating_mul(replicas.into());
        let of = |gpu| Self::of(&[gpu], Enforcement::None, path.to_owned(), policy, means);
        let (all, of_one) = (of(GpuMemory { memory_mib, ..each.clone() })?, of(each.clone())?);
        Ok(all.and(of_one).map(|limit| Self { replicas: Some(replicas), ..limit }))
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
        let replicas = self.replicas.map(|count| ["--replicas".to_owned(), count.to_string()]);
        Hook {
            hook_name: STAGE.to_owned(),
            path: self.hook.clone(),
            args: [program]
                .into_iter()
                .chain(arguments)
                .chain([record])
                .chain(replicas.into_iter().flatten())
                .collect(),
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
