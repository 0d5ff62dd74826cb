//! Published devices of the machine, and the requests that the demo makes for them.

use std::collections::BTreeMap;

use super::event::Published;

/// Attribute with the PCIe root, for constraints across drivers.
pub(super) const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

pub(super) const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// Attributes with a product name, in order of preference.
const PRODUCT_ATTRIBUTES: [&str; 3] = ["productName", "product", "model"];

/// Published devices, with the device type that the demo requests.
#[derive(Debug)]
pub(super) struct Candidates {
    kind: String,
    devices: Vec<Published>,
}

// === impl Candidates ===

impl Candidates {
    /// Selects GPUs, else the most common type. `None` if no device can be allocated exclusively.
    pub(super) fn of(published: &[Published]) -> Option<Self> {
        let mut counts = BTreeMap::<_, usize>::new();
        for device in published.iter().filter(|device| is_exclusive(device)) {
            *counts.entry(device.kind.clone()).or_default() += 1;
        }
        let most_common =
            counts.iter().max_by_key(|(_, count)| **count).map(|(kind, _)| kind.clone());
        let kind = counts.contains_key("gpu").then(|| "gpu".to_owned()).or(most_common)?;
        Some(Self { kind, devices: published.to_vec() })
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    /// Exclusive devices of the demo's type.
    pub(super) fn exclusive(&self) -> Vec<&Published> {
        self.of_kind(&self.kind).filter(|device| is_exclusive(device)).collect()
    }

    /// CEL selector for exclusive devices; empty if the type has no shared devices.
    pub(super) fn exclusive_selector(&self) -> &'static str {
        let is_mixed = self.of_kind(&self.kind).any(|device| device.is_shared);
        if is_mixed { "!device.allowMultipleAllocations" } else { "" }
    }

    /// CEL expression for the attributes of the last exclusive device, and the names of all devices that match.
    pub(super) fn describe_last(&self) -> (String, Vec<String>) {
        let all: Vec<_> = self.of_kind(&self.kind).collect();
        let Some(last) = all.iter().rfind(|device| is_exclusive(device)) else {
            return Default::default();
        };
        let all_have =
            |name: &&String| all.iter().all(|device| device.attributes.contains_key(*name));
        let product = PRODUCT_ATTRIBUTES.iter().find_map(|word| {
            last.attributes.keys().filter(all_have).find(|name| name.ends_with(&format!("/{word}")))
        });
        let numa = last.attributes.keys().filter(all_have).find(|name| *name == NUMA_NODE);
        let kind = last.attributes.keys().find(|name| name.ends_with("/type"));
        let mut names: Vec<_> = product.into_iter().chain(numa).collect();
        if names.is_empty() {
            names.extend(kind);
        }
        let clause = |name: &&String| {
            let (domain, id) = name.split_once('/').unwrap_or_default();
            format!("device.attributes[\"{domain}\"].{id} == {}", last.attributes[*name])
        };
        let clauses: Vec<_> = names.iter().map(clause).collect();
        let has_same_attributes = |device: &&&Published| {
            names.iter().all(|name| device.attributes.get(*name) == last.attributes.get(*name))
        };
        let matches = all.iter().filter(has_same_attributes).map(|device| device.device.clone());
        (clauses.join(" && "), matches.collect())
    }

    /// Device types `gpu` and `nic`, if a GPU and a NIC share a PCIe root.
    pub(super) fn gpu_and_nic(&self) -> Option<(String, String)> {
        let pcie_root = |device: &&Published| device.attributes.get(PCIE_ROOT).cloned();
        let mut gpus = self.of_kind("gpu").filter(|device| is_exclusive(device));
        let has_nic = |gpu: &Published| {
            let mut nics = self.of_kind("nic").filter(|device| is_exclusive(device));
            pcie_root(&gpu)
                .is_some_and(|gpu_root| nics.any(|nic| pcie_root(&nic).as_ref() == Some(&gpu_root)))
        };
        gpus.any(has_nic).then(|| ("gpu".to_owned(), "nic".to_owned()))
    }

    pub(super) fn attribute(&self, device: &str, name: &str) -> Option<&String> {
        let mut devices = self.devices.iter().filter(|candidate| candidate.device == device);
        devices.next()?.attributes.get(name)
    }

    /// Name of the extended resource for pods without claims.
    pub(super) fn extended_resource(&self) -> String {
        let is_nvidia = |device: &Published| device.attributes.contains_key("gpu.nvidia.com/uuid");
        if self.kind == "gpu" && self.exclusive().into_iter().all(is_nvidia) {
            return "nvidia.com/gpu".to_owned();
        }
        format!("example.com/{}", self.kind)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Published> {
        self.devices.iter().filter(move |device| device.kind == kind)
    }
}

/// True if one claim can allocate the whole device.
fn is_exclusive(device: &Published) -> bool {
    device.taints.is_empty() && !device.is_shared
}
