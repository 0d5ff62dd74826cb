//! Support of memory limits by NVIDIA's driver.

use std::path::PathBuf;

use windlass_core::memory_limit::CGROUP_ROOT;
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::dmem::CGROUP2_CONTROLLERS;

/// Paths on the host that the driver's memory limits need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimitPaths {
    /// Path of NVML's library on the host.
    pub library: PathBuf,
    /// Mount point of cgroup v2 on the host.
    pub cgroups: PathBuf,
}

/// Reason why the driver cannot limit the memory of containers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMemoryLimits {
    /// NVML is not initialised.
    #[error("NVML is not initialised: the driver is missing or failing")]
    NoDriver,
    /// The driver is too old for memory limits.
    #[error("NVIDIA's driver limits no memory: it has to be 615 or newer")]
    OldDriver,
    /// The host has cgroup v1.
    #[error("the node has no cgroup v2, which the driver's limits need")]
    CgroupV1,
    /// The path of NVML on the host is unknown.
    #[error("the path of libnvidia-ml.so.1 on the host is unknown: name it by nvmlLibrary")]
    NoLibrary,
}

// === impl MemoryLimitPaths ===

impl MemoryLimitPaths {
    /// The paths, if the driver limits the memory of control groups. Blocks on file checks. If the agent does not see
    /// the host's control groups, the OCI hook that sets a container's limits checks their version.
    pub(super) fn find(driver: &LiveDriver) -> Result<Self, NoMemoryLimits> {
        let nvml = driver.nvml().ok_or(NoMemoryLimits::NoDriver)?;
        if !nvml.has_memory_limits() {
            return Err(NoMemoryLimits::OldDriver);
        }
        let host = driver.host();
        if host.is_dir(CGROUP_ROOT) && !host.exists(CGROUP2_CONTROLLERS) {
            return Err(NoMemoryLimits::CgroupV1);
        }
        let library = driver.library_on_node().ok_or(NoMemoryLimits::NoLibrary)?;
        Ok(Self { library, cgroups: host.path_on_node(CGROUP_ROOT) })
    }
}
