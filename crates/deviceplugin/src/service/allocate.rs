//! Allocate: which devices the ids stand for, whether they may be given away, and the grant.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use tokio::time::Instant;
use windlass_cdi::container_edits::{self, MpsGrant, grant};
use windlass_config::{PerContainer, Sharing, SharingMethod};
use windlass_core::device::{Device, DeviceId};
use windlass_host::{abbreviate::first_few, presence};
use windlass_kubelet_api::deviceplugin::{ContainerAllocateRequest, ContainerAllocateResponse};
use windlass_resources::{
    NodeState,
    offers::{Allocatable, Found, Offer, Withdrawn},
};

use super::{
    super::wire::{self, Refusal},
    LOGGED, Service,
};

impl Service {
    /// What each container gets, or why none gets anything.
    pub(super) fn allocate_all(
        &self,
        state: &NodeState,
        requests: &[ContainerAllocateRequest],
    ) -> Result<Vec<ContainerAllocateResponse>, Refusal> {
        self.check_few(requests.len())?;
        self.check_unique(requests.iter().flat_map(|request| &request.devices_ids))?;
        requests.iter().map(|request| self.allocate_one(state, request)).collect()
    }

    fn allocate_one(
        &self,
        state: &NodeState,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Refusal> {
        let (ids, offer) = (&request.devices_ids, self.offer(state));
        if ids.is_empty() {
            return Err(Refusal::Empty { resource: self.name() });
        }
        self.check_known(&offer, ids)?;
        let devices = self.devices(state, &offer, ids)?;
        self.check_shares(&offer, ids, &devices)?;
        self.check_paths(&devices)?;
        if state.policy.delivery.uses_cdi() {
            state.check_documents(&devices).map_err(Refusal::Cdi)?;
        }
        self.take(state, ids, &devices)?;
        let mps = self.mps_client(&offer, &devices);
        let grant = grant(container_edits::Question {
            resource: &self.resource,
            devices: &devices,
            delivery: &state.policy.delivery,
            nics: &state.policy.nics,
            surroundings: &state.surroundings,
            mps: mps.as_ref(),
            simulated: state.inventory.simulated.as_deref(),
        });
        let given = devices.iter().map(|device| device.id.clone()).collect();
        self.company.step(|it| it.note(&self.resource, given, Instant::now()));
        let devices = first_few(ids, LOGGED);
        tracing::info!(resource = self.resource.as_str(), devices, "allocated");
        Ok(wire::container_response(grant, &self.roots.dev))
    }

    /// Takes the devices in the ledger, where a claim may have been faster. An answer that the kubelet makes
    /// no use of is forgotten when its record lacks it.
    fn take(&self, state: &NodeState, ids: &[String], devices: &[&Device]) -> Result<(), Refusal> {
        let footprints = devices.iter().map(|device| state.kin.footprint(&device.id));
        let taken = self.ledger.take_for_container(&self.resource, &footprints.collect::<Vec<_>>());
        taken.map_err(|conflict| {
            if let Some(holder) = conflict.holder() {
                tracing::info!(resource = self.resource.as_str(), %holder, %conflict, "refused");
            }
            Refusal::Taken {
                resource: self.name(),
                ids: ids.to_vec(),
                conflict: Box::new(conflict),
            }
        })
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
            let behind = match offer.find(id) {
                Some(Found::Token) => self.pool(state, offer, id)?,
                _ => vec![self.allocatable(state, offer, id)?],
            };
            for device in behind {
                if devices.iter().all(|known| known.id != device.id) {
                    devices.push(device);
                }
            }
        }
        Ok(devices)
    }

    /// What a token stands for: every device of the resource that may be given away. It is refused only
    /// where there is none, for the first one's reason.
    fn pool<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        token: &str,
    ) -> Result<Vec<&'a Device>, Refusal> {
        let devices = offer.devices.iter();
        let each = devices.map(|(id, offered)| self.whole(state, (token, id), &offered.state));
        let (well, ill): (Vec<_>, Vec<_>) = each.partition(Result::is_ok);
        match ill.into_iter().next() {
            Some(Err(refusal)) if well.is_empty() => Err(refusal),
            _ => Ok(well.into_iter().flatten().collect()),
        }
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
        match offer.find(id) {
            Some(Found::Device(device, offered)) => self.whole(state, (id, device), &offered.state),
            Some(Found::Token) => {
                let pool = self.pool(state, offer, id)?.into_iter();
                pool.last().ok_or_else(|| refuse("no longer on this node"))
            }
            Some(Found::Withdrawn(Withdrawn { state: Allocatable::No(why), .. })) => {
                Err(refuse(why))
            }
            Some(Found::Withdrawn(_)) | None => Err(refuse("no longer on this node")),
        }
    }

    /// A device that the kubelet names by this id, likewise.
    fn whole<'a>(
        &self,
        state: &'a NodeState,
        (id, device): (&str, &DeviceId),
        allocatable: &Allocatable,
    ) -> Result<&'a Device, Refusal> {
        let refuse = |why: &str| Refusal::NotAllocatable {
            resource: self.name(),
            id: id.to_owned(),
            why: why.to_owned(),
        };
        if let Allocatable::No(why) = allocatable {
            return Err(refuse(why));
        }
        let gone = || refuse("no longer on this node");
        let device = state.inventory.get(device.as_str()).ok_or_else(gone)?;
        let there = presence::check(&self.roots, &device.nodes);
        there.map(|()| device).map_err(|why| refuse(&why.to_string()))
    }

    /// Whether no id is given away twice, be it to one container or to two.
    fn check_unique<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let repeated: Vec<_> = ids.filter(|id| !seen.insert(*id)).cloned().collect();
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

    /// Whether no two nodes would lie at one path in the container, where the last would win.
    fn check_paths(&self, devices: &[&Device]) -> Result<(), Refusal> {
        let mut taken: BTreeMap<&Path, (&Path, &Device)> = BTreeMap::new();
        for device in devices {
            for node in &device.nodes {
                let before = taken.insert(node.inside(), (&node.path, device));
                if let Some((_, other)) = before.filter(|(path, _)| *path != node.path) {
                    return Err(Refusal::OnePath {
                        resource: self.name(),
                        ids: vec![other.id.to_string(), device.id.to_string()],
                        path: node.inside().display().to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether one container may have so many replicas.
    fn check_shares(
        &self,
        offer: &Offer,
        ids: &[String],
        devices: &[&Device],
    ) -> Result<(), Refusal> {
        let per_container = match offer.sharing() {
            Sharing::Exclusive => return Ok(()),
            Sharing::Shared(shared) => shared.per_container,
            Sharing::Pooled(pooled) => pooled.per_container,
        };
        let resource = self.name();
        if per_container == PerContainer::One && ids.len() > 1 {
            return Err(Refusal::OneReplicaOnly { resource, asked: ids.len() });
        }
        let Some(shared) = offer.shared() else { return Ok(()) };
        if shared.method == SharingMethod::Mps && devices.len() > 1 {
            return Err(Refusal::SeveralDaemons { resource, devices: devices.len() });
        }
        Ok(())
    }
}
