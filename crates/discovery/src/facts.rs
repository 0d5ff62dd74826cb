//! Attributes of devices from sysfs. A value that sysfs lacks gives no attribute.

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes};
use windlass_host::{Host, PciFunction};

pub(super) fn attributes<const N: usize>(
    domain: &'static str,
    facts: [(&'static str, Option<AttributeValue>); N],
) -> Attributes {
    let present = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    present.map(|(name, value)| (AttributeName::new(domain, name), value)).collect()
}

/// Attributes of a PCI function: Kubernetes' standard ones, ids and driver.
pub(super) fn function_attributes(host: &Host, function: &PciFunction) -> Attributes {
    let identifiers = attributes(
        "windlass.dev",
        [
            ("pciVendor", function.vendor.as_ref().and_then(text_value)),
            ("pciDevice", function.device.as_ref().and_then(text_value)),
            ("driver", function.driver.as_ref().and_then(text_value)),
        ],
    );
    let values = function.attributes().into_iter().chain(identifiers);
    values.chain(virtualization_attributes(host, function)).collect()
}

/// SR-IOV and IOMMU attributes. Every function has `isSriovVf`, so that selectors can test it on any.
pub(super) fn virtualization_attributes(host: &Host, function: &PciFunction) -> Attributes {
    let folder = function.folder();
    let physical_function = host.link_name(folder.join("physfn"));
    let number = |file: &str| host.read_text(folder.join(file))?.parse::<u32>().ok();
    let has_sriov = number("sriov_totalvfs").is_some_and(|total| total > 0);
    let vfs = has_sriov.then(|| number("sriov_numvfs").unwrap_or(0).into());
    let is_virtual = AttributeValue::Bool(physical_function.is_some());
    attributes(
        "windlass.dev",
        [
            ("isSriovVf", Some(is_virtual)),
            ("pfPciAddress", physical_function.and_then(text_value)),
            ("sriovVfs", vfs.map(AttributeValue::Int)),
            ("iommuGroup", host.link_name(folder.join("iommu_group")).and_then(text_value)),
        ],
    )
}

/// Count with its noun: `1 GPU`, `8 GPUs`.
pub(super) fn count_text(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A string value, unless empty.
pub(super) fn text_value(text: impl AsRef<str>) -> Option<AttributeValue> {
    let text = text.as_ref().trim();
    (!text.is_empty()).then(|| AttributeValue::string(text))
}
