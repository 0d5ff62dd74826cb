//! What a machine's published devices allow to be shown.

use std::collections::BTreeMap;

use super::event::Published;

/// Where a device is, for constraints over drivers.
pub(super) const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The NUMA node of a device.
pub(super) const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// What devices are described by in the story, the first that all of them have.
const TELLING: [&str; 3] = ["productName", "product", "model"];

/// The published devices, and which type of them the story is about.
#[derive(Debug)]
pub(super) struct Ground {
    kind: String,
    devices: Vec<Published>,
}

// === impl Ground ===

impl Ground {
    /// The story is about GPUs, or about what there is most of. `None` if no claim can have a device alone.
    pub(super) fn of(published: &[Published]) -> Option<Self> {
        let mut counts = BTreeMap::<_, usize>::new();
        for device in published.iter().filter(|it| is_to_be_had(it)) {
            *counts.entry(device.kind.clone()).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(kind, _)| kind.clone());
        let kind = counts.contains_key("gpu").then(|| "gpu".to_owned()).or(most)?;
        Some(Self { kind, devices: published.to_vec() })
    }

    /// The type of devices that the story is about.
    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    /// The devices of that type that one claim at a time may have.
    pub(super) fn alone(&self) -> Vec<&Published> {
        self.of_kind(&self.kind).filter(|it| is_to_be_had(it)).collect()
    }

    /// Leaves out what several claims share, where there is something of that.
    pub(super) fn only_alone(&self) -> &'static str {
        let is_mixed = self.of_kind(&self.kind).any(|device| device.is_shared);
        if is_mixed { "!device.allowMultipleAllocations" } else { "" }
    }

    /// An expression that describes the last device, and every device that it is true of.
    pub(super) fn described(&self) -> (String, Vec<String>) {
        let all: Vec<_> = self.of_kind(&self.kind).collect();
        let Some(last) = all.iter().rfind(|it| is_to_be_had(it)) else { return Default::default() };
        let have = |name: &&String| all.iter().all(|it| it.attributes.contains_key(*name));
        let telling = TELLING.iter().find_map(|word| {
            last.attributes.keys().filter(have).find(|name| name.ends_with(&format!("/{word}")))
        });
        let numa = last.attributes.keys().filter(have).find(|name| *name == NUMA_NODE);
        let kind = last.attributes.keys().find(|name| name.ends_with("/type"));
        let mut names: Vec<_> = telling.into_iter().chain(numa).collect();
        if names.is_empty() {
            names.extend(kind);
        }
        let clause = |name: &&String| {
            let (domain, id) = name.split_once('/').unwrap_or_default();
            format!("device.attributes[\"{domain}\"].{id} == {}", last.attributes[*name])
        };
        let clauses: Vec<_> = names.iter().map(clause).collect();
        let is_like = |it: &&&Published| {
            names.iter().all(|name| it.attributes.get(*name) == last.attributes.get(*name))
        };
        let fitting = all.iter().filter(is_like).map(|it| it.device.clone());
        (clauses.join(" && "), fitting.collect())
    }

    /// The types of a GPU and a NIC that are below one PCIe root.
    pub(super) fn pair(&self) -> Option<(String, String)> {
        let root = |it: &&Published| it.attributes.get(PCIE_ROOT).cloned();
        let mut gpus = self.of_kind("gpu").filter(|it| is_to_be_had(it));
        let is_near = |gpu: &Published| {
            let mut nics = self.of_kind("nic").filter(|it| is_to_be_had(it));
            root(&gpu).is_some_and(|at| nics.any(|nic| root(&nic).as_ref() == Some(&at)))
        };
        gpus.any(is_near).then(|| ("gpu".to_owned(), "nic".to_owned()))
    }

    /// An attribute of a device.
    pub(super) fn attribute(&self, device: &str, name: &str) -> Option<&String> {
        let mut devices = self.devices.iter().filter(|it| it.device == device);
        devices.next()?.attributes.get(name)
    }

    /// What pods ask for that know of device plugins only.
    pub(super) fn extended_resource(&self) -> String {
        let is_nvidias = |it: &Published| it.attributes.contains_key("gpu.nvidia.com/uuid");
        if self.kind == "gpu" && self.alone().into_iter().all(is_nvidias) {
            return "nvidia.com/gpu".to_owned();
        }
        format!("example.com/{}", self.kind)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Published> {
        self.devices.iter().filter(move |it| it.kind == kind)
    }
}

fn is_to_be_had(device: &Published) -> bool {
    device.taints.is_empty() && !device.is_shared
}
