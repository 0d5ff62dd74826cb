//! A device that has everything its source may know, to ask an expression about before there is a device.

use std::str::FromStr as _;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::{Device, DeviceId, DeviceKind, SourceName},
    selector::{DeviceExpression, NoAnswer},
};

use super::Selector;

/// What a built-in source says of its devices under a domain, by type. What is now a text and now a version
/// is not in it; what a device lacks, another may have.
struct Known {
    source: &'static str,
    domain: &'static str,
    texts: &'static [&'static str],
    numbers: &'static [&'static str],
    truths: &'static [&'static str],
    versions: &'static [&'static str],
}

const NOTHING: Known =
    Known { source: "nvidia", domain: OURS, texts: &[], numbers: &[], truths: &[], versions: &[] };

/// What is said of any PCI function.
const FUNCTION: Known = Known {
    texts: &["pciVendor", "pciDevice", "driver", "iommuGroup", "pfPciAddress"],
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
        ..NOTHING
    },
    Known { texts: &["simulated"], ..NOTHING },
    Known {
        source: "nics",
        texts: &[
            "acpiIndex", "driver", "pciVendor", "pciDevice", "auxiliaryDevice", "ifName", "mac", "rdmaDevice",
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

/// A device of a source, with these attributes and those of any place.
pub(super) fn specimen(source: SourceName, attributes: Attributes) -> Device {
    let id = DeviceId::from_str("any-device").expect("letters and a dash");
    let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
    let place = [
        (standard::PCI_BUS_ID, any()),
        (standard::PCIE_ROOT, any()),
        (standard::NUMA_NODE, AttributeValue::Int(0)),
    ];
    Device { attributes: place.into_iter().chain(attributes).collect(), ..new }
}

/// Why an expression has no answer for any such device: what it asks of a value is of another type.
pub(super) fn misuse(expression: &DeviceExpression, specimen: &Device) -> Option<NoAnswer> {
    expression.matches(specimen).err().filter(NoAnswer::is_misuse)
}

/// As [`misuse`], of what a selector is about, if that is known without looking.
pub(super) fn misuse_in(selector: &Selector) -> Option<NoAnswer> {
    let source = selector.source.clone().or_else(|| only_source(selector.kind?))?;
    let known = KNOWN.iter().filter(|known| known.source == source.as_str());
    let attributes: Attributes = known.flat_map(Known::attributes).collect();
    let is_known = !attributes.is_empty();
    let misuse = |expression| misuse(expression, &specimen(source, attributes));
    selector.expression.as_ref().filter(|_| is_known).and_then(misuse)
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
