//! Offers: the resources for the kubelet, with their devices and listed ids.

mod assignment;
mod diagnose;
mod fingerprint;
mod plan;
mod pool;
mod shares;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use windlass_cdi::memory_limits::ReplicaSize;
use windlass_config::{Pooled, Shared, Sharing, SharingMethod};
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, device_of_id},
    resource::ResourceName,
};

pub use assignment::{AssignedResource, assigned_resources, has_new_default, present_parts};
pub use fingerprint::{Fingerprint, Fingerprints, earlier_ids, exposes_held_hardware, record};
pub use plan::{
    ClaimableDevices, MovePermission, OfferInputs, Plan, Pools, ReplicaKind, ReplicaKinds,
    UnclaimableDevices, plan,
};
pub use shares::{ShareableGpu, ShareableGpus};

/// Resources by name.
pub type Offers = BTreeMap<ResourceName, Arc<Offer>>;

/// One resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Devices of the resource.
    pub devices: BTreeMap<DeviceId, OfferedDevice>,
    /// Tokens, if the resource counts amounts of GPUs.
    pub(crate) shares: Option<shares::ShareTokens>,
    /// Ids without a device that stay listed: the kubelet saw them, or a container holds them.
    pub(crate) withdrawn: BTreeMap<String, WithdrawnId>,
}

/// A device as part of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedDevice {
    /// Permission to allocate the device.
    pub state: Allocatability,
    /// Sharing among containers. It determines the form of the ids: the device's own id, replicas or tokens.
    pub sharing: Sharing,
    /// NUMA node, if known.
    pub(crate) numa_node: Option<u32>,
    /// True if the device was allocatable through this resource since the agent started.
    was_allocatable: bool,
}

/// An id that stays listed as unhealthy although it is no longer offered. A kubelet up to 1.36 may panic if an id
/// leaves the list while it allocates the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithdrawnId {
    /// Reason why the id can no longer be allocated.
    pub state: Allocatability,
    /// NUMA node, if known.
    pub(crate) numa_node: Option<u32>,
    /// True if the id was allocatable since the agent started. Otherwise it is listed because a container holds it.
    was_allocatable: bool,
}

/// Permission to allocate a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocatability {
    /// Allocatable.
    Ready,
    /// Allocatable after cleanup. Allocate succeeds before it, and the container's start waits for the cleanup.
    AfterCleanup(String),
    /// Not allocatable, for this reason.
    Blocked(String),
}

/// Meaning of an id.
#[derive(Clone, Copy, Debug)]
pub enum ResolvedId<'a> {
    /// A device.
    Device(&'a DeviceId, &'a OfferedDevice),
    /// A token. In a pool it stands for all devices. In a resource that counts amounts it stands for no device.
    Token,
    /// A listed id without a device.
    Withdrawn(&'a WithdrawnId),
}

/// One entry of the list for the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry<'a> {
    /// The id.
    pub id: Cow<'a, str>,
    /// Permission to allocate the id.
    pub state: &'a Allocatability,
    /// NUMA node, if known.
    pub numa_node: Option<u32>,
}

/// Memory of the replicas that containers hold or may get, and the largest number for one container, by device. Only
/// devices whose replicas have a configured memory, except those shared by MPS.
pub fn replica_sizes(
    offers: &Offers,
    fingerprints: &Fingerprints,
) -> BTreeMap<DeviceId, ReplicaSize> {
    let size = |(id, fingerprint): (&DeviceId, &Fingerprint)| {
        let memory_mib = fingerprint.replica_memory()?;
        let mut shared_offers = offers.values().filter_map(|offer| offer.devices.get(id)?.shared());
        let max_replicas = match shared_offers.next() {
            Some(shared) if shared.method == SharingMethod::Mps => return None,
            Some(shared) if shared.memory_mib == Some(memory_mib) => shared.max_per_container(),
            // Containers hold the replicas of an earlier configuration.
            Some(_) | None => u32::MAX,
        };
        Some((id.clone(), ReplicaSize { memory_mib, max_replicas }))
    };
    fingerprints.iter().filter_map(size).collect()
}

// === impl Allocatability ===

impl Allocatability {
    /// Reason why the device cannot be allocated now.
    pub fn obstacle(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::AfterCleanup(reason) | Self::Blocked(reason) => Some(reason),
        }
    }
}

// === impl Offer ===

impl Offer {
    /// All entries of the list for the kubelet.
    pub fn list(&self) -> impl Iterator<Item = ListEntry<'_>> {
        let devices = self.devices.iter().flat_map(|(id, device)| device.list(id));
        let withdrawn = self.withdrawn.iter().map(|(id, entry)| ListEntry {
            id: Cow::Borrowed(id.as_str()),
            state: &entry.state,
            numa_node: entry.numa_node,
        });
        devices.chain(self.list_tokens()).chain(self.list_shares()).chain(withdrawn)
    }

    /// Devices that were allocatable through this resource since the agent started, vanished ones included.
    pub(crate) fn once_allocatable(&self) -> impl Iterator<Item = DeviceId> {
        let devices = self.devices.iter().filter(|(_, device)| device.was_allocatable);
        let withdrawn = self.withdrawn.iter().filter(|(_, entry)| entry.was_allocatable);
        let withdrawn = withdrawn.filter_map(|(id, _)| device_of_id(id));
        devices.map(|(id, _)| id.clone()).chain(withdrawn)
    }

    /// Meaning of an id of this resource.
    pub fn resolve(&self, id: &str) -> Option<ResolvedId<'_>> {
        let exclusive = self.devices.get_key_value(id).filter(|(_, device)| device.is_exclusive());
        let replica = || {
            let ReplicaId { device, number } = id.parse().ok()?;
            let entry = self.devices.get_key_value(&device);
            entry.filter(|(_, device)| {
                device.shared().is_some_and(|shared| number < shared.replicas.get())
            })
        };
        match exclusive.or_else(replica) {
            Some((id, device)) => Some(ResolvedId::Device(id, device)),
            None if self.has_token(id) => Some(ResolvedId::Token),
            None => self.withdrawn.get(id).map(ResolvedId::Withdrawn),
        }
    }

    /// Device of an id, if the id still has one.
    pub fn device_of(&self, id: &str) -> Option<&DeviceId> {
        match self.resolve(id)? {
            ResolvedId::Device(device, _) => Some(device),
            ResolvedId::Token | ResolvedId::Withdrawn(_) => None,
        }
    }

    /// Sharing of its devices by replicas, if any. All devices of a resource are shared alike, except withheld ones
    /// that are still listed under their earlier sharing.
    pub fn shared(&self) -> Option<Shared> {
        self.representative().and_then(OfferedDevice::shared)
    }

    /// Sharing of its devices.
    pub fn sharing(&self) -> Sharing {
        match (self.shared(), self.pool()) {
            (Some(shared), _) => Sharing::Shared(shared),
            (None, Some(pooled)) => Sharing::Pooled(pooled),
            (None, None) => Sharing::Exclusive,
        }
    }

    /// Number of listed ids.
    pub fn listed_count(&self) -> usize {
        let devices = self.devices.values().map(OfferedDevice::id_count).sum::<usize>();
        devices + self.token_count() + self.share_token_count() as usize + self.withdrawn.len()
    }

    /// Number of allocatable ids.
    pub fn allocatable_count(&self) -> usize {
        let devices = self.devices.values();
        let allocatable = devices.filter(|device| device.state == Allocatability::Ready);
        let devices = allocatable.map(OfferedDevice::id_count).sum::<usize>();
        let tokens = if self.is_pool_allocatable() { self.token_count() } else { 0 };
        devices + tokens + self.usable_share_count() as usize
    }
}

// === impl OfferedDevice ===

impl OfferedDevice {
    /// Sharing by replicas, if the device has any.
    pub fn shared(&self) -> Option<Shared> {
        match self.sharing {
            Sharing::Exclusive | Sharing::Pooled(_) => None,
            Sharing::Shared(shared) => Some(shared),
        }
    }

    /// Tokens of the pool, if the device is part of one.
    pub fn pooled(&self) -> Option<Pooled> {
        match self.sharing {
            Sharing::Exclusive | Sharing::Shared(_) => None,
            Sharing::Pooled(pooled) => Some(pooled),
        }
    }

    /// True if it was allocatable through this resource since the agent started.
    pub(crate) fn was_allocatable(&self) -> bool {
        self.was_allocatable
    }

    /// True if the device serves one container at a time.
    pub fn is_exclusive(&self) -> bool {
        self.sharing == Sharing::Exclusive
    }

    fn id_count(&self) -> usize {
        match self.sharing {
            Sharing::Exclusive => 1,
            Sharing::Shared(shared) => shared.replicas.get() as usize,
            Sharing::Pooled(_) => 0,
        }
    }

    fn list<'a>(&'a self, id: &'a DeviceId) -> impl Iterator<Item = ListEntry<'a>> {
        let replicas = self.shared().map_or(0, |shared| shared.replicas.get());
        let own_id = self.is_exclusive().then(|| Cow::Borrowed(id.as_str()));
        let replica = |number| ReplicaId { device: id.clone(), number }.to_string();
        let ids = own_id.into_iter().chain((0..replicas).map(replica).map(Cow::Owned));
        ids.map(|id| ListEntry { id, state: &self.state, numa_node: self.numa_node })
    }
}

#[cfg(test)]
mod tests;
