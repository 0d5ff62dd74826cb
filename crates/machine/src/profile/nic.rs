//! Network adapters: ports with their RDMA devices, the functions that are cut from them, and bonds.

use serde::{Deserialize, Serialize};

use crate::pci::{PciAddress, PciId, PciPath};

/// A network adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Its RDMA device, `mlx5_0`; unset where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Its network interface, `ib0`, `eth0`.
    pub netdev: String,
    /// The way from the host bridge.
    pub path: PciPath,
    /// PCI vendor and device.
    pub pci: PciId,
    /// PCI subsystem vendor and device.
    pub subsystem: PciId,
    /// Its driver; `mlx5_core` if unset.
    #[serde(default = "mlx5_core")]
    pub driver: String,
    /// Index of its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Its IOMMU group, where the machine has an IOMMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Whether the port speaks InfiniBand; Ethernet if not.
    #[serde(default)]
    pub infiniband: bool,
    /// Speed of the port.
    pub rate_gbps: u32,
    /// Whether the cable is in.
    #[serde(default)]
    pub link: LinkState,
    /// Whether the machine reaches the world through it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default_route: bool,
    /// Its virtual functions, if it can have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
    /// Its scalable functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subfunctions: Vec<SubFunction>,
}

/// Whether a port has a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// It has.
    #[default]
    Up,
    /// It has not.
    Down,
}

/// The virtual functions of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sriov {
    /// How many there can be.
    pub total: u16,
    /// How far the first one's address is behind the adapter's; the others follow.
    #[serde(default = "one")]
    pub offset: u16,
    /// PCI vendor and device of each.
    pub pci: PciId,
    /// Those that are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<VirtualFunction>,
}

/// A virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VirtualFunction {
    /// Its driver: that of the adapter, `vfio-pci`, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Its network interface, while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// Its RDMA device, while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Its IOMMU group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Its vDPA device, while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vdpa: Option<Vdpa>,
}

/// A vDPA device: the data path of virtio in hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vdpa {
    /// `vdpa0`.
    pub name: String,
    /// Who uses it.
    pub driver: VdpaDriver,
}

/// Who uses a vDPA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdpaDriver {
    /// A program, through a node: `vhost_vdpa`.
    Vhost,
    /// The kernel, as an interface of its own: `virtio_vdpa`.
    Virtio,
}

/// A scalable function: a part of an adapter that is no PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubFunction {
    /// Its index on the auxiliary bus, the 4 in `mlx5_core.sf.4`.
    pub index: u32,
    /// The number that an administrator gave it.
    pub number: u32,
    /// Its network interface.
    pub netdev: String,
    /// Its RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
}

/// Interfaces that act as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// Its own interface, `bond0`.
    pub name: String,
    /// As the kernel calls it, `802.3ad`, `active-backup`.
    pub mode: BondMode,
    /// Interfaces in it.
    pub interfaces: Vec<String>,
    /// Whether the machine reaches the world through it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default_route: bool,
}

/// How the interfaces of a bond share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BondMode {
    /// One works, the others wait.
    #[serde(rename = "active-backup")]
    ActiveBackup,
    /// All work, as agreed with the switch.
    #[serde(rename = "802.3ad")]
    Lacp,
}

// === impl Nic ===

impl Nic {
    /// The virtual functions that are there, each with its way from the host bridge.
    pub fn virtual_functions(&self) -> impl Iterator<Item = (PciPath, &VirtualFunction)> {
        let sriov = self.sriov.iter();
        sriov.flat_map(|sriov| {
            let places = (0..).map(|nth| self.path.with_address(self.address_of(sriov, nth)));
            places.zip(&sriov.functions)
        })
    }

    /// Addresses count functions, devices and buses as digits of one number.
    fn address_of(&self, sriov: &Sriov, nth: u16) -> PciAddress {
        let own = self.path.address();
        let number = own.routing_id().saturating_add(sriov.offset).saturating_add(nth);
        PciAddress::from_routing_id(own.domain, number)
    }
}

// === impl BondMode ===

impl BondMode {
    /// What `bonding/mode` says: name and number.
    pub(crate) fn in_sysfs(self) -> &'static str {
        match self {
            Self::ActiveBackup => "active-backup 1",
            Self::Lacp => "802.3ad 4",
        }
    }
}

fn mlx5_core() -> String {
    "mlx5_core".to_owned()
}

fn one() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
