//! Connections between devices: NVLink, PCIe levels of `nvidia-smi topo`, NUMA.

mod islands;

use std::fmt;

use crate::{
    device::{Device, Location},
    nvlink::{NvLinkPair, NvLinks},
    pci::PciePath,
};

pub use self::islands::set_islands;

/// The nearest common component of two devices; farther is greater.
///
/// Levels are those of `nvmlGpuTopologyLevel_t` and `nvidia-smi topo -m`. They are computed from sysfs paths,
/// so they are defined between any two PCI devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PcieLevel {
    /// The same PCI function, as with parts of one device. `nvidia-smi` has no such level.
    Device,
    /// The same PCI device, another function.
    Board,
    /// A single PCIe switch.
    Pix,
    /// Several PCIe switches, but no host bridge.
    Pxb,
    /// The same host bridge.
    Phb,
    /// The same NUMA node.
    Node,
    /// Different NUMA nodes, or unknown.
    Sys,
}

/// Connection of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// NVLink, if present.
    pub nvlink: Option<NvLinkPair>,
    /// AMD xGMI bandwidth in MB/s per direction, if present.
    pub xgmi_mbps: Option<u32>,
    /// PCIe level.
    pub pcie: PcieLevel,
}

/// Connections of all pairs: `matrix[i][j]`, symmetric, in the order of the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionMatrix {
    size: usize,
    cells: Vec<Connection>,
}

serialize_as_text!(PcieLevel, Connection);

// === impl PcieLevel ===

impl PcieLevel {
    /// PCIe level between two devices.
    pub fn between(a: &Location, b: &Location) -> Self {
        let common = match (&a.path, &b.path) {
            (Some(a), Some(b)) => Self::on_paths(a, b),
            _ => None,
        };
        common.unwrap_or(match (a.numa_node, b.numa_node) {
            (Some(a), Some(b)) if a == b => Self::Node,
            _ => Self::Sys,
        })
    }

    /// PCIe level inside one host bridge; `None` for different host bridges.
    ///
    /// A PCIe switch is two bridges deep: an upstream port, and a downstream port per device. Paths that split
    /// at the downstream ports of one upstream port pass a single switch. Other paths pass several.
    fn on_paths(a: &PciePath, b: &PciePath) -> Option<Self> {
        if a.root() != b.root() {
            return None;
        }
        if a.same_device_as(b) {
            return Some(Self::Board);
        }
        let common = a.bridges().iter().zip(b.bridges()).take_while(|(a, b)| a == b).count();
        let bridges_below_common = |path: &PciePath| path.bridges().len() - common;
        Some(match common {
            0 => Self::Phb,
            _ if bridges_below_common(a) <= 1 && bridges_below_common(b) <= 1 => Self::Pix,
            _ => Self::Pxb,
        })
    }
}

impl fmt::Display for PcieLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "DEV",
            Self::Board => "PSB",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

// === impl Connection ===

impl Connection {
    /// Connection of two devices. MIG instances are located like their GPU, without NVLink.
    pub fn between(a: &Device, b: &Device) -> Self {
        let pcie = PcieLevel::between(&a.place, &b.place);
        let over_pcie = Self { nvlink: None, xgmi_mbps: None, pcie };
        match (a.place.pci, b.place.pci) {
            (Some(a_address), Some(b_address)) if a_address == b_address => {
                Self { pcie: PcieLevel::Device, ..over_pcie }
            }
            (Some(a_address), Some(b_address)) => Self {
                nvlink: NvLinks::between(
                    (a_address, &a.place.nvlinks),
                    (b_address, &b.place.nvlinks),
                ),
                xgmi_mbps: a.place.xgmi_to(b_address).max(b.place.xgmi_to(a_address)),
                ..over_pcie
            },
            _ => over_pcie,
        }
    }
}

impl fmt::Display for Connection {
    /// Label of `nvidia-smi topo -m` and `rocm-smi --showtopo`: `NV18`, `XGMI`, else the PCIe level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nvlink, self.xgmi_mbps) {
            (Some(pair), _) => f.pad(&format!("NV{}", pair.links)),
            (None, Some(_)) => f.pad("XGMI"),
            (None, None) => self.pcie.fmt(f),
        }
    }
}

// === impl ConnectionMatrix ===

impl ConnectionMatrix {
    /// The matrix of these devices; each pair is computed once.
    pub fn from_devices(devices: &[&Device]) -> Self {
        let size = devices.len();
        let mut cells = Vec::with_capacity(size * size);
        for (row, a) in devices.iter().enumerate() {
            for (column, b) in devices.iter().enumerate() {
                cells.push(match row.cmp(&column) {
                    std::cmp::Ordering::Greater => cells[column * size + row],
                    _ => Connection::between(a, b),
                });
            }
        }
        Self { size, cells }
    }

    /// Connection of the devices at two positions.
    pub fn at(&self, row: usize, column: usize) -> Connection {
        self.cells[row * self.size + column]
    }

    /// Number of devices.
    pub fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(path: &str, numa_node: Option<u32>) -> Location {
        Location { path: PciePath::from_sysfs(path), numa_node, ..Location::default() }
    }

    /// The level between two paths on NUMA nodes 0 and `numa`.
    fn level(a: &str, b: &str, numa: Option<u32>) -> PcieLevel {
        let (a, b) = (location(a, Some(0)), location(b, numa));
        assert_eq!(PcieLevel::between(&a, &b), PcieLevel::between(&b, &a), "symmetric");
        PcieLevel::between(&a, &b)
    }

    #[test]
    fn levels_are_those_of_nvidia_smi() {
        // Root port 01.0, switch upstream 16:00.0, downstream ports 17:0x.0.
        let gpu = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
        let twin = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.1";
        let sibling = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:01.0";
        let nic = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0";
        let deeper = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0";
        let port = "pci0000:15/0000:15:02.0/0000:20:00.0";
        let root = "pci0000:37/0000:37:01.0/0000:38:00.0";
        for (other, numa, expected) in [
            (twin, Some(0), PcieLevel::Board),
            (sibling, Some(0), PcieLevel::Pix),
            (nic, Some(0), PcieLevel::Pix),
            (deeper, Some(0), PcieLevel::Pxb),
            (port, Some(0), PcieLevel::Phb),
            (root, Some(0), PcieLevel::Node),
            (root, Some(1), PcieLevel::Sys),
            (root, None, PcieLevel::Sys),
            ("", Some(0), PcieLevel::Node),
        ] {
            assert_eq!(level(gpu, other, numa), expected, "{other} on {numa:?}");
        }
    }

    #[test]
    fn devices_on_separate_host_bridges_are_compared_by_numa_node() {
        let (gpu, nic) =
            ("pci0008:00/0008:00:00.0/0008:01:00.0", "pci0002:00/0002:00:00.0/0002:01:00.0");
        for (numa, expected) in
            [(Some(0), PcieLevel::Node), (Some(1), PcieLevel::Sys), (None, PcieLevel::Sys)]
        {
            assert_eq!(level(gpu, nic, numa), expected, "{numa:?}");
        }
        let without_node = |path: &str| location(path, None);
        assert_eq!(
            PcieLevel::between(&without_node(gpu), &without_node(nic)),
            PcieLevel::Sys,
            "unknown nodes are different"
        );
    }

    #[test]
    fn devices_below_one_switch_have_the_address_of_its_upstream_port() {
        let below = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0";
        for (path, expected) in [
            (format!("{below}/0000:18:00.0"), Some("0000:16:00.0")),
            (format!("{below}/0000:18:00.1"), Some("0000:16:00.0")),
            (format!("{below}/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0"), Some("0000:1b:00.0")),
            ("pci0000:15/0000:15:02.0/0000:20:00.0".to_owned(), None),
        ] {
            let switch = PciePath::from_sysfs(&path).and_then(|path| path.switch());
            assert_eq!(switch.map(|it| it.to_string()).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn devices_below_a_controller_with_its_own_host_bridge_are_separate_devices() {
        let path_below = |suffix: &str| format!("pci0000:5d/0000:5d:05.5/pci10000:00/{suffix}");
        let port = path_below("10000:00:02.0/10000:01:00.0");
        for (other, expected) in [
            (path_below("10000:00:02.0/10000:01:00.1"), PcieLevel::Board),
            (path_below("10000:00:03.0/10000:02:00.0"), PcieLevel::Phb),
            ("pci0000:5d/0000:5d:02.0/0000:5e:00.0".to_owned(), PcieLevel::Phb),
            ("pci0000:3a/0000:3a:02.0/0000:3b:00.0".to_owned(), PcieLevel::Node),
        ] {
            assert_eq!(level(&port, &other, Some(0)), expected, "{other}");
        }
    }

    #[test]
    fn two_functions_on_a_root_bus_meet_at_the_host_bridge() {
        let (a, b) = ("pci0000:00/0000:00:02.0", "pci0000:00/0000:00:03.0");
        assert_eq!(level(a, b, Some(0)), PcieLevel::Phb);
    }
}
