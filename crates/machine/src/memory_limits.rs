//! Memory limits of cgroups on a GPU, and the memory charged to their processes.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{profile::Driver, state::Gpu};

/// Memory limits of one cgroup on one GPU, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Guaranteed memory. The simulation stores the value without an effect.
    pub soft: u64,
    /// Maximum memory; `u64::MAX` means no limit.
    pub hard: u64,
    /// Memory by process id. An entry may belong to a process that has exited.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub charged: BTreeMap<u32, u64>,
}

/// Fault of a call that sets a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitFault {
    /// The call succeeds and sets nothing.
    Ignored,
    /// The call returns this `nvmlReturn_t`.
    Error(u32),
}

/// First driver with memory limits (CUDA 13.4).
const MIN_DRIVER_MAJOR: u32 = 615;

// === impl Driver ===

impl Driver {
    /// True if the driver supports memory limits per cgroup.
    pub fn has_memory_limits(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major >= MIN_DRIVER_MAJOR)
    }
}

// === impl Gpu ===

impl Gpu {
    /// Limits that apply to a process of this cgroup: of the cgroup and of its ancestors.
    pub fn applicable_limits(&self, cgroup: &Path) -> impl Iterator<Item = &CgroupLimits> {
        let limits = self.memory_limits.iter();
        limits
            .filter(|(limited_cgroup, _)| cgroup.starts_with(limited_cgroup))
            .map(|(_, limits)| limits)
    }

    /// Sets the charged memory of a process to `bytes`. If a limit would be exceeded, keeps the old charge and returns
    /// false. A decrease always succeeds. Charges of other processes for which `is_alive` is false are dropped.
    pub fn charge(
        &mut self,
        cgroup: &Path,
        process: u32,
        bytes: u64,
        is_alive: impl Fn(u32) -> bool,
    ) -> bool {
        let mut applicable_limits: Vec<_> = self.memory_limits.iter_mut().collect();
        applicable_limits.retain(|(limited_cgroup, _)| cgroup.starts_with(limited_cgroup));
        for (_, limits) in &mut applicable_limits {
            limits.charged.retain(|&other, _| other == process || is_alive(other));
        }
        let fits = applicable_limits.iter().all(|(_, limits)| {
            let current_bytes = limits.charged.get(&process).copied().unwrap_or(0);
            bytes <= current_bytes || bytes - current_bytes <= limits.remaining(&is_alive)
        });
        if fits {
            for (_, limits) in applicable_limits {
                limits.charged.insert(process, bytes);
            }
        }
        fits
    }
}

// === impl CgroupLimits ===

impl CgroupLimits {
    /// Memory of the processes for which `is_alive` is true.
    pub fn used(&self, is_alive: impl Fn(u32) -> bool) -> u64 {
        self.charged.iter().filter(|(process, _)| is_alive(**process)).map(|(_, bytes)| bytes).sum()
    }

    /// Remaining memory below the hard limit; 0 if the limit is exceeded.
    pub fn remaining(&self, is_alive: impl Fn(u32) -> bool) -> u64 {
        self.hard.saturating_sub(self.used(is_alive))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MachineProfile, Model};

    fn gpu(limits: &[(&str, u64)]) -> Gpu {
        let profile = MachineProfile::named("l40s-pcie").expect("a shipped profile");
        let mut gpu = Model::new(&profile).expect("a machine").gpus.remove(0);
        let limit = |hard| CgroupLimits { soft: 0, hard, charged: BTreeMap::new() };
        let limits = limits.iter().map(|(cgroup, hard)| ((*cgroup).to_owned(), limit(*hard)));
        gpu.memory_limits = limits.collect();
        gpu
    }

    #[test]
    fn a_limit_counts_all_running_processes_of_the_cgroup_and_its_descendants() {
        let mut gpu = gpu(&[("/pod", 10), ("/pod/a", 8)]);
        let cgroup = |name: &str| Path::new("/pod").join(name);
        assert!(gpu.charge(&cgroup("a"), 1, 6, |_| true));
        assert!(!gpu.charge(&cgroup("a"), 2, 3, |_| true), "6 + 3 > 8");
        assert!(!gpu.charge(&cgroup("a"), 1, 9, |_| true), "9 > 8");
        assert_eq!(gpu.memory_limits["/pod"].used(|_| true), 6, "a refusal changes nothing");
        assert!(!gpu.charge(&cgroup("b"), 3, 5, |_| true), "6 + 5 > 10");
        assert!(gpu.charge(&cgroup("b"), 3, 4, |_| true));
        assert!(gpu.charge(&cgroup("a"), 2, 6, |process| process != 1), "process 1 has exited");
        gpu.memory_limits.get_mut("/pod/a").expect("the limit of /pod/a").hard = 1;
        assert!(
            gpu.charge(&cgroup("a"), 2, 5, |_| true),
            "a decrease, although the limit is lower"
        );
        assert!(gpu.charge(Path::new("/podded"), 4, 99, |_| true), "a cgroup without a limit");
    }

    #[test]
    fn memory_limits_exist_since_driver_615() {
        for (version, expected) in [
            ("614.99.9", false),
            ("615.10", true),
            ("1000.1", true),
            ("570.133.20", false),
            ("x", false),
        ] {
            let driver = Driver { version: version.to_owned(), cuda: "13.4".to_owned() };
            assert_eq!(driver.has_memory_limits(), expected, "{version}");
        }
    }
}
