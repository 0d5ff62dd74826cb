//! Labels of AMD's GPUs, with names and values of AMD's node labeller under its two domains.
//!
//! A fact common to all GPUs is one label. A fact that differs is one label per value, with the number of
//! GPUs. Partitions count as GPUs. Firmware labels are omitted: only an opened GPU reports these versions.

use std::collections::BTreeMap;

use super::{
    Label, LabelInput,
    spelling::{in_domain, sanitised},
};
use crate::{
    attribute::AttributeName,
    device::{Device, SourceName},
};

const DOMAIN: &str = "amd.com";
const EARLIER_DOMAIN: &str = "beta.amd.com";

const PRODUCT: AttributeName = AttributeName::new(DOMAIN, "productName");
const DEVICE_ID: AttributeName = AttributeName::new(DOMAIN, "deviceID");
const FAMILY: AttributeName = AttributeName::new(DOMAIN, "family");
const DRIVER: AttributeName = AttributeName::new(DOMAIN, "driverVersion");
const PARTITION_PROFILE: AttributeName = AttributeName::new(DOMAIN, "partitionProfile");
const COMPUTE_UNITS: AttributeName = AttributeName::new(DOMAIN, "computeUnits");
const SIMD_UNITS: AttributeName = AttributeName::new(DOMAIN, "simdUnits");

/// The labels; empty without AMD GPUs.
pub(super) fn gpu_labels(input: &LabelInput<'_>) -> Vec<Label> {
    let devices = input.inventory.devices.iter();
    let is_labelled = |device: &&Device| {
        device.source == SourceName::AMD && !device.partitioned && !device.health.has_vanished()
    };
    let gpus: Vec<_> = devices.filter(is_labelled).collect();
    let Some(first) = gpus.first() else { return Vec::new() };
    let attribute = |name: AttributeName| {
        move |gpu: &Device| gpu.attributes.get(&name).map(ToString::to_string)
    };
    let fact_labels = [
        counts("family", &gpus, attribute(FAMILY)),
        counts("device-id", &gpus, attribute(DEVICE_ID)),
        counts("product-name", &gpus, |gpu| Some(product(&attribute(PRODUCT)(gpu)?))),
        counts("vram", &gpus, vram),
        counts("simd-count", &gpus, |gpu| amount(gpu, &SIMD_UNITS)),
        counts("cu-count", &gpus, |gpu| amount(gpu, &COMPUTE_UNITS)),
    ];
    let partitionable = gpus.iter().any(|gpu| gpu.attributes.contains_key(&PARTITION_PROFILE));
    let mut labels: Vec<_> = fact_labels.into_iter().flatten().collect();
    labels.extend(
        ["compute-partitioning-supported", "memory-partitioning-supported"]
            .map(|name| in_domain(DOMAIN, format_args!("gpu.{name}"), partitionable)),
    );
    let version = attribute(DRIVER)(first);
    labels.extend(version.map(|version| in_domain(DOMAIN, "gpu.driver-version", version)));
    labels.extend(partition_profile(&gpus));
    labels
}

/// Partition profile, if all GPUs have the same.
fn partition_profile(gpus: &[&Device]) -> Option<Label> {
    let mut profiles = gpus.iter().map(|gpu| gpu.attributes.get(&PARTITION_PROFILE));
    let first = profiles.next()??;
    let are_equal = profiles.all(|profile| profile == Some(first));
    are_equal.then(|| in_domain(DOMAIN, "gpu.compute-memory-partition", first))
}

/// Labels of one fact: its value if all GPUs agree, else the number of GPUs by value. The earlier domain has these
/// numbers in either case.
fn counts(name: &str, gpus: &[&Device], fact: impl Fn(&Device) -> Option<String>) -> Vec<Label> {
    let mut values: BTreeMap<String, usize> = BTreeMap::new();
    for value in gpus.iter().filter_map(|gpu| fact(gpu)) {
        *values.entry(value).or_default() += 1;
    }
    let count =
        |domain, value: &str, count| in_domain(domain, format_args!("gpu.{name}.{value}"), count);
    let earlier_labels = values.iter().map(|(value, number)| count(EARLIER_DOMAIN, value, number));
    let mut labels: Vec<_> = earlier_labels.collect();
    match values.iter().next() {
        Some((value, _)) if values.len() == 1 => labels.extend(
            [DOMAIN, EARLIER_DOMAIN]
                .map(|domain| in_domain(domain, format_args!("gpu.{name}"), value)),
        ),
        _ => labels.extend(values.iter().map(|(value, number)| count(DOMAIN, value, number))),
    }
    labels
}

/// Product name in the spelling of AMD's labeller: blanks become `_`, brackets are dropped.
fn product(name: &str) -> String {
    sanitised(&name.replace(' ', "_"))
}

/// Memory in whole gigabytes, rounded.
fn vram(gpu: &Device) -> Option<String> {
    Some(format!("{}G", (gpu.memory_mib()? + 512) / 1_024))
}

fn amount(gpu: &Device, name: &AttributeName) -> Option<String> {
    gpu.capacity.get(name).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        attribute::{AttributeValue, Quantity},
        device::DeviceKind,
        inventory::Inventory,
        labels::{HostFacts, InstanceNames},
    };

    const MEMORY: AttributeName = AttributeName::new(DOMAIN, "memory");

    fn gpu(id: &str, memory_mib: u64) -> Device {
        let (id, kind) = (id.parse().expect("valid"), DeviceKind::Gpu);
        let device = Device::new(id, kind, SourceName::AMD, Timestamp::UNIX_EPOCH);
        let texts = [
            (PRODUCT, "AMD Instinct MI300X (OAM)"),
            (DEVICE_ID, "74a1"),
            (FAMILY, "AI"),
            (DRIVER, "6.12.12"),
            (PARTITION_PROFILE, "spx_nps1"),
        ];
        Device {
            attributes: texts.map(|(name, text)| (name, AttributeValue::string(text))).into(),
            capacity: [
                (MEMORY, Quantity::Bytes(memory_mib << 20)),
                (COMPUTE_UNITS, Quantity::Count(304)),
                (SIMD_UNITS, Quantity::Count(1_216)),
            ]
            .into(),
            ..device
        }
    }

    fn labelled(devices: Vec<Device>) -> BTreeMap<String, String> {
        let (inventory, offerings) = (Inventory { devices, ..Default::default() }, BTreeMap::new());
        let input = LabelInput {
            inventory: &inventory,
            offerings: &offerings,
            instances: InstanceNames::Mixed,
            host: &HostFacts::default(),
            enforcement: None,
            timestamp: None,
        };
        gpu_labels(&input).into_iter().collect()
    }

    #[test]
    fn a_common_fact_is_one_label_and_a_differing_fact_is_counted_by_value() {
        let uniform = labelled(vec![gpu("a", 196_592), gpu("b", 196_592)]);
        for (key, value) in [
            ("amd.com/gpu.vram", "192G"),
            ("beta.amd.com/gpu.vram", "192G"),
            ("beta.amd.com/gpu.vram.192G", "2"),
            ("amd.com/gpu.cu-count", "304"),
            ("amd.com/gpu.simd-count", "1216"),
            ("amd.com/gpu.device-id", "74a1"),
            ("amd.com/gpu.family", "AI"),
            ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
            ("amd.com/gpu.driver-version", "6.12.12"),
            ("amd.com/gpu.compute-memory-partition", "spx_nps1"),
            ("amd.com/gpu.compute-partitioning-supported", "true"),
        ] {
            assert_eq!(uniform.get(key).map(String::as_str), Some(value), "{key}");
        }
        let mixed = labelled(vec![gpu("a", 196_592), gpu("b", 24_574)]);
        assert_eq!(mixed.get("amd.com/gpu.vram"), None);
        assert_eq!(mixed["amd.com/gpu.vram.192G"], "1");
        assert_eq!(mixed["amd.com/gpu.vram.24G"], "1");
        assert!(labelled(Vec::new()).is_empty());
    }
}
