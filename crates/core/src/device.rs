//! One allocatable thing on a node: identity, facts, place, health.

mod family;
mod kind;
mod node;
mod partition;
mod room;
mod source;

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities},
    health::Health,
    nvlink::NvLinks,
    pci::{PciAddress, PciePath},
};

pub use family::{Cuts, Family, KnownAttributes, Sort};
pub use kind::{DeviceKind, KindFacts};
pub use node::{Access, DeviceNode, InvalidAccess};
pub use partition::{MigProfileName, Partition, PossiblePartition};
pub use room::Room;
pub use source::{InvalidSourceName, SourceName};

/// A device's name: the same after a restart, a reboot and a driver update.
///
/// Shared text, since ids travel through every snapshot and list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

/// A text that cannot name a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a device: use 1 to {max} letters, digits, '-', '_', '.' or ':'",
    max = DeviceId::MAX_CHARS
)]
pub struct InvalidDeviceId(String);

/// A device as one inventory has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name, unique on the node.
    pub id: DeviceId,
    /// What sort of thing it is.
    pub kind: DeviceKind,
    /// Who found it.
    pub source: SourceName,
    /// Where it was found, if that says more than its place: a folder of sysfs, a node, a file, an address
    /// of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The folder of sysfs in which the files are that its description speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Position among devices of its kind, in the driver's order; a MIG instance has its GPU's.
    pub index: u32,
    /// Whether it may be used, and why not.
    pub health: Health,
    /// Typed facts.
    pub attributes: Attributes,
    /// Typed amounts.
    pub capacity: Capacities,
    /// Where it sits in the machine.
    pub place: Place,
    /// Files under `/dev` that a container needs for it.
    pub nodes: Vec<DeviceNode>,
    /// What a container gets besides.
    #[serde(skip_serializing_if = "Extras::is_empty")]
    pub extras: Extras,
    /// Why it is not to be handed out, though it is there and may be well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Why no container may have it to itself: the host, or a part of it, needs it. Several may share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_alone: Option<String>,
    /// Why containers cannot share it. One may have it to itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_shared: Option<String>,
    /// The device this one is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceId>,
    /// Its position among the parts of that device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Whether it is cut into parts, which are then the devices to hand out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partitioned: bool,
    /// Where it stands on its GPU, for a MIG instance.
    #[serde(skip)]
    pub partition: Option<Partition>,
    /// What it could be cut to, whatever it is cut to now: in MIG mode, and before where that is turned on
    /// without a reset. Never listed with the device: it would be longer than all the rest.
    #[serde(skip)]
    pub partitions: Arc<[PossiblePartition]>,
}

/// What a container gets with a device besides device nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Extras {
    /// Environment variables. What several devices say under one name is joined with commas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Qualified names in CDI documents of others, `vendor.com/class=name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cdi: Vec<String>,
    /// Device nodes that its CDI document gives besides. The device serves without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<PathBuf>,
    /// Other names of its nodes, by which programs look for them, each with the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<PathBuf, PathBuf>,
}

/// A file or folder of the host that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Its path on the host.
    pub host: PathBuf,
    /// Its path in the container.
    pub container: PathBuf,
    /// Whether the container may write to it.
    pub writable: bool,
}

/// Where a device sits in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Its PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
    /// The way to it from the host bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PciePath>,
    /// The nearest NUMA node; `None` where the machine does not say, never -1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Its NVLinks.
    #[serde(skip_serializing_if = "NvLinks::is_empty")]
    pub nvlinks: NvLinks,
    /// Its xGMI links to other GPUs of AMD's: megabytes per second and direction, by address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xgmi: BTreeMap<PciAddress, u32>,
}

/// Under which names drivers and devices tell their product, the best first.
const PRODUCT_NAMES: [&str; 3] = ["productName", "model", "usbProductName"];

const COMPUTE_CAPABILITY: AttributeName = AttributeName::new("nvidia.com", "cudaComputeCapability");

// === impl Device ===

impl Device {
    /// A device of which nothing is known but its name.
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
            place: Place::default(),
            nodes: Vec::new(),
            extras: Extras::default(),
            withheld: None,
            not_alone: None,
            not_shared: None,
            parent: None,
            part: None,
            partitioned: false,
            partition: None,
            partitions: [].into(),
        }
    }

    /// The nodes that no other device should have.
    pub fn own_nodes(&self) -> impl Iterator<Item = &DeviceNode> {
        self.nodes.iter().filter(|node| !node.shared)
    }

    /// What it is sold as, in the words of its driver or its own, whatever the domain that they are told under:
    /// each family's driver has one.
    pub fn product(&self) -> Option<&str> {
        PRODUCT_NAMES.iter().find_map(|name| {
            let told = self.attributes.iter().filter(|(known, _)| known.name() == *name);
            let mut texts = told.filter_map(|(_, value)| match value {
                AttributeValue::String(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            });
            texts.next()
        })
    }

    /// The CUDA compute capability, major and minor, where NVIDIA's driver told it.
    pub fn compute_capability(&self) -> Option<(u32, u32)> {
        self.text(&COMPUTE_CAPABILITY).and_then(major_and_minor)
    }

    /// An attribute that is a text or a version.
    pub fn text(&self, name: &AttributeName) -> Option<&str> {
        match self.attributes.get(name)? {
            AttributeValue::String(text) | AttributeValue::Version(text) => Some(text),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => None,
        }
    }

    /// The order in which devices are listed and chosen: by kind, source, index, part, place and
    /// id.
    pub fn order(&self) -> impl Ord + '_ {
        (self.kind, &self.source, self.index, self.part, self.place.pci, &self.id)
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

// === impl Place ===

impl Place {
    /// The bandwidth of the xGMI link to another GPU.
    pub(crate) fn xgmi_to(&self, peer: PciAddress) -> Option<u32> {
        self.xgmi.get(&peer).copied()
    }
}

// === impl DeviceId ===

impl DeviceId {
    /// Longest id: a CDI device name and a label value must be able to hold it.
    pub const MAX_CHARS: usize = 63;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DeviceId {
    type Err = InvalidDeviceId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let valid = (1..=Self::MAX_CHARS).contains(&text.len()) && text.bytes().all(allowed);
        if valid { Ok(Self(text.into())) } else { Err(InvalidDeviceId(text.to_owned())) }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl std::borrow::Borrow<str> for DeviceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

// === impl Extras ===

impl Extras {
    /// Whether it says nothing.
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
