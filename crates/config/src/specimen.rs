//! A device that has everything its source may know, to ask an expression about before there is a device:
//! `questions` does.

use std::str::FromStr as _;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::{Device, DeviceId, DeviceKind, SourceName},
};

use super::{Selector, SourceRule, document::Lined};

/// What a built-in source says of its devices under a domain, by type. What a device lacks, another may have.
struct Known {
    source: &'static str,
    domain: &'static str,
    texts: &'static [&'static str],
    numbers: &'static [&'static str],
    truths: &'static [&'static str],
    versions: &'static [&'static str],
    /// What is now of one sort and now of another: a version where it is one, else a text.
    either: &'static [&'static str],
}

const NOTHING: Known = Known {
    source: "nvidia",
    domain: OURS,
    texts: &[],
    numbers: &[],
    truths: &[],
    versions: &[],
    either: &[],
};

/// What is said of any PCI function.
const FUNCTION: Known = Known {
    texts: &["pciVendor", "pciDevice", "pciClass", "driver", "iommuGroup", "pfPciAddress"],
    numbers: &["sriovVfs"],
    truths: &["isSriovVf"],
    ..NOTHING
};

const OURS: &str = "windlass.dev";

#[rustfmt::skip]
static KNOWN: [Known; 11] = [
    Known {
        domain: "nvidia.com",
        texts: &[
            "type", "productName", "brand", "architecture", "uuid", "serial", "parentUUID", "profile",
            "fabricState", "fabricClusterUUID",
        ],
        numbers: &["index", "minor", "nvlinkGeneration", "parentIndex", "instanceIndex", "fabricCliqueID"],
        truths: &[
            "migCapable", "migEnabled", "pendingRowRemap", "pendingPageRetirement", "nvlinkDegraded",
            "thermalSlowdown", "powerSlowdown", "fabricDegraded",
        ],
        versions: &["cudaComputeCapability", "cudaDriverVersion"],
        either: &["driverVersion"],
        ..NOTHING
    },
    Known { texts: &["simulated"], ..NOTHING },
    Known {
        source: "nics",
        texts: &[
            "acpiIndex", "driver", "pciVendor", "pciDevice", "pciClass", "iommuGroup", "auxiliaryDevice", "ifName", "mac", "rdmaDevice",
            "linkLayer", "rate", "portState", "pKey", "rdmaNetns", "pfName", "pfPciAddress", "representor",
            "vdpaType", "vdpaDevice",
        ],
        numbers: &["mtu", "sfNumber", "sriovVfs", "vfIndex"],
        truths: &["rdma", "sriov", "isSriovVf"],
        ..NOTHING
    },
    Known {
        source: "nics",
        domain: "dra.net",
        texts: &["ifName", "mac", "encapsulation", "state"],
        numbers: &["mtu"],
        truths: &["rdma"],
        ..NOTHING
    },
    Known {
        source: "amd",
        domain: "amd.com",
        texts: &[
            "type", "productName", "deviceID", "computePartition", "memoryPartition", "partitionProfile",
            "gfxTarget", "family",
        ],
        either: &["driverVersion", "firmware"],
        ..NOTHING
    },
    Known { source: "amd", ..FUNCTION },
    Known {
        source: "intel",
        domain: "gpu.intel.com",
        texts: &["driver", "family", "pciId"],
        truths: &["integrated", "virtualFunction"],
        ..NOTHING
    },
    Known { source: "intel", ..FUNCTION },
    Known {
        source: "fpga",
        domain: "amd.com",
        texts: &["shell", "shellTimestamp", "logicUuid", "serialNumber", "deviceID", "managementFunction"],
        numbers: &["fpgas"],
        ..NOTHING
    },
    Known {
        source: "fpga",
        domain: "fpga.intel.com",
        texts: &["interfaceId", "afuId", "bitstreamId"],
        ..NOTHING
    },
    Known { source: "fpga", ..FUNCTION },
];

/// What stands for any text.
pub(super) fn any() -> AttributeValue {
    AttributeValue::string("0")
}

/// All that is known of devices before there is one.
pub(super) struct Specimen {
    /// A device that has everything of which the sort is known.
    pub(super) device: Device,
    /// What some devices have, now of one sort and now of another.
    pub(super) either: Vec<(&'static str, &'static str)>,
    /// What else they may have.
    pub(super) others: Others,
}

/// What devices may have besides what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Nothing.
    None,
    /// What a driver or a later version says; a name that is nearly a known one is a slip.
    Few,
    /// What somebody writes into a file.
    Any,
}

// === impl Specimen ===

impl Specimen {
    /// A device of a source, with these attributes and those of any place.
    pub(super) fn new(source: SourceName, attributes: Attributes, others: Others) -> Self {
        let id = DeviceId::from_str("any-device").expect("letters and a dash");
        let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        let place = [
            (standard::PCI_BUS_ID, any()),
            (standard::PCIE_ROOT, any()),
            (standard::NUMA_NODE, AttributeValue::Int(0)),
        ];
        let attributes = place.into_iter().chain(attributes).collect();
        Self { device: Device { attributes, ..new }, either: Vec::new(), others }
    }

    /// What a selector is about, if that is known without looking: the devices of a source that is built in,
    /// or of one of the configuration.
    pub(super) fn of(selector: &Selector, sources: &[Lined<SourceRule>]) -> Option<Self> {
        let source = selector.source.clone().or_else(|| only_source(selector.kind?))?;
        if let Some(described) = sources.iter().find(|described| described.value.name == source) {
            return Some(described.value.specimen());
        }
        let known = || KNOWN.iter().filter(|known| known.source == source.as_str());
        known().next()?;
        let attributes = known().flat_map(Known::attributes).collect();
        let either =
            known().flat_map(|known| known.either.iter().map(|name| (known.domain, *name)));
        Some(Self {
            either: either.collect(),
            ..Self::new(source.clone(), attributes, Others::Few)
        })
    }
}

/// The source of all devices of a kind.
fn only_source(kind: DeviceKind) -> Option<SourceName> {
    match kind {
        DeviceKind::Nic => Some(SourceName::NICS),
        DeviceKind::Fpga => Some(SourceName::FPGA),
        DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Nvme | DeviceKind::Other => None,
    }
}

// === impl Known ===

impl Known {
    fn attributes(&self) -> impl Iterator<Item = (AttributeName, AttributeValue)> {
        let sorts = [
            (self.texts, any()),
            (self.numbers, AttributeValue::Int(0)),
            (self.truths, AttributeValue::Bool(false)),
            (self.versions, AttributeValue::version("1.0")),
        ];
        let domain = self.domain;
        sorts.into_iter().flat_map(move |(names, value)| {
            names.iter().map(move |name| (AttributeName::new(domain, name), value.clone()))
        })
    }
}
