//! Assignment of devices to resources by the configuration.

use std::collections::BTreeMap;

use windlass_config::{MigStrategy, Policy, ResourceRule, Resources, Sharing, Unmatched};
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceId, Partitioning},
    inventory::Inventory,
    resource::ResourceName,
};
use windlass_discovery::default_resource;

const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");

/// Result of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    Resource(AssignedResource),
    /// Withheld by the configuration, with the reason.
    Withheld(String),
    /// Unusable in its current state, with the reason. A device that was offered stays listed.
    Unusable(String),
    /// No resource: other devices represent the device, or no rule applies to it.
    Unassigned,
}

/// A resource, and how a device is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedResource {
    /// The resource.
    pub name: ResourceName,
    /// Sharing of its devices.
    pub sharing: Sharing,
}

/// Resource of each device that the configuration assigns to one.
pub fn assigned_resources(
    policy: &Policy,
    inventory: &Inventory,
) -> BTreeMap<DeviceId, AssignedResource> {
    let assigner = Assigner::new(policy, inventory);
    let resource = |device: &Device| match assigner.assign(device) {
        Assignment::Resource(resource) => Some((device.id.clone(), resource)),
        Assignment::Withheld(_) | Assignment::Unusable(_) | Assignment::Unassigned => None,
    };
    inventory.devices.iter().filter_map(resource).collect()
}

/// Ability of a device to serve a container exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExclusiveUse {
    Possible,
    /// Other devices represent the device, or the host uses it too.
    Impossible,
}

/// Rules of assignment: the policy, and node-wide facts.
pub(super) struct Assigner<'a> {
    policy: &'a Policy,
    inventory: &'a Inventory,
    /// Requirement of the MIG strategy `single`, if any GPU is divided into instances.
    single: Option<SingleStrategy>,
}

/// Requirement of the MIG strategy `single`.
struct SingleStrategy {
    /// Required profile; `None` if no GPU is divided into instances of one profile.
    profile: Option<String>,
}

// === impl Assigner ===

impl<'a> Assigner<'a> {
    pub(super) fn new(policy: &'a Policy, inventory: &'a Inventory) -> Self {
        // Instances that were created for claims are not part of the administrator's layout.
        let is_configured = |gpu: &&Device| {
            gpu.family().partitioning == Partitioning::Mig
                && !policy.creates_instances_for_claims(gpu)
        };
        let gpus = || inventory.devices.iter().filter(is_configured);
        let has_instances = |gpu: &Device| present_parts(inventory, &gpu.id).next().is_some();
        let applies = policy.mig == MigStrategy::Single && gpus().any(has_instances);
        let single =
            applies.then(|| SingleStrategy { profile: commonest_mig_profile(inventory, gpus()) });
        Self { policy, inventory, single }
    }

    pub(super) fn assign(&self, device: &Device) -> Assignment {
        if self.is_represented(device) {
            return Assignment::Unassigned;
        }
        // These reasons may be temporary: a device that was offered stays listed.
        if let Some(reason) = device.withheld.clone().or_else(|| self.mig_layout_error(device)) {
            return Assignment::Unusable(reason);
        }
        match self.exclusion_reason(device) {
            Some(reason) => Assignment::Withheld(reason),
            None => check_usable(device, self.resource_of(device)),
        }
    }

    /// Ability of a device to serve a container exclusively, whatever its resource.
    pub(super) fn exclusive_use(&self, device: &Device) -> ExclusiveUse {
        let is_impossible = self.is_represented(device) || device.exclusive_use_refusal.is_some();
        if is_impossible { ExclusiveUse::Impossible } else { ExclusiveUse::Possible }
    }

    /// True if another device represents this one: its MIG instances, or its parent GPU.
    fn is_represented(&self, device: &Device) -> bool {
        let offers_instances = self.policy.mig != MigStrategy::None;
        match device.family().partitioning {
            Partitioning::Never | Partitioning::Parts => device.partitioned,
            Partitioning::Mig if device.kind.is_mig_instance() => !offers_instances,
            Partitioning::Mig => {
                let has_parts = || present_parts(self.inventory, &device.id).next().is_some();
                offers_instances && device.partitioned && has_parts()
            }
        }
    }

    /// Reason why the MIG layout makes this device unusable.
    fn mig_layout_error(&self, device: &Device) -> Option<String> {
        if device.family().partitioning != Partitioning::Mig {
            return None;
        }
        let is_in_mig_mode = device.partitioned && self.policy.mig != MigStrategy::None;
        if is_in_mig_mode {
            return Some("MIG is on, but no instance exists: make one, or turn MIG off".to_owned());
        }
        let single = self.single.as_ref().filter(|_| !device.health.has_vanished())?;
        if !device.kind.is_mig_instance() {
            let reason =
                "not in MIG mode, while with MIG strategy single others are divided into instances";
            return Some(reason.to_owned());
        }
        (!self.is_uniform(device, single)).then(|| match &single.profile {
            Some(profile) => format!(
                "its GPU has instances of other profiles than {profile}, which MIG strategy single \
                 excludes: use mixed, or divide the GPU again"
            ),
            None => {
                "no GPU has instances of a single profile, which MIG strategy single requires: use \
                     mixed, or divide the GPUs again"
                    .to_owned()
            }
        })
    }

    /// True if all instances on this instance's GPU have the expected profile.
    fn is_uniform(&self, instance: &Device, expected: &SingleStrategy) -> bool {
        let (Some(gpu), Some(expected)) = (&instance.parent, &expected.profile) else {
            return false;
        };
        present_parts(self.inventory, gpu).all(|instance| instance.mig_profile() == Some(expected))
    }

    /// Reason why the configuration excludes the device. An exclude rule that cannot be evaluated excludes the device
    /// too: a missing attribute must not make a device available that an operator excluded.
    fn exclusion_reason(&self, device: &Device) -> Option<String> {
        if is_display(device) {
            return Some("a display adapter, which is not for computing".to_owned());
        }
        self.policy.exclude.iter().find_map(|rule| {
            match rule.matches(device, device.mig_profile()) {
                Ok(true) => Some("excluded by the configuration".to_owned()),
                Ok(false) => None,
                Err(error) => {
                    Some(format!("withheld, since an exclude rule cannot be evaluated: {error}"))
                }
            }
        })
    }

    fn resource_of(&self, device: &Device) -> Assignment {
        let Resources::Rules(rules) = &self.policy.resources else {
            return self.by_default(device);
        };
        if let Some(assignment) = by_rule(rules, device) {
            return assignment;
        }
        if let Some(resource) = self.by_source(device) {
            return Assignment::Resource(resource);
        }
        let has_applicable_rule = rules.iter().any(|rule| rule.devices.matches_kind(device));
        match self.policy.unmatched {
            Unmatched::Default => self.by_default(device),
            Unmatched::Withheld if has_applicable_rule => {
                Assignment::Withheld("no rule of the configuration takes it".to_owned())
            }
            Unmatched::Withheld => Assignment::Unassigned,
        }
    }

    /// Resource by the rule of the device's configured source.
    fn by_source(&self, device: &Device) -> Option<AssignedResource> {
        let rule = self.policy.sources.iter().find(|rule| rule.name == device.source)?;
        Some(AssignedResource { name: rule.resource_of(device)?, sharing: rule.sharing })
    }

    /// Resource by the device's configured source, or else the default resource of its kind.
    fn by_default(&self, device: &Device) -> Assignment {
        if let Some(resource) = self.by_source(device) {
            return Assignment::Resource(resource);
        }
        match default_resource(self.policy, device) {
            Some(name) => {
                Assignment::Resource(AssignedResource { name, sharing: Sharing::Exclusive })
            }
            None => Assignment::Unassigned,
        }
    }
}

/// The assignment, if the device can be used with this sharing.
fn check_usable(device: &Device, assignment: Assignment) -> Assignment {
    let Assignment::Resource(AssignedResource { name, sharing }) = assignment else {
        return assignment;
    };
    let refusal = match sharing {
        Sharing::Exclusive => &device.exclusive_use_refusal,
        Sharing::Shared(_) | Sharing::Pooled(_) => &device.sharing_refusal,
    };
    if let Some(reason) = refusal {
        return Assignment::Unusable(reason.clone());
    }
    let has_memory = matches!(sharing, Sharing::Shared(shared) if shared.memory_mib.is_some());
    // An MPS daemon can limit memory on a MIG instance too.
    if has_memory && !device.is_whole_gpu() && !sharing.is_mps() {
        let reason =
            "replicas with a given memory are of whole GPUs; leave memory out, or share by mps";
        return Assignment::Unusable(format!("{name}: {reason}"));
    }
    match sharing.for_memory(device.memory_mib()) {
        Ok(sharing) => Assignment::Resource(AssignedResource { name, sharing }),
        Err(reason) => Assignment::Unusable(format!("{name}: {reason}")),
    }
}

/// Assignment by the first matching rule. Without a match, a rule that cannot be evaluated withholds the device.
fn by_rule(rules: &[ResourceRule], device: &Device) -> Option<Assignment> {
    let mut rule_error = None;
    for rule in rules {
        match rule.devices.matches(device, device.mig_profile()) {
            Ok(true) => return Some(by_matching_rule(rule, device)),
            Ok(false) => {}
            Err(error) => {
                rule_error.get_or_insert_with(|| format!("the rule for {}: {error}", rule.name));
            }
        }
    }
    rule_error.map(Assignment::Withheld)
}

fn by_matching_rule(rule: &ResourceRule, device: &Device) -> Assignment {
    let name = &rule.name;
    if rule.sharing.is_mps() && device.partitioned {
        let reason = format!("{name} shares by MPS, and the GPU is in MIG mode: turn MIG off");
        return Assignment::Unusable(reason);
    }
    Assignment::Resource(AssignedResource { name: name.clone(), sharing: rule.sharing })
}

/// True if the default resource of a device has changed, such as that of a reprogrammed FPGA.
pub fn has_new_default(policy: &Policy, last_inventory: &Inventory, inventory: &Inventory) -> bool {
    inventory.devices.iter().filter(|device| device.family().partitioning != Partitioning::Mig).any(
        |device| {
            let last_default = last_inventory
                .get(device.id.as_str())
                .and_then(|last| default_resource(policy, last));
            last_default.is_some_and(|last_default| {
                default_resource(policy, device).is_some_and(|name| name != last_default)
            })
        },
    )
}

/// True for the display adapter of a DGX Station, which NVIDIA's plugin skips by the same names.
fn is_display(device: &Device) -> bool {
    matches!(device.text_attribute(&PRODUCT), Some("DGX Display" | "NVIDIA DGX Display"))
}

/// Parts of a GPU that have not vanished.
pub fn present_parts<'a>(
    inventory: &'a Inventory,
    gpu: &'a DeviceId,
) -> impl Iterator<Item = &'a Device> {
    inventory.parts_of(gpu).filter(|part| !part.health.has_vanished())
}

/// The commonest profile among GPUs with instances of one profile; of equally common ones, that of the first GPU.
fn commonest_mig_profile<'a>(
    inventory: &'a Inventory,
    gpus: impl Iterator<Item = &'a Device>,
) -> Option<String> {
    let divided_gpus = gpus.filter(|gpu| gpu.partitioned);
    let profiles: Vec<&str> =
        divided_gpus.filter_map(|gpu| only_mig_profile(inventory, &gpu.id)).collect();
    let gpu_count = |profile: &str| profiles.iter().filter(|other| **other == profile).count();
    // Reversed, since `max_by_key` returns the last maximum.
    profiles.iter().rev().max_by_key(|profile| gpu_count(profile)).map(ToString::to_string)
}

fn only_mig_profile<'a>(inventory: &'a Inventory, gpu: &'a DeviceId) -> Option<&'a str> {
    let mut profiles = present_parts(inventory, gpu).map(Device::mig_profile);
    let first = profiles.next()??;
    profiles.all(|profile| profile == Some(first)).then_some(first)
}
