//! Means of a node to enforce memory limits on shared GPUs.

use windlass_config::Policy;
use windlass_core::{
    dmem::DmemRegion,
    enforcement::Enforcement,
    memory_limit::{GpuMemoryLimit, MemoryLimitRecord},
    pci::PciAddress,
};
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    causes,
    dmem::{DmemController, DmemUnavailable},
};

use super::{GpuMemory, MemoryLimitPaths, NoMemoryLimits};

/// Means of this node to enforce memory limits on shared GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSupport {
    /// Paths that the limits of NVIDIA's driver need; `None` before the first search.
    pub driver: Option<Result<MemoryLimitPaths, NoMemoryLimits>>,
    /// Controller that limits other GPUs in the kernel; `None` before the first search.
    pub dmem: Option<Result<DmemController, DmemUnavailable>>,
    /// True if the agent sees the host's processes, which the watchdog needs.
    pub shows_processes: bool,
    /// True if the agent also sees their open files, which the watchdog needs for GPUs that the kernel limits.
    pub shows_open_files: bool,
}

// === impl LimitSupport ===

impl LimitSupport {
    /// The current means. Blocks on reads of small files.
    pub fn read(driver: &LiveDriver) -> Self {
        let shows_processes = driver.host().shows_own_process();
        let dmem = Some(DmemController::find(driver.host()));
        let shows_open_files = driver.host().shows_open_files();
        let driver = Some(MemoryLimitPaths::find(driver));
        Self { driver, dmem, shows_processes, shows_open_files }
    }

    /// The strongest enforcement without the hook and MPS: by the watchdog, or none. `drm_address` is the address of
    /// a GPU that the kernel limits.
    pub fn enforcement_without_hook(
        &self,
        policy: &Policy,
        drm_address: Option<PciAddress>,
    ) -> Enforcement {
        let sees_processes =
            if drm_address.is_some() { self.shows_open_files } else { self.shows_processes };
        let is_watched = policy.watchdog.action.is_enforcing() && sees_processes;
        if is_watched { Enforcement::Watched } else { Enforcement::None }
    }

    /// The strongest enforcement that the hook can set on a GPU, or the reason why there is none. `drm_address` is the
    /// address of a GPU that the kernel limits.
    pub(super) fn hook_enforcement(
        &self,
        drm_address: Option<PciAddress>,
    ) -> Result<Enforcement, String> {
        match drm_address {
            Some(address) => self.region(address).map(|_| Enforcement::Dmem),
            None => self.driver_paths().map(|_| Enforcement::Driver),
        }
    }

    /// The hook's record for these GPUs, or the reason why one of them cannot be limited.
    pub(super) fn record(&self, gpus: &[&GpuMemory]) -> Result<MemoryLimitRecord, String> {
        let limits = gpus.iter().map(|gpu| self.limit(gpu)).collect::<Result<Vec<_>, _>>()?;
        let (library, cgroups) = if limits.iter().any(|limit| limit.region.is_none()) {
            let paths = self.driver_paths()?;
            (Some(paths.library.clone()), &paths.cgroups)
        } else {
            (None, &self.dmem()?.cgroup_root)
        };
        let record = MemoryLimitRecord::new(library, limits);
        let record = record.and_then(|record| record.with_cgroup_root(cgroups));
        record.map_err(|error| causes(&error))
    }

    fn limit(&self, gpu: &GpuMemory) -> Result<GpuMemoryLimit, String> {
        let region = gpu.drm_address.map(|address| self.region(address).cloned()).transpose()?;
        Ok(GpuMemoryLimit { uuid: gpu.device.to_string(), region, hard_mib: gpu.limit_mib })
    }

    /// True if the means for such a GPU are known. They are not before the first search, and while NVIDIA's driver is
    /// being initialised.
    pub(super) fn is_known(&self, gpu: &GpuMemory) -> bool {
        match gpu.drm_address {
            Some(_) => self.dmem.is_some(),
            None => !matches!(self.driver, None | Some(Err(NoMemoryLimits::NoDriver))),
        }
    }

    fn region(&self, gpu: PciAddress) -> Result<&DmemRegion, String> {
        self.dmem()?.region(gpu).map_err(|error| error.to_string())
    }

    fn dmem(&self) -> Result<&DmemController, String> {
        match &self.dmem {
            Some(Ok(controller)) => Ok(controller),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the host's control groups have not been checked yet".to_owned()),
        }
    }

    /// Paths that the driver's limits need, or the reason why the driver cannot set limits.
    fn driver_paths(&self) -> Result<&MemoryLimitPaths, String> {
        match &self.driver {
            Some(Ok(paths)) => Ok(paths),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the driver has not been checked yet".to_owned()),
        }
    }
}
