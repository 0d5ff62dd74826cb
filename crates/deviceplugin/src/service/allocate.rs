//! `Allocate`: device lookup, checks, ledger entry and container edits.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use tokio::time::Instant;
use windlass_cdi::{
    container_edits::{self, MpsClientEdits, allocation_edits},
    memory_limits::{GpuMemory, HookLimit, WeakLimitError, replica_name},
};
use windlass_config::{PerContainer, Sharing, SharingMethod};
use windlass_core::device::{Device, DeviceId};
use windlass_host::{abbreviate::first_few, presence};
use windlass_kubelet_api::deviceplugin::{ContainerAllocateRequest, ContainerAllocateResponse};
use windlass_resources::{
    NodeState,
    offers::{Allocatability, Offer, OfferedDevice, ResolvedId, WithdrawnId},
};

use super::{
    super::wire::{self, Refusal},
    MAX_LOGGED_IDS, Service,
};
use crate::shares::{SHARE_KIND, share_name};

const VANISHED: &str = "no longer on this node";

impl Service {
    /// Answers of all containers; the first refusal refuses the whole call.
    pub(super) fn allocate_all(
        &self,
        state: &NodeState,
        requests: &[ContainerAllocateRequest],
    ) -> Result<Vec<ContainerAllocateResponse>, Refusal> {
        self.check_container_count(requests.len())?;
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
            return Err(Refusal::NoIds { resource: self.name() });
        }
        self.check_known(&offer, ids)?;
        if offer.are_share_tokens(ids) {
            return Ok(self.allocate_share(state, ids));
        }
        let devices = self.devices(state, &offer, ids)?;
        self.check_shares(&offer, ids, &devices)?;
        self.check_paths(&devices)?;
        if state.policy.delivery.uses_cdi() {
            state.check_documents(&devices).map_err(Refusal::Cdi)?;
        }
        let limits = self.limits(state, &offer, ids)?;
        self.reserve_devices(state, ids, &devices)?;
        let mps = self.mps_client_edits(&offer, &devices);
        let edits = allocation_edits(container_edits::AllocationRequest {
            resource: &self.resource,
            devices: &devices,
            delivery: &state.policy.delivery,
            nics: &state.policy.nics,
            node_extras: &state.node_extras,
            mps: mps.as_ref(),
            limits: &limits,
            simulated: state.inventory.simulated.as_deref(),
        });
        let device_ids = devices.iter().map(|device| device.id.clone()).collect();
        self.recent.with_lock(|recent| recent.record(&self.resource, device_ids, Instant::now()));
        let devices = first_few(ids, MAX_LOGGED_IDS);
        tracing::info!(resource = self.resource.as_str(), devices, "allocated");
        Ok(wire::container_response(edits, &self.roots.dev))
    }

    /// Answers with a CDI name that has no document yet. The agent writes it at `PreStartContainer`, when the pod is
    /// known.
    fn allocate_share(&self, state: &NodeState, ids: &[String]) -> ContainerAllocateResponse {
        let name = SHARE_KIND.qualify(share_name(self.resource.as_str(), ids));
        let edits = container_edits::share_edits(
            name,
            &self.resource,
            &state.policy.delivery,
            &state.node_extras,
            state.inventory.simulated.as_deref(),
        );
        let tokens = ids.len();
        tracing::info!(resource = self.resource.as_str(), tokens, "share allocated");
        wire::container_response(edits, &self.roots.dev)
    }

    /// Takes the devices in the ledger, unless a claim holds them. The ledger drops the entry if the kubelet's
    /// checkpoint never lists it.
    fn reserve_devices(
        &self,
        state: &NodeState,
        ids: &[String],
        devices: &[&Device],
    ) -> Result<(), Refusal> {
        let overlaps = devices.iter().map(|device| state.overlaps.overlap(&device.id));
        let result = self.ledger.take_for_container(&self.resource, &overlaps.collect::<Vec<_>>());
        result.map_err(|conflict| {
            if let Some(holder) = conflict.holder() {
                tracing::info!(resource = self.resource.as_str(), %holder, %conflict, "refused");
            }
            Refusal::Conflict {
                resource: self.name(),
                ids: ids.to_vec(),
                conflict: Box::new(conflict),
            }
        })
    }

    /// Devices behind the ids, without duplicates: two replicas of one device are one device.
    fn devices<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        ids: &[String],
    ) -> Result<Vec<&'a Device>, Refusal> {
        let mut devices: Vec<&Device> = Vec::with_capacity(ids.len());
        for id in ids {
            let resolved = match offer.resolve(id) {
                Some(ResolvedId::Token) => self.pool(state, offer, id)?,
                _ => vec![self.allocatable(state, offer, id)?],
            };
            for device in resolved {
                if devices.iter().all(|other| other.id != device.id) {
                    devices.push(device);
                }
            }
        }
        Ok(devices)
    }

    /// Allocatable devices behind a pool token. A pool without one is refused with the reason of its first device.
    fn pool<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        token: &str,
    ) -> Result<Vec<&'a Device>, Refusal> {
        let (allocatable, refusals): (Vec<_>, Vec<_>) = offer
            .devices
            .iter()
            .map(|(device, offered_device)| {
                self.check_device(state, token, device, &offered_device.state)
            })
            .partition(Result::is_ok);
        match refusals.into_iter().next() {
            Some(Err(refusal)) if allocatable.is_empty() => Err(refusal),
            _ => Ok(allocatable.into_iter().flatten().collect()),
        }
    }

    /// The device of an id, if it is allocatable and its device nodes exist.
    pub(super) fn allocatable<'a>(
        &self,
        state: &'a NodeState,
        offer: &Offer,
        id: &str,
    ) -> Result<&'a Device, Refusal> {
        match offer.resolve(id) {
            Some(ResolvedId::Device(device, offered_device)) => {
                self.check_device(state, id, device, &offered_device.state)
            }
            Some(ResolvedId::Token) => {
                // Any device of the pool serves: a token stands for the whole pool.
                let pool = self.pool(state, offer, id)?;
                pool.last().copied().ok_or_else(|| self.refusal(id, VANISHED))
            }
            Some(ResolvedId::Withdrawn(WithdrawnId {
                state: Allocatability::Blocked(reason),
                ..
            })) => Err(self.refusal(id, reason)),
            Some(ResolvedId::Withdrawn(_)) | None => Err(self.refusal(id, VANISHED)),
        }
    }

    /// The device, if it is allocatable and its device nodes exist; `id` is the requested id, for the refusal.
    fn check_device<'a>(
        &self,
        state: &'a NodeState,
        id: &str,
        device: &DeviceId,
        allocatability: &Allocatability,
    ) -> Result<&'a Device, Refusal> {
        if let Allocatability::Blocked(reason) = allocatability {
            return Err(self.refusal(id, reason));
        }
        let device =
            state.inventory.get(device.as_str()).ok_or_else(|| self.refusal(id, VANISHED))?;
        presence::check(&self.roots, &device.nodes)
            .map_err(|absence| self.refusal(id, &absence.to_string()))?;
        Ok(device)
    }

    fn refusal(&self, id: &str, reason: &str) -> Refusal {
        Refusal::NotAllocatable {
            resource: self.name(),
            id: id.to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Refuses an id that occurs twice, in one container or in two.
    fn check_unique<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
        let mut unique_ids = BTreeSet::new();
        let repeated_ids: Vec<_> = ids.filter(|id| !unique_ids.insert(*id)).cloned().collect();
        match repeated_ids.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::DuplicateIds { resource: self.name(), ids: repeated_ids }),
        }
    }

    /// CDI names of the memory limits, one per device. The device's CDI document has an entry for each number of
    /// replicas.
    fn limits(
        &self,
        state: &NodeState,
        offer: &Offer,
        ids: &[String],
    ) -> Result<Vec<String>, Refusal> {
        let mut replicas: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let has_memory = |device: &&DeviceId| {
            let shared = offer.devices.get(*device).and_then(OfferedDevice::shared);
            shared.is_some_and(|shared| shared.memory_mib.is_some())
        };
        for device in ids.iter().filter_map(|id| offer.device_of(id)).filter(has_memory) {
            *replicas.entry(device.clone()).or_default() += 1;
        }
        let mut names = Vec::new();
        for (device, count) in replicas {
            let limit = self.limit(state, offer, &device, count);
            let limit = limit.map_err(|error| self.refusal(device.as_str(), &error.to_string()))?;
            names.extend(limit.map(|_| replica_name(&device, count)));
        }
        Ok(names)
    }

    /// Limit of `count` replicas of a device; `None` if the resource sets no memory per replica.
    fn limit(
        &self,
        state: &NodeState,
        offer: &Offer,
        device: &DeviceId,
        count: u32,
    ) -> Result<Option<HookLimit>, WeakLimitError> {
        let shared = offer.devices.get(device).and_then(OfferedDevice::shared);
        let gpu = state.inventory.get(device.as_str());
        let memory = gpu.zip(shared).and_then(|(gpu, shared)| GpuMemory::from_replica(gpu, shared));
        memory.map_or(Ok(None), |memory| self.limits.limit(&memory, count, state.limit_rules()))
    }

    /// Client settings for the MPS daemon of a shared device.
    fn mps_client_edits(&self, offer: &Offer, devices: &[&Device]) -> Option<MpsClientEdits> {
        offer.shared().filter(|shared| shared.method == SharingMethod::Mps)?;
        devices.first().map(|device| self.mps.client_edits(&device.id))
    }

    /// Refuses two devices whose nodes have the same path in the container.
    fn check_paths(&self, devices: &[&Device]) -> Result<(), Refusal> {
        let mut nodes_by_path: BTreeMap<&Path, (&Path, &Device)> = BTreeMap::new();
        for device in devices {
            for node in &device.nodes {
                let earlier = nodes_by_path.insert(node.container_path(), (&node.path, device));
                if let Some((_, other)) = earlier.filter(|(path, _)| *path != node.path) {
                    return Err(Refusal::SharedPath {
                        resource: self.name(),
                        ids: vec![other.id.to_string(), device.id.to_string()],
                        path: node.container_path().display().to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Refuses more replicas than one container may have.
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
            return Err(Refusal::OneReplicaOnly { resource, count: ids.len() });
        }
        let Some(shared) = offer.shared() else { return Ok(()) };
        if shared.method == SharingMethod::Mps && devices.len() > 1 {
            return Err(Refusal::SeveralDaemons { resource, devices: devices.len() });
        }
        if shared.memory_mib.is_some() && devices.len() > 1 {
            return Err(Refusal::SeveralGpus { resource, devices: devices.len() });
        }
        Ok(())
    }
}
