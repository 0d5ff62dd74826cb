//! Allocate: which devices the ids stand for, whether they may be given away, and the grant.

use std::collections::BTreeSet;

use windlass_core::{cdi::Kind, device::Device};
use windlass_kubelet_api::deviceplugin::{ContainerAllocateRequest, ContainerAllocateResponse};

use super::{
    super::wire::{self, Refusal},
    Service,
};
use crate::{
    config::{PerContainer, SharingMethod},
    grant::{self, grant},
    mps::MpsGrant,
    offer::{Allocatable, Found, Offer},
    state::NodeState,
};

impl Service {
    pub(super) fn allocate_one(
        &self,
        state: &NodeState,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Refusal> {
        let (ids, offer) = (&request.devices_ids, self.offer(state));
        if ids.is_empty() {
            return Err(Refusal::Empty { resource: self.name() });
        }
        self.check_unique(ids)?;
        self.check_known(&offer, ids)?;
        let devices = self.devices(state, &offer, ids)?;
        self.check_shares(&offer, ids, &devices)?;
        if state.policy.delivery.uses_cdi() {
            check_documents(state, &devices)?;
        }
        let mps = self.mps_client(&offer, &devices);
        let grant = grant(grant::Question {
            resource: &self.resource,
            devices: &devices,
            delivery: &state.policy.delivery,
            surroundings: &state.surroundings,
            mps: mps.as_ref(),
            simulated: state.inventory.simulated.as_deref(),
        });
        tracing::info!(resource = self.resource.as_str(), devices = ids.join(" "), "allocated");
        Ok(wire::container_response(grant, &self.roots.dev))
    }

    /// The devices that the ids stand for, each once: a container that gets two replicas of a device
    /// gets the device.
    fn devices<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        ids: &[String],
    ) -> Result<Vec<&'a Device>, Refusal> {
        let mut devices: Vec<&Device> = Vec::with_capacity(ids.len());
        for id in ids {
            let device = self.allocatable(state, offer, id)?;
            if devices.iter().all(|known| known.id != device.id) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// The device, if it may be given away and its nodes are where the container will look for them.
    pub(super) fn allocatable<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        id: &str,
    ) -> Result<&'a Device, Refusal> {
        let refuse = |why: &str| Refusal::NotAllocatable {
            resource: self.name(),
            id: id.to_owned(),
            why: why.to_owned(),
        };
        let (device, allocatable) = match offer.find(id) {
            Some(Found::Device(device, offered)) => (device.as_str(), &offered.state),
            Some(Found::Withdrawn(withdrawn)) => (id, &withdrawn.state),
            None => return Err(refuse("no longer on this node")),
        };
        if let Allocatable::No(why) = allocatable {
            return Err(refuse(why));
        }
        let gone = || refuse("no longer on this node");
        let device = state.inventory.get(device).ok_or_else(gone)?;
        match device.nodes.iter().find(|node| !self.roots.dev.has(&node.path)) {
            None => Ok(device),
            Some(node) => Err(Refusal::NodeMissing {
                resource: self.name(),
                id: id.to_owned(),
                node: node.path.display().to_string(),
            }),
        }
    }

    fn check_unique(&self, ids: &[String]) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let repeated: Vec<_> = ids.iter().filter(|id| !seen.insert(*id)).cloned().collect();
        match repeated.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::Duplicate { resource: self.name(), ids: repeated }),
        }
    }

    /// What makes a container a client of the one daemon that serves its device.
    fn mps_client(&self, offer: &Offer, devices: &[&Device]) -> Option<MpsGrant> {
        offer.shared().filter(|shared| shared.method == SharingMethod::Mps)?;
        devices.first().map(|device| self.mps.container(&device.id))
    }

    /// Whether one container may have so many replicas.
    fn check_shares(
        &self,
        offer: &Offer,
        ids: &[String],
        devices: &[&Device],
    ) -> Result<(), Refusal> {
        let Some(shared) = offer.shared() else { return Ok(()) };
        let resource = self.name();
        if shared.per_container == PerContainer::One && ids.len() > 1 {
            return Err(Refusal::OneReplicaOnly { resource, asked: ids.len() });
        }
        if shared.method == SharingMethod::Mps && devices.len() > 1 {
            return Err(Refusal::SeveralDaemons { resource, devices: devices.len() });
        }
        Ok(())
    }
}

/// A name is granted only if the runtime will find it.
fn check_documents(state: &NodeState, devices: &[&Device]) -> Result<(), Refusal> {
    let concerns =
        |kind: &Kind| devices.iter().any(|it| state.surroundings.gets_names_of(it, kind));
    if let Some((_, error)) = state.unwritten.iter().find(|(kind, _)| concerns(kind)) {
        return Err(Refusal::Cdi(error.to_string()));
    }
    let named = state.documents.iter().filter(|(kind, _)| concerns(kind));
    match named.map(|(_, path)| path).find(|path| !path.exists()) {
        None => Ok(()),
        Some(path) => Err(Refusal::Cdi(format!(
            "CDI document {} was removed; it is written again within ten seconds",
            path.display()
        ))),
    }
}
