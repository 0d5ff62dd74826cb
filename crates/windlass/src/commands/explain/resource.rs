//! Resource of a request, with its devices and their sharing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, bail};
use windlass_core::{
    device::{Device, DeviceId},
    resource::ResourceName,
};
use windlass_resources::{DeviceOffer, NodeState, SharingSummary};

use crate::exit::UsageError;

/// Resource as the agent offers it.
pub(super) struct Resource<'a> {
    pub(super) name: ResourceName,
    /// In the order of the inventory.
    pub(super) members: Vec<Member<'a>>,
}

pub(super) struct Member<'a> {
    pub(super) device: &'a Device,
    pub(super) shared: Option<SharingSummary>,
    /// Reason why the device is withheld.
    pub(super) obstacle: Option<String>,
}

/// Preferred resource among several.
const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

// === impl Resource ===

impl<'a> Resource<'a> {
    /// The requested resource, else the only one, else [`DEFAULT_RESOURCE`].
    pub(super) fn find(node: &'a NodeState, request: Option<&ResourceName>) -> Result<Self> {
        let offers = node.device_offers();
        let names: BTreeSet<_> =
            offers.values().filter_map(|offer| offer.resource.as_ref()).collect();
        let name_list = || names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if names.is_empty() {
            bail!("no device is offered here; `windlass devices` says why");
        }
        let default =
            names.iter().find(|name| name.as_str() == DEFAULT_RESOURCE).filter(|_| names.len() > 1);
        let name = match request {
            Some(name) => names.get(name).ok_or_else(|| {
                UsageError(anyhow!("--resource: unknown resource {name}; offered: {}", name_list()))
            })?,
            None => default.or(names.first().filter(|_| names.len() == 1)).ok_or_else(|| {
                UsageError(anyhow!("choose a resource with --resource: {}", name_list()))
            })?,
        };
        let name = (*name).clone();
        let members = members(node, &offers, &name);
        Ok(Self { name, members })
    }

    pub(super) fn devices(&self) -> Vec<&'a Device> {
        self.members.iter().map(|member| member.device).collect()
    }

    /// Kind of its devices, if they are not GPUs.
    pub(super) fn non_gpu_kind(&self) -> Option<&'static str> {
        let kinds = self.members.iter().map(|member| member.device.kind);
        kinds.filter(|kind| !kind.is_gpu()).map(|kind| kind.facts().plural).next()
    }

    /// Sharing of its devices; `None` if exclusive.
    pub(super) fn shared(&self) -> Option<SharingSummary> {
        self.members.iter().find_map(|member| member.shared)
    }
}

fn members<'a>(
    node: &'a NodeState,
    offers: &BTreeMap<DeviceId, DeviceOffer>,
    name: &ResourceName,
) -> Vec<Member<'a>> {
    let member = |device: &'a Device| {
        let DeviceOffer { resource, shared, obstacle, .. } = offers.get(&device.id)?.clone();
        (resource.as_ref() == Some(name)).then_some(Member { device, shared, obstacle })
    };
    node.inventory.devices.iter().filter_map(member).collect()
}
