//! Support of the host for memory limits by the kernel's controller for device memory (`dmem` of cgroup v2).

use std::path::{Path, PathBuf};

use windlass_core::{dmem::DmemRegion, memory_limit::CGROUP_ROOT, pci::PciAddress};

use crate::Host;

/// Mount point of cgroup v2, and the regions to which the kernel's memory limits apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmemController {
    /// Mount point of cgroup v2.
    pub cgroup_root: PathBuf,
    /// Regions that drivers have registered.
    regions: Vec<DmemRegion>,
}

/// Reason why the kernel cannot limit the memory of containers on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmemUnavailable {
    /// The agent does not see the host's control groups.
    #[error(
        "the host's control groups are hidden: the agent needs the host's {CGROUP_ROOT} below its root"
    )]
    Hidden,
    /// The host has cgroup v1.
    #[error("the node has no cgroup v2, which the kernel's limits of device memory need")]
    NoCgroups,
    /// The kernel lacks the `dmem` controller, or has disabled it.
    #[error(
        "the kernel limits no device memory: it has to be 6.14 or newer, with the controller dmem"
    )]
    NoController,
    /// The GPU's driver has registered no region.
    #[error(
        "the kernel's controller dmem has no region of {0}: its driver registers none, as i915"
    )]
    NoRegion(PciAddress),
    /// The GPU has several regions, one per tile, and a program may use any of them.
    #[error("the memory of {0} has several regions, and one limit cannot be spread over them")]
    SeveralRegions(PciAddress),
}

/// File that only cgroup v2 has at that mount point.
pub const CGROUP2_CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

/// File with the sizes of all regions. Only the root of all control groups has it.
const CAPACITY: &str = "dmem.capacity";

// === impl DmemController ===

impl DmemController {
    /// Finds the controller and its regions. Blocks for small files.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the kernel can limit no GPU.
    pub fn find(host: &Host) -> Result<Self, DmemUnavailable> {
        if !host.is_dir(CGROUP_ROOT) {
            return Err(DmemUnavailable::Hidden);
        }
        if !host.exists(CGROUP2_CONTROLLERS) {
            return Err(DmemUnavailable::NoCgroups);
        }
        let capacity = host
            .read_text(Path::new(CGROUP_ROOT).join(CAPACITY))
            .ok_or(DmemUnavailable::NoController)?;
        let regions = DmemRegion::parse_lines(&capacity).map(|(region, _)| region).collect();
        Ok(Self { cgroup_root: host.path_on_node(CGROUP_ROOT), regions })
    }

    /// The region of a GPU's own memory.
    ///
    /// # Errors
    ///
    /// Fails unless the GPU has exactly one region.
    pub fn region(&self, gpu: PciAddress) -> Result<&DmemRegion, DmemUnavailable> {
        let mut own_regions = self.regions.iter().filter(|region| region.is_memory_of(gpu));
        match (own_regions.next(), own_regions.next()) {
            (Some(region), None) => Ok(region),
            (None, _) => Err(DmemUnavailable::NoRegion(gpu)),
            (Some(_), Some(_)) => Err(DmemUnavailable::SeveralRegions(gpu)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_reason_against_kernel_limits_is_distinguished() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/node");
        let write = |path: &str, text: &str| {
            let path = host.path(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(DmemController::find(&host), Err(DmemUnavailable::Hidden));
        write("/sys/fs/cgroup/memory/tasks", "");
        assert_eq!(DmemController::find(&host), Err(DmemUnavailable::NoCgroups));
        write(CGROUP2_CONTROLLERS, "cpu memory dmem\n");
        assert_eq!(DmemController::find(&host), Err(DmemUnavailable::NoController));
        let regions = "drm/0000:03:00.0/vram 17095983104\ndrm/0000:04:00.0/vram0 1\n\
                       drm/0000:04:00.0/vram1 1\ndrm/0000:04:00.0/stolen 1\n";
        write("/sys/fs/cgroup/dmem.capacity", regions);
        let controller = DmemController::find(&host).expect("found");
        assert_eq!(controller.cgroup_root, Path::new("/node/sys/fs/cgroup"));
        let gpu = |address: &str| address.parse::<PciAddress>().expect("an address");
        let region = controller.region(gpu("0000:03:00.0")).expect("one region");
        assert_eq!(region.as_str(), "drm/0000:03:00.0/vram");
        let two_tiles = gpu("0000:04:00.0");
        assert_eq!(controller.region(two_tiles), Err(DmemUnavailable::SeveralRegions(two_tiles)));
        let other = gpu("0000:05:00.0");
        assert_eq!(controller.region(other), Err(DmemUnavailable::NoRegion(other)));
    }
}
