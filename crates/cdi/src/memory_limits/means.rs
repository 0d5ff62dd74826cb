//! Means of a node to keep containers to their memory of a shared GPU.

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
    dmem::{DmemPlaces, NoDmem},
};

use super::{GpuMemory, MemoryLimitPlaces, NoMemoryLimits};

/// Means of this node to keep containers to their memory of a shared GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitMeans {
    /// Places that the limits of NVIDIA's driver need; `None` before they were looked for.
    pub driver: Option<Result<MemoryLimitPlaces, NoMemoryLimits>>,
    /// Places that the kernel's limits of other GPUs need; `None` before they were looked for.
    pub dmem: Option<Result<DmemPlaces, NoDmem>>,
    /// True if the agent sees the host's processes, which the watchdog needs.
    pub shows_processes: bool,
    /// True if it also sees which files they have open, which the watchdog needs for GPUs that the kernel limits.
    pub shows_open_files: bool,
}

// === impl LimitMeans ===

impl LimitMeans {
    /// The means at present. Blocks for small files.
    pub fn read(driver: &LiveDriver) -> Self {
        let shows_processes = driver.host().shows_own_process();
        let dmem = Some(DmemPlaces::find(driver.host()));
        let shows_open_files = driver.host().shows_open_files();
        let driver = Some(MemoryLimitPlaces::find(driver));
        Self { driver, dmem, shows_processes, shows_open_files }
    }

    /// The strongest enforcement of a share without the hook and MPS. `drm` is the address of a GPU that the kernel limits.
    pub fn without_hook(&self, policy: &Policy, drm: Option<PciAddress>) -> Enforcement {
        let is_seen = if drm.is_some() { self.shows_open_files } else { self.shows_processes };
        let is_watched = policy.watchdog.action.acts() && is_seen;
        if is_watched { Enforcement::Watched } else { Enforcement::None }
    }

    /// The strongest enforcement of a whole GPU's memory by the hook, or the reason against it. `drm` is the address of a
    /// GPU that the kernel limits.
    pub(super) fn by_hook(&self, drm: Option<PciAddress>) -> Result<Enforcement, String> {
        match drm {
            Some(address) => self.region(address).map(|_| Enforcement::Dmem),
            None => self.places().map(|_| Enforcement::Driver),
        }
    }

    /// The hook's record for these GPUs, or the reason against their limits.
    pub(super) fn record(&self, gpus: &[&GpuMemory]) -> Result<MemoryLimitRecord, String> {
        let limits = gpus.iter().map(|gpu| self.limit(gpu)).collect::<Result<Vec<_>, _>>()?;
        let (library, cgroups) = if limits.iter().any(|limit| limit.region.is_none()) {
            let places = self.places()?;
            (Some(places.library.clone()), &places.cgroups)
        } else {
            (None, &self.dmem()?.cgroups)
        };
        let record = MemoryLimitRecord::new(library, limits);
        let record = record.and_then(|record| record.with_cgroup_root(cgroups));
        record.map_err(|error| causes(&error))
    }

    fn limit(&self, gpu: &GpuMemory) -> Result<GpuMemoryLimit, String> {
        let region = gpu.drm.map(|address| self.region(address).cloned()).transpose()?;
        Ok(GpuMemoryLimit { uuid: gpu.device.to_string(), region, hard_mib: gpu.limit_mib })
    }

    /// False before the means of such a GPU were looked for, and while NVIDIA's driver is being initialised.
    pub(super) fn is_known(&self, gpu: &GpuMemory) -> bool {
        match gpu.drm {
            Some(_) => self.dmem.is_some(),
            None => !matches!(self.driver, None | Some(Err(NoMemoryLimits::NoDriver))),
        }
    }

    fn region(&self, gpu: PciAddress) -> Result<&DmemRegion, String> {
        self.dmem()?.region(gpu).map_err(|why| why.to_string())
    }

    fn dmem(&self) -> Result<&DmemPlaces, String> {
        match &self.dmem {
            Some(Ok(places)) => Ok(places),
            Some(Err(why)) => Err(why.to_string()),
            None => Err("the host's control groups were not looked at yet".to_owned()),
        }
    }

    /// Places that the driver's limits need, or the reason against them.
    fn places(&self) -> Result<&MemoryLimitPlaces, String> {
        match &self.driver {
            Some(Ok(places)) => Ok(places),
            Some(Err(why)) => Err(why.to_string()),
            None => Err("the driver was not asked yet".to_owned()),
        }
    }
}
