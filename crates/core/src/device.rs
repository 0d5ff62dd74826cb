//! One allocatable device of a node: identity, attributes, location, health.

mod family;
mod kind;
mod node;
mod partition;
mod partition_capacity;
mod source;

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, sync::Arc};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities, Quantity},
    health::Health,
    nvlink::NvLinks,
    pci::{PciAddress, PciePath},
};

pub use family::{Family, MemoryLimiter, Partitioning};
pub use kind::{DeviceKind, KindFacts};
pub use node::{Access, DeviceNode, InvalidAccess};
pub use partition::{MigProfileName, Partition, PossiblePartition};
pub use partition_capacity::PartitionCapacity;
pub use source::{InvalidSourceName, SourceName};

/// Name of a device, stable across restarts, reboots and driver updates.
///
/// Shared text, since every snapshot and list copies ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

/// Text that is not a device id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a device: use 1 to {max} letters, digits, '-', '_', '.' or ':'",
    max = DeviceId::MAX_CHARS
)]
pub struct InvalidDeviceId(String);

/// One device of the inventory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique on the node.
    pub id: DeviceId,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The source that found the device.
    pub source: SourceName,
    /// Sysfs folder, device node, file or network address at which the source found the device; `None` if the
    /// location identifies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Sysfs folder of the device; probes and cleanup steps of its source use files in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Position among devices of its kind, in the driver's order. MIG instances have the index of their GPU.
    pub index: u32,
    /// Health state with its failures.
    pub health: Health,
    /// Attributes, published as DRA attributes.
    pub attributes: Attributes,
    /// Capacities, published as DRA capacities.
    pub capacity: Capacities,
    /// Location in the machine.
    pub place: Location,
    /// Device nodes that a container needs.
    pub nodes: Vec<DeviceNode>,
    /// Further container edits.
    #[serde(skip_serializing_if = "ExtraEdits::is_empty")]
    pub extras: ExtraEdits,
    /// Reason to withhold the device although it is present and possibly healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Reason against exclusive use: the host needs the device or a part of it. Sharing is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_use_refusal: Option<String>,
    /// Reason against sharing. Exclusive use is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing_refusal: Option<String>,
    /// The device of which this is a part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceId>,
    /// Position among the parts of the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// True if the device is divided into parts, which are allocated in its place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partitioned: bool,
    /// Profile and placement of a MIG instance on its GPU.
    #[serde(skip)]
    pub partition: Option<Partition>,
    /// All MIG partitions that the GPU could have, independent of its present instances. Also known with MIG off
    /// if the policy turns MIG on for claims and a mode change needs no reset.
    ///
    /// Not serialised: the list would be longer than the rest of the device.
    #[serde(skip)]
    pub partitions: Arc<[PossiblePartition]>,
}

/// Container edits of a device besides its device nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraEdits {
    /// Environment variables. Values of several devices are joined with commas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files and folders of the host to mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Qualified names in other vendors' CDI documents, `vendor.com/class=name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cdi: Vec<String>,
    /// Optional device nodes of its CDI document. The device works without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<PathBuf>,
    /// Symlinks under which programs expect its device nodes: link path to target.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<PathBuf, PathBuf>,
}

/// A file or folder of the host, mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the container.
    pub container: PathBuf,
    /// True if the container may write to it.
    pub writable: bool,
}

/// Location of a device in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Location {
    /// PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
    /// Path from the host bridge to the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PciePath>,
    /// The nearest NUMA node; `None` if firmware reports none, never -1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Active NVLinks.
    #[serde(skip_serializing_if = "NvLinks::is_empty")]
    pub nvlinks: NvLinks,
    /// xGMI links to other AMD GPUs: MB/s per direction, by peer address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xgmi: BTreeMap<PciAddress, u32>,
}

/// Attributes that hold a product name, most specific first.
const PRODUCT_NAMES: [&str; 3] = ["productName", "model", "usbProductName"];

/// Attribute with the profile of a MIG instance.
pub const MIG_PROFILE: AttributeName = AttributeName::new("nvidia.com", "profile");

const COMPUTE_CAPABILITY: AttributeName = AttributeName::new("nvidia.com", "cudaComputeCapability");

show_text!(DeviceId);
deserialize_from_text!(DeviceId);

// === impl Device ===

impl Device {
    /// A device without attributes, whose health is unknown.
    pub fn new(id: DeviceId, kind: DeviceKind, source: SourceName, since: Timestamp) -> Self {
        Self {
            id,
            kind,
            source,
            origin: None,
            folder: None,
            index: 0,
            health: Health::unknown(since),
            attributes: Attributes::new(),
            capacity: Capacities::new(),
            place: Location::default(),
            nodes: Vec::new(),
            extras: ExtraEdits::default(),
            withheld: None,
            exclusive_use_refusal: None,
            sharing_refusal: None,
            parent: None,
            part: None,
            partitioned: false,
            partition: None,
            partitions: [].into(),
        }
    }

    /// Device nodes that belong to this device alone.
    pub fn own_nodes(&self) -> impl Iterator<Item = &DeviceNode> {
        self.nodes.iter().filter(|node| !node.shared)
    }

    /// Product name from the driver or the device, under any domain: each family's driver uses its own domain.
    pub fn product(&self) -> Option<&str> {
        PRODUCT_NAMES.iter().find_map(|name| {
            let matching = self.attributes.iter().filter(|(key, _)| key.name() == *name);
            let mut texts = matching.filter_map(|(_, value)| match value {
                AttributeValue::String(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            });
            texts.next()
        })
    }

    /// Profile of a MIG instance.
    pub fn mig_profile(&self) -> Option<&str> {
        self.text_attribute(&MIG_PROFILE)
    }

    /// CUDA compute capability as (major, minor), if NVIDIA's driver reports one.
    pub fn compute_capability(&self) -> Option<(u32, u32)> {
        self.text_attribute(&COMPUTE_CAPABILITY).and_then(major_and_minor)
    }

    /// True for a whole GPU that is not divided into parts.
    pub fn is_whole_gpu(&self) -> bool {
        let is_whole = self.parent.is_none() && !self.partitioned;
        self.kind.is_gpu() && !self.kind.is_mig_instance() && is_whole
    }

    /// True for a whole GPU whose memory can be divided among containers by amount: its driver or the kernel limits and
    /// measures the memory of each container.
    pub fn is_divisible(&self) -> bool {
        self.is_whole_gpu() && self.family().memory_limiter.is_some()
    }

    /// PCI address of a whole GPU that a DRM driver of the kernel manages.
    pub fn drm_pci_address(&self) -> Option<PciAddress> {
        let is_drm = self.family().memory_limiter == Some(MemoryLimiter::Kernel);
        self.place.pci.filter(|_| is_drm && self.is_whole_gpu())
    }

    /// Memory in MiB of a GPU, a partition or a MIG instance, if its driver reports the memory.
    pub fn memory_mib(&self) -> Option<u64> {
        let (_, bytes) = self.memory_capacity()?;
        Some(bytes >> 20)
    }

    /// Memory in bytes, as [`Device::memory_mib`], with the name of the capacity.
    pub fn memory_capacity(&self) -> Option<(&'static AttributeName, u64)> {
        let name = self.family().memory?;
        match self.capacity.get(name)? {
            Quantity::Bytes(bytes) => Some((name, *bytes)),
            Quantity::Count(_) => None,
        }
    }

    /// Value of a string or version attribute.
    pub fn text_attribute(&self, name: &AttributeName) -> Option<&str> {
        match self.attributes.get(name)? {
            AttributeValue::String(text) | AttributeValue::Version(text) => Some(text),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => None,
        }
    }

    /// Sort key of lists and placement: kind, source, index, part, PCI address, id.
    pub fn sort_key(&self) -> impl Ord + '_ {
        (self.kind, &self.source, self.index, self.part, self.place.pci, &self.id)
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

// === impl Location ===

impl Location {
    /// Bandwidth of the xGMI link to another GPU, in MB/s per direction.
    pub(crate) fn xgmi_to(&self, peer: PciAddress) -> Option<u32> {
        self.xgmi.get(&peer).copied()
    }
}

// === impl DeviceId ===

impl DeviceId {
    /// Longest id: it must fit into a CDI device name and a label value.
    pub const MAX_CHARS: usize = 63;
}

impl FromStr for DeviceId {
    type Err = InvalidDeviceId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let is_valid = (1..=Self::MAX_CHARS).contains(&text.len()) && text.bytes().all(is_allowed);
        if is_valid { Ok(Self(text.into())) } else { Err(InvalidDeviceId(text.to_owned())) }
    }
}

impl std::borrow::Borrow<str> for DeviceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

// === impl ExtraEdits ===

impl ExtraEdits {
    /// True if the device needs no further edit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_to_their_second_part() {
        assert_eq!(major_and_minor("9.0.0"), Some((9, 0)));
        assert_eq!(major_and_minor("12.1"), Some((12, 1)));
        assert_eq!(major_and_minor("9"), None);
    }

    #[test]
    fn ids_fit_a_cdi_name_and_a_label() {
        for good in ["GPU-0a", "MIG-1_2.3:4", &"x".repeat(63)] {
            assert_eq!(good.parse::<DeviceId>().expect("valid").as_str(), good);
        }
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad:?}");
        }
    }
}
