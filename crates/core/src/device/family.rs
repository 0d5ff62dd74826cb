//! The families that are built in: a row for each, of what it declares about itself.
//!
//! Layers above discovery ask this table instead of asking whose a device is.

use super::{Device, SourceName};
use crate::attribute::AttributeName;

/// Facts that a family of devices declares about itself.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    /// The class of its CDI documents, where that is not the name of its source.
    pub cdi_class: Option<&'static str>,
    /// The prefix of short names of its GPUs, where that is not the name of its source in capitals.
    pub prefix: Option<&'static str>,
    /// How its devices are cut.
    pub cuts: Cuts,
    /// NVIDIA's container toolkit serves its containers: by variables, by position, with IMEX channels.
    pub has_toolkit: bool,
    /// Its driver manages GPUs: shares them by MPS and in intervals, tells who computes, resets them.
    pub is_managed: bool,
    /// A device is another thing once it is programmed, and says so.
    pub is_programmed: bool,
    /// The attribute that every device has which its driver described.
    pub described_by: Option<&'static AttributeName>,
    /// The attributes that its devices may have.
    pub attributes: &'static [&'static [KnownAttributes]],
}

/// How devices of a family are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Not at all.
    Never,
    /// Into parts of their kind, which are offered in place of the whole.
    Parts,
    /// Into MIG instances, by strategy or for claims.
    Mig,
}

/// Attributes of one domain and one type. What a device lacks, another may have.
#[derive(Debug)]
pub struct KnownAttributes {
    /// The domain.
    pub domain: &'static str,
    /// Their type.
    pub sort: Sort,
    /// Their names.
    pub names: &'static [&'static str],
}

/// The type of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A text.
    Text,
    /// A number.
    Int,
    /// A truth.
    Bool,
    /// A version.
    Version,
    /// A version where it is one, else a text.
    Either,
}

const OURS: &str = "windlass.dev";

static PRODUCT_NAME: AttributeName = AttributeName::new("nvidia.com", "productName");

/// Attributes of any PCI function.
#[rustfmt::skip]
const FUNCTION: &[KnownAttributes] = &[
    all(OURS, Sort::Text, &["pciVendor", "pciDevice", "pciClass", "driver", "iommuGroup", "pfPciAddress"]),
    all(OURS, Sort::Int, &["sriovVfs"]),
    all(OURS, Sort::Bool, &["isSriovVf"]),
];

/// Defaults, also for sources of the configuration.
const NO_FAMILY: Family = Family {
    name: "",
    cdi_class: None,
    prefix: None,
    cuts: Cuts::Never,
    has_toolkit: false,
    is_managed: false,
    is_programmed: false,
    described_by: None,
    attributes: &[],
};

#[rustfmt::skip]
static FAMILIES: [Family; 6] = [
    Family {
        name: "nvidia", cdi_class: Some("gpu"), prefix: Some("GPU"), cuts: Cuts::Mig, has_toolkit: true, is_managed: true,
        is_programmed: false, described_by: Some(&PRODUCT_NAME),
        attributes: &[&[
            all("nvidia.com", Sort::Text, &[
                "type", "productName", "brand", "architecture", "uuid", "serial", "parentUUID", "profile",
                "fabricState", "fabricClusterUUID",
            ]),
            all("nvidia.com", Sort::Int, &[
                "index", "minor", "nvlinkGeneration", "parentIndex", "instanceIndex", "fabricCliqueID",
            ]),
            all("nvidia.com", Sort::Bool, &[
                "migCapable", "migEnabled", "pendingRowRemap", "pendingPageRetirement", "nvlinkDegraded",
                "thermalSlowdown", "powerSlowdown", "fabricDegraded",
            ]),
            all("nvidia.com", Sort::Version, &["cudaComputeCapability", "cudaDriverVersion"]),
            all("nvidia.com", Sort::Either, &["driverVersion"]),
            all(OURS, Sort::Text, &["simulated"]),
        ]],
    },
    Family {
        name: "nics", cdi_class: Some("nic"),
        attributes: &[&[
            all(OURS, Sort::Text, &[
                "acpiIndex", "driver", "pciVendor", "pciDevice", "pciClass", "iommuGroup", "auxiliaryDevice", "ifName",
                "mac", "rdmaDevice", "linkLayer", "rate", "portState", "pKey", "rdmaNetns", "pfName", "pfPciAddress",
                "representor", "vdpaType", "vdpaDevice",
            ]),
            all(OURS, Sort::Int, &["mtu", "sfNumber", "sriovVfs", "vfIndex"]),
            all(OURS, Sort::Bool, &["rdma", "sriov", "isSriovVf"]),
            all("dra.net", Sort::Text, &["ifName", "mac", "encapsulation", "state"]),
            all("dra.net", Sort::Int, &["mtu"]),
            all("dra.net", Sort::Bool, &["rdma"]),
        ]],
        ..NO_FAMILY
    },
    Family {
        name: "amd", cuts: Cuts::Parts,
        attributes: &[&[
            all("amd.com", Sort::Text, &[
                "type", "productName", "deviceID", "computePartition", "memoryPartition", "partitionProfile",
                "gfxTarget", "family",
            ]),
            all("amd.com", Sort::Either, &["driverVersion", "firmware"]),
        ], FUNCTION],
        ..NO_FAMILY
    },
    Family {
        name: "intel",
        attributes: &[&[
            all("gpu.intel.com", Sort::Text, &["driver", "family", "pciId"]),
            all("gpu.intel.com", Sort::Bool, &["integrated", "virtualFunction"]),
        ], FUNCTION],
        ..NO_FAMILY
    },
    Family {
        name: "fpga", is_programmed: true,
        attributes: &[&[
            all("amd.com", Sort::Text, &[
                "shell", "shellTimestamp", "logicUuid", "serialNumber", "deviceID", "managementFunction",
            ]),
            all("amd.com", Sort::Int, &["fpgas"]),
            all("fpga.intel.com", Sort::Text, &["interfaceId", "afuId", "bitstreamId"]),
        ], FUNCTION],
        ..NO_FAMILY
    },
    Family { name: "nvme", ..NO_FAMILY },
];

const fn all(domain: &'static str, sort: Sort, names: &'static [&'static str]) -> KnownAttributes {
    KnownAttributes { domain, sort, names }
}

// === impl SourceName ===

impl SourceName {
    /// NVIDIA's GPUs and their MIG instances.
    pub const NVIDIA: Self = Self::fixed("nvidia");
    /// Network interfaces.
    pub const NICS: Self = Self::fixed("nics");
    /// AMD's GPUs and their partitions.
    pub const AMD: Self = Self::fixed("amd");
    /// Intel's GPUs.
    pub const INTEL: Self = Self::fixed("intel");
    /// FPGAs.
    pub const FPGA: Self = Self::fixed("fpga");
    /// NVMe drives, which have a place and are not handed out.
    pub const NVME: Self = Self::fixed("nvme");

    /// The source is there without a configuration.
    pub fn is_built_in(&self) -> bool {
        FAMILIES.iter().any(|family| family.name == self.as_str())
    }

    /// The facts that all its devices share.
    pub fn family(&self) -> &'static Family {
        FAMILIES.iter().find(|family| family.name == self.as_str()).unwrap_or(&NO_FAMILY)
    }
}

// === impl Device ===

impl Device {
    /// The facts that all devices of its source share.
    pub fn family(&self) -> &'static Family {
        self.source.family()
    }
}
