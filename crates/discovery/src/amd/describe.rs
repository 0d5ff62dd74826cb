//! Attributes and capacities of AMD GPUs, from PCI, KFD and DRM.
//!
//! Names are those of AMD's DRA driver where the meaning is the same.

use std::path::Path;

use windlass_config::{AmdNaming, Policy};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities, Quantity},
    device::Device,
    resource::ResourceName,
};
use windlass_host::{Host, PciFunction};

use super::kfd::Node;
use crate::facts::{attributes, function_attributes, text_value};

const DOMAIN: &str = "amd.com";

const fn attribute_name(name: &'static str) -> AttributeName {
    AttributeName::new(DOMAIN, name)
}

/// Partition mode, `cpx_nps4`.
pub(super) const PARTITION_PROFILE: AttributeName = attribute_name("partitionProfile");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionMode {
    /// Compute partition mode, `cpx`.
    pub(super) compute: String,
    /// Memory partition mode, `nps4`.
    pub(super) memory: String,
}

/// Compute partition mode of an unpartitioned GPU.
const UNPARTITIONED_MODE: &str = "spx";

/// Default resource of a device: `amd.com/gpu`, or the partition mode's name under `naming: mixed`. A GPU without
/// partition modes is always `amd.com/gpu`.
pub(crate) fn resource(policy: &Policy, device: &Device) -> Option<ResourceName> {
    let profile = device.attributes.get(&PARTITION_PROFILE);
    match profile.filter(|_| policy.families.amd.naming == AmdNaming::Mixed) {
        Some(profile) => format!("{DOMAIN}/{profile}").parse().ok(),
        None => format!("{DOMAIN}/gpu").parse().ok(),
    }
}

/// Partition mode of a GPU; `None` if it has no partition modes.
pub(super) fn partition_mode(host: &Host, folder: &Path) -> Option<PartitionMode> {
    let mode = |file: &str| {
        let mode = host.read_text(folder.join(file))?.to_ascii_lowercase();
        (!mode.is_empty() && mode.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(mode)
    };
    let (compute, memory) = ("current_compute_partition", "current_memory_partition");
    Some(PartitionMode { compute: mode(compute)?, memory: mode(memory)? })
}

/// Attributes common to a GPU and its partitions.
pub(super) fn gpu_attributes(
    host: &Host,
    function: &PciFunction,
    partition_mode: Option<&PartitionMode>,
) -> Attributes {
    let attribute = |file: &str| host.read_text(function.folder().join(file)).and_then(text_value);
    let version = host.read_text("/sys/module/amdgpu/version");
    let mode = |field: fn(&PartitionMode) -> &String| {
        partition_mode.map(field).and_then(|mode| text_value(mode.to_uppercase()))
    };
    let amd_attributes = attributes(
        DOMAIN,
        [
            ("type", text_value("gpu")),
            ("productName", attribute("product_name")),
            ("deviceID", function.device.as_ref().and_then(text_value)),
            ("driverVersion", version.map(|version| AttributeValue::version(&version))),
            ("computePartition", mode(|mode| &mode.compute)),
            ("memoryPartition", mode(|mode| &mode.memory)),
            ("partitionProfile", partition_mode.and_then(|mode| text_value(mode.to_string()))),
        ],
    );
    amd_attributes.into_iter().chain(function_attributes(host, function)).collect()
}

pub(super) fn node_attributes(node: &Node) -> Attributes {
    let target = gfx_name(node.gfx_target);
    let family = target.as_deref().and_then(chip_family);
    attributes(
        DOMAIN,
        [("gfxTarget", target.and_then(text_value)), ("family", family.and_then(text_value))],
    )
}

pub(super) fn capacities(node: &Node) -> Capacities {
    let units = node.simds.checked_div(node.simds_per_cu);
    let capacities = [
        (attribute_name("memory"), Some(Quantity::Bytes(node.memory_bytes))),
        (attribute_name("computeUnits"), units.map(Quantity::Count)),
        (attribute_name("simdUnits"), Some(Quantity::Count(node.simds))),
    ];
    let non_zero = |amount: Option<Quantity>| {
        amount.filter(|amount| !matches!(amount, Quantity::Bytes(0) | Quantity::Count(0)))
    };
    capacities.into_iter().filter_map(|(name, amount)| Some((name, non_zero(amount)?))).collect()
}

/// Memory size that the graphics driver reports.
pub(super) fn memory(host: &Host, function: &PciFunction) -> Capacities {
    let bytes = host.read_text(function.folder().join("mem_info_vram_total"));
    let bytes = bytes.and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0);
    bytes.map(|bytes| (attribute_name("memory"), Quantity::Bytes(bytes))).into_iter().collect()
}

/// Compiler target name: major and minor version, stepping in hexadecimal.
fn gfx_name(target: u64) -> Option<String> {
    let (major, minor, stepping) = (target / 10_000, target / 100 % 100, target % 100);
    (target > 0).then(|| format!("gfx{major}{minor:x}{stepping:x}"))
}

/// Chip family of a target, the attribute `family`: its name in AMD's driver, `AMDGPU_FAMILY_*` of `amdgpu_drm.h`.
fn chip_family(target: &str) -> Option<&'static str> {
    const BY_TARGET: &[(&str, &str)] = &[
        ("gfx902", "RV"),
        ("gfx909", "RV"),
        ("gfx90c", "RV"),
        ("gfx9", "AI"),
        ("gfx1033", "VGH"),
        ("gfx1035", "YC"),
        ("gfx1036", "GC_10_3_6"),
        ("gfx1037", "GC_10_3_7"),
        ("gfx10", "NV"),
        ("gfx1103", "GC_11_0_1"),
        ("gfx115", "GC_11_5_0"),
        ("gfx11", "GC_11_0_0"),
        ("gfx12", "GC_12_0_0"),
        ("gfx8", "VI"),
    ];
    let entry = BY_TARGET.iter().find(|(prefix, _)| target.starts_with(prefix));
    entry.map(|(_, family)| *family)
}

// === impl PartitionMode ===

impl PartitionMode {
    /// True if the GPU is split into several devices.
    pub(super) fn is_partitioned(&self) -> bool {
        self.compute != UNPARTITIONED_MODE
    }
}

impl std::fmt::Display for PartitionMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.compute, self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_as_compilers_name_them() {
        for (target, name, expected) in [
            (90_402, "gfx942", Some("AI")),
            (90_010, "gfx90a", Some("AI")),
            (90_012, "gfx90c", Some("RV")),
            (110_000, "gfx1100", Some("GC_11_0_0")),
            (110_501, "gfx1151", Some("GC_11_5_0")),
            (70_000, "gfx700", None),
        ] {
            let gfx = gfx_name(target).expect("a target");
            assert_eq!((gfx.as_str(), chip_family(&gfx)), (name, expected));
        }
        assert_eq!(gfx_name(0), None);
    }
}
