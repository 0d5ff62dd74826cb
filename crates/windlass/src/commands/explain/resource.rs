//! The resource that a question is about: its devices, and how they are handed out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, bail};
use windlass_core::{
    device::{Device, DeviceId},
    resource::ResourceName,
};
use windlass_resources::{NodeState, Offering, SharedAs};

use crate::exit::Misuse;

/// A resource as the agent offers it.
pub(super) struct Resource<'a> {
    pub(super) name: ResourceName,
    /// In the inventory's order.
    pub(super) members: Vec<Member<'a>>,
}

/// A device of a resource.
pub(super) struct Member<'a> {
    pub(super) device: &'a Device,
    pub(super) shared: Option<SharedAs>,
    /// Why it is given to nobody.
    pub(super) obstacle: Option<String>,
}

/// What is asked for most, where several resources are offered.
const USUAL: &str = "nvidia.com/gpu";

// === impl Resource ===

impl<'a> Resource<'a> {
    /// The one that is asked for; else the only one, else the usual one.
    pub(super) fn find(node: &'a NodeState, asked: Option<&ResourceName>) -> Result<Self> {
        let offerings = node.offerings();
        let names: BTreeSet<_> = offerings.values().filter_map(|of| of.resource.as_ref()).collect();
        let listed = || names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if names.is_empty() {
            bail!("no device is offered here; `windlass devices` says why");
        }
        let usual = names.iter().find(|name| name.as_str() == USUAL).filter(|_| names.len() > 1);
        let found = match asked {
            Some(name) => names.get(name).ok_or_else(|| {
                Misuse(anyhow!("--resource: no device is offered as {name}, but as {}", listed()))
            })?,
            None => usual.or(names.first().filter(|_| names.len() == 1)).ok_or_else(|| {
                Misuse(anyhow!("say which resource with --resource: there are {}", listed()))
            })?,
        };
        let name = (*found).clone();
        let members = members(node, &offerings, &name);
        Ok(Self { name, members })
    }

    /// The devices without how they are handed out.
    pub(super) fn devices(&self) -> Vec<&'a Device> {
        self.members.iter().map(|member| member.device).collect()
    }

    /// What it is made of, where that is not GPUs.
    pub(super) fn others(&self) -> Option<&'static str> {
        let kinds = self.members.iter().map(|member| member.device.kind);
        kinds.filter(|kind| !kind.is_gpu()).map(|kind| kind.facts().plural).next()
    }

    /// How its devices are shared; `None` where each serves one container.
    pub(super) fn shared(&self) -> Option<SharedAs> {
        self.members.iter().find_map(|member| member.shared)
    }
}

fn members<'a>(
    node: &'a NodeState,
    offerings: &BTreeMap<DeviceId, Offering>,
    name: &ResourceName,
) -> Vec<Member<'a>> {
    let member = |device: &'a Device| {
        let Offering { resource, shared, obstacle } = offerings.get(&device.id)?.clone();
        (resource.as_ref() == Some(name)).then_some(Member { device, shared, obstacle })
    };
    node.inventory.devices.iter().filter_map(member).collect()
}
