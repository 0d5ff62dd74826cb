//! Network adapters: ports with RDMA devices, virtual and scalable functions, and bonds.

use serde::{Deserialize, Serialize};

use crate::pci::{PciAddress, PciId, PciPath};

/// Network adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// RDMA device, `mlx5_0`; unset on an adapter without RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Network interface, `ib0`, `eth0`.
    pub netdev: String,
    /// Path from the host bridge.
    pub path: PciPath,
    /// PCI vendor and device id.
    pub pci: PciId,
    /// PCI subsystem vendor and device id.
    pub subsystem: PciId,
    /// Bound driver; `mlx5_core` if unset.
    #[serde(default = "default_driver")]
    pub driver: String,
    /// Index of the NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// IOMMU group, on a machine with an IOMMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// True for InfiniBand, false for Ethernet.
    #[serde(default)]
    pub infiniband: bool,
    /// Speed of the port.
    pub rate_gbps: u32,
    /// Link state of the port.
    #[serde(default)]
    pub link: LinkState,
    /// True if the default route uses the adapter.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default_route: bool,
    /// SR-IOV capability of the adapter, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
    /// Scalable functions of the adapter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subfunctions: Vec<SubFunction>,
}

/// Link state of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The cable is plugged in.
    #[default]
    Up,
    /// The cable is unplugged.
    Down,
}

/// Virtual functions of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sriov {
    /// Highest number of virtual functions.
    pub total: u16,
    /// Offset of the first function's address from the adapter's address. The other functions follow.
    #[serde(default = "default_offset")]
    pub offset: u16,
    /// PCI vendor and device id of each function.
    pub pci: PciId,
    /// Existing virtual functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<VirtualFunction>,
}

/// Virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VirtualFunction {
    /// Bound driver: the adapter's driver, `vfio-pci`, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Network interface, present while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// RDMA device, present while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// IOMMU group of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// vDPA device, present while the adapter's driver is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vdpa: Option<Vdpa>,
}

/// vDPA device: the data path of virtio in hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vdpa {
    /// Name of the device, `vdpa0`.
    pub name: String,
    /// Bound vDPA driver.
    pub driver: VdpaDriver,
}

/// Driver of a vDPA device. It determines the user of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdpaDriver {
    /// A program uses the device through a node: `vhost_vdpa`.
    Vhost,
    /// The kernel uses the device as a network interface: `virtio_vdpa`.
    Virtio,
}

/// Scalable function: a part of an adapter without a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubFunction {
    /// Index on the auxiliary bus, the 4 in `mlx5_core.sf.4`.
    pub index: u32,
    /// Function number set by an administrator.
    pub number: u32,
    /// Network interface of the function.
    pub netdev: String,
    /// RDMA device of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
}

/// Bonded network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// Interface of the bond, `bond0`.
    pub name: String,
    /// Mode in the kernel's notation, `802.3ad`, `active-backup`.
    pub mode: BondMode,
    /// Member interfaces.
    pub interfaces: Vec<String>,
    /// True if the default route uses the bond.
    #[serde(default, skip_serializing_if = "is_false")]
    pub default_route: bool,
}

/// Bonding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BondMode {
    /// One member is active; the others wait.
    #[serde(rename = "active-backup")]
    ActiveBackup,
    /// All members are active, negotiated with the switch.
    #[serde(rename = "802.3ad")]
    Lacp,
}

// === impl Nic ===

impl Nic {
    /// Existing virtual functions, each with its path from the host bridge.
    pub fn virtual_functions(&self) -> impl Iterator<Item = (PciPath, &VirtualFunction)> {
        let sriov = self.sriov.iter();
        sriov.flat_map(|sriov| {
            let paths = (0..).map(|nth| self.path.with_address(self.address_of(sriov, nth)));
            paths.zip(&sriov.functions)
        })
    }

    /// Address of the nth function: the adapter's routing id plus the offset and `nth`.
    fn address_of(&self, sriov: &Sriov, nth: u16) -> PciAddress {
        let adapter = self.path.address();
        let number = adapter.routing_id().saturating_add(sriov.offset).saturating_add(nth);
        PciAddress::from_routing_id(adapter.domain, number)
    }
}

// === impl BondMode ===

impl BondMode {
    /// Text of `bonding/mode`: name and number.
    pub(crate) fn sysfs_text(self) -> &'static str {
        match self {
            Self::ActiveBackup => "active-backup 1",
            Self::Lacp => "802.3ad 4",
        }
    }
}

fn default_driver() -> String {
    "mlx5_core".to_owned()
}

fn default_offset() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
