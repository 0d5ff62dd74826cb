//! What the configuration wants of each device: the resource it belongs to, or why it is kept back.

use std::collections::BTreeMap;

use windlass_config::{
    MigStrategy, Policy, ResourceRule, Resources, Sharing, SharingMethod, Unmatched,
};
use windlass_core::{
    attribute::AttributeName,
    device::{Cuts, Device, DeviceId},
    inventory::Inventory,
    resource::ResourceName,
};
use windlass_discovery::PROFILE;

use super::usual::usual_name;

const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");

/// What is wanted of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// To be part of a resource.
    Offered(Target),
    /// To be kept back by the configuration, and why.
    Withheld(String),
    /// Nothing for now: it cannot serve in the shape it has, and why.
    Unfit(String),
    /// Nothing: other devices stand for it, or no one asked.
    Nothing,
}

/// The resource that a device is part of, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The resource.
    pub name: ResourceName,
    /// How its devices are shared.
    pub sharing: Sharing,
}

/// The resource that each device is to be part of.
pub fn targets(policy: &Policy, inventory: &Inventory) -> BTreeMap<DeviceId, Target> {
    let wants = Wants::new(policy, inventory);
    let target = |device: &Device| match wants.of(device) {
        Want::Offered(target) => Some((device.id.clone(), target)),
        Want::Withheld(_) | Want::Unfit(_) | Want::Nothing => None,
    };
    inventory.devices.iter().filter_map(target).collect()
}

/// Whether a device can serve a container by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Usable,
    /// Other devices stand for it, or none may have it alone.
    StoodFor,
}

/// The policy and what it has to know of the node as a whole.
pub(super) struct Wants<'a> {
    policy: &'a Policy,
    inventory: &'a Inventory,
    /// With the strategy `single`, where a GPU is cut: what the instances must be.
    single: Option<Single>,
}

/// What instances must be under the strategy `single`.
struct Single {
    /// Their profile; `None` where no GPU is cut into instances that are alike.
    profile: Option<String>,
}

// === impl Wants ===

impl<'a> Wants<'a> {
    pub(super) fn new(policy: &'a Policy, inventory: &'a Inventory) -> Self {
        // What claims have made is nobody's plan for the node.
        let is_by_hand =
            |gpu: &&Device| gpu.family().cuts == Cuts::Mig && !policy.cuts_for_claims(gpu);
        let gpus = || inventory.devices.iter().filter(is_by_hand);
        let is_cut = |gpu: &Device| present_parts(inventory, &gpu.id).next().is_some();
        let applies = policy.mig == MigStrategy::Single && gpus().any(is_cut);
        let single = applies.then(|| Single { profile: commonest_profile(inventory, gpus()) });
        Self { policy, inventory, single }
    }

    /// What is wanted of a device.
    pub(super) fn of(&self, device: &Device) -> Want {
        if self.others_stand_for(device) {
            return Want::Nothing;
        }
        // What the device is kept back for may come and go: one that was offered stays listed.
        let kept_back = || device.withheld.clone().map(Want::Unfit);
        let unfit = || self.layout_trouble(device).map(Want::Unfit);
        let withheld = || self.excluded(device).map(Want::Withheld);
        let wanted = || usable(device, self.named(device));
        kept_back().or_else(unfit).or_else(withheld).unwrap_or_else(wanted)
    }

    /// Whether a device that no resource is named for could serve as it is.
    pub(super) fn fit(&self, device: &Device) -> Fit {
        let is_unfit = self.others_stand_for(device) || device.not_alone.is_some();
        if is_unfit { Fit::StoodFor } else { Fit::Usable }
    }

    /// Whether the parts are offered instead of the whole, or the whole instead of its parts.
    fn others_stand_for(&self, device: &Device) -> bool {
        let is_cut = self.policy.mig != MigStrategy::None;
        match device.family().cuts {
            Cuts::Never | Cuts::Parts => device.partitioned,
            Cuts::Mig if device.kind.is_instance() => !is_cut,
            Cuts::Mig => {
                let has_parts = || present_parts(self.inventory, &device.id).next().is_some();
                is_cut && device.partitioned && has_parts()
            }
        }
    }

    /// Why the way in which GPUs are cut keeps this one back; the others are served.
    fn layout_trouble(&self, device: &Device) -> Option<String> {
        if device.family().cuts != Cuts::Mig {
            return None;
        }
        let in_mig_mode = device.partitioned && self.policy.mig != MigStrategy::None;
        if in_mig_mode {
            return Some("MIG is on, but no instance exists: make one, or turn MIG off".to_owned());
        }
        let single = self.single.as_ref().filter(|_| !device.health.has_vanished())?;
        if !device.kind.is_instance() {
            let why =
                "not in MIG mode, while with MIG strategy single others are cut into instances";
            return Some(why.to_owned());
        }
        (!self.is_uniform(device, single)).then(|| match &single.profile {
            Some(profile) => format!(
                "its GPU is not cut into {profile} alone, as MIG strategy single asks: use mixed, or cut \
                 the GPU anew"
            ),
            None => "no GPU is cut into instances that are alike, as MIG strategy single asks: use mixed, \
                     or cut the GPUs anew"
                .to_owned(),
        })
    }

    /// Whether all instances on the GPU of this one have the profile that is asked for.
    fn is_uniform(&self, instance: &Device, expected: &Single) -> bool {
        let (Some(gpu), Some(expected)) = (&instance.parent, &expected.profile) else {
            return false;
        };
        present_parts(self.inventory, gpu).all(|part| profile(part) == Some(expected))
    }

    /// Why the configuration keeps the device back. A rule that cannot be answered keeps it back too:
    /// a device that someone wanted out is not handed out for lack of an attribute.
    fn excluded(&self, device: &Device) -> Option<String> {
        if is_display(device) {
            return Some("a display adapter, which computes for no one".to_owned());
        }
        self.policy.exclude.iter().find_map(|rule| match rule.matches(device, profile(device)) {
            Ok(true) => Some("kept back by the configuration".to_owned()),
            Ok(false) => None,
            Err(error) => {
                Some(format!("kept back, since its exclusion cannot be ruled out: {error}"))
            }
        })
    }

    fn named(&self, device: &Device) -> Want {
        match &self.policy.resources {
            Resources::Default => self.by_default(device),
            Resources::Rules(rules) => by_rule(rules, device).unwrap_or_else(|| {
                if let Some(target) = self.of_its_source(device) {
                    return Want::Offered(target);
                }
                let named = rules.iter().any(|rule| rule.devices.is_about(device));
                match self.policy.unmatched {
                    Unmatched::Default => self.by_default(device),
                    Unmatched::KeptBack if named => {
                        Want::Withheld("no rule of the configuration takes it".to_owned())
                    }
                    Unmatched::KeptBack => Want::Nothing,
                }
            }),
        }
    }

    /// The resource that its source is described for; who describes a source wants it offered.
    fn of_its_source(&self, device: &Device) -> Option<Target> {
        let rule = self.policy.sources.iter().find(|rule| rule.name == device.source)?;
        Some(Target { name: rule.resource_of(device)?, sharing: rule.sharing })
    }

    /// The resource that a source of the configuration is for, or else the usual one of such devices.
    fn by_default(&self, device: &Device) -> Want {
        if let Some(target) = self.of_its_source(device) {
            return Want::Offered(target);
        }
        match usual_name(self.policy, device) {
            Some(name) => Want::Offered(Target { name, sharing: Sharing::Exclusive }),
            None => Want::Nothing,
        }
    }
}

/// What is wanted of the device, if it can be used in that way.
fn usable(device: &Device, want: Want) -> Want {
    let Want::Offered(target) = &want else { return want };
    let why_not = match target.sharing {
        Sharing::Exclusive => &device.not_alone,
        Sharing::Shared(_) | Sharing::Pooled(_) => &device.not_shared,
    };
    why_not.clone().map_or(want, Want::Unfit)
}

/// The first rule that matches. A rule without an answer does not match, and is what is told of a
/// device that no other rule takes.
fn by_rule(rules: &[ResourceRule], device: &Device) -> Option<Want> {
    let mut unanswered = None;
    for rule in rules {
        match rule.devices.matches(device, profile(device)) {
            Ok(true) => return Some(wanted(rule, device)),
            Ok(false) => {}
            Err(error) => {
                unanswered.get_or_insert_with(|| format!("the rule for {}: {error}", rule.name));
            }
        }
    }
    unanswered.map(Want::Withheld)
}

fn wanted(rule: &ResourceRule, device: &Device) -> Want {
    match rule.sharing {
        Sharing::Shared(shared)
            if shared.method == SharingMethod::Mps && device.kind.is_instance() =>
        {
            Want::Withheld(format!("{} shares by MPS, which is for whole GPUs", rule.name))
        }
        Sharing::Shared(shared) if shared.method == SharingMethod::Mps && device.partitioned => {
            let name = &rule.name;
            Want::Unfit(format!("{name} shares by MPS, and the GPU is in MIG mode: turn MIG off"))
        }
        sharing => Want::Offered(Target { name: rule.name.clone(), sharing }),
    }
}

/// The adapter of a DGX Station's screen, which NVIDIA's plugin skips by these names.
fn is_display(device: &Device) -> bool {
    matches!(device.text(&PRODUCT), Some("DGX Display" | "NVIDIA DGX Display"))
}

/// A MIG instance's profile.
pub(super) fn profile(device: &Device) -> Option<&str> {
    device.text(&PROFILE)
}

/// The parts of a GPU that are there: those that were once stay in the inventory.
pub fn present_parts<'a>(
    inventory: &'a Inventory,
    gpu: &'a DeviceId,
) -> impl Iterator<Item = &'a Device> {
    inventory.parts_of(gpu).filter(|part| !part.health.has_vanished())
}

/// The profile of most GPUs that are cut into instances of one profile; with as many of another, that
/// of the first GPU.
fn commonest_profile<'a>(
    inventory: &'a Inventory,
    gpus: impl Iterator<Item = &'a Device>,
) -> Option<String> {
    let cut = gpus.filter(|gpu| gpu.partitioned);
    let uniform: Vec<&str> = cut.filter_map(|gpu| only_profile(inventory, &gpu.id)).collect();
    let gpus = |profile: &str| uniform.iter().filter(|other| **other == profile).count();
    // The last of several maxima is the first GPU's, since they are looked at backwards.
    uniform.iter().rev().max_by_key(|profile| gpus(profile)).map(ToString::to_string)
}

fn only_profile<'a>(inventory: &'a Inventory, gpu: &'a DeviceId) -> Option<&'a str> {
    let mut profiles = present_parts(inventory, gpu).map(profile);
    let first = profiles.next()??;
    profiles.all(|profile| profile == Some(first)).then_some(first)
}
