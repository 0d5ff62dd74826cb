//! What is offered to the kubelet: resources, the devices each is made of, and the ids they go by.

mod empty;
mod marks;
mod plan;
mod pool;
mod usual;
mod want;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use windlass_config::{Pooled, Shared, Sharing};
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, device_of},
    resource::ResourceName,
};

pub use marks::{Marked, earlier_ids, note, reveals};
pub use plan::{Claimable, Methods, Moves, Plan, Pools, Question, Unclaimable, plan};
pub use usual::{is_something_else, usual_name};
pub use want::{Target, present_parts, targets};

/// The resources of a node by name.
pub type Offers = BTreeMap<ResourceName, Arc<Offer>>;

/// One resource: everything that the kubelet is told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The devices it is made of.
    pub devices: BTreeMap<DeviceId, OfferedDevice>,
    /// Ids that the kubelet was told of, or that containers hold, and that are no device's by now.
    pub(crate) withdrawn: BTreeMap<String, Withdrawn>,
}

/// A device as the kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedDevice {
    /// Whether it may be allocated; if not, why.
    pub state: Allocatable,
    /// Whether it goes by its own id, or by those of its replicas.
    pub sharing: Sharing,
    /// The NUMA node, where the machine tells it.
    pub(crate) numa_node: Option<u32>,
    /// Whether it was allocatable through this resource since the agent started.
    given: bool,
}

/// An id that stays listed, since a kubelet that misses one may panic (kubelet reference, trap 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// Why it is allocatable no longer.
    pub state: Allocatable,
    /// The NUMA node, where the machine tells it.
    pub(crate) numa_node: Option<u32>,
    /// Whether it was allocatable since the agent started; if not, it stays for its holder's sake.
    given: bool,
}

/// Whether a device may be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocatable {
    /// It may.
    Yes,
    /// Not before something is done to it. A kubelet that gave it away before it knew is served, since
    /// the container waits until it is done.
    NotYet(String),
    /// It may not, for this reason.
    No(String),
}

/// What an id stands for.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A device.
    Device(&'a DeviceId, &'a OfferedDevice),
    /// A token of the pool, which stands for every device.
    Token,
    /// An id that is listed and leads nowhere.
    Withdrawn(&'a Withdrawn),
}

/// One line of the list that the kubelet gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The id.
    pub id: Cow<'a, str>,
    /// Whether it may be allocated.
    pub state: &'a Allocatable,
    /// The NUMA node, where the machine tells it.
    pub numa_node: Option<u32>,
}

// === impl Allocatable ===

impl Allocatable {
    /// Why not, if not.
    pub fn obstacle(&self) -> Option<&str> {
        match self {
            Self::Yes => None,
            Self::NotYet(why) | Self::No(why) => Some(why),
        }
    }
}

// === impl Offer ===

impl Offer {
    /// Every id that the kubelet is told of.
    pub fn list(&self) -> impl Iterator<Item = Listed<'_>> {
        let devices = self.devices.iter().flat_map(|(id, device)| device.list(id));
        let withdrawn = self.withdrawn.iter().map(|(id, entry)| Listed {
            id: Cow::Borrowed(id.as_str()),
            state: &entry.state,
            numa_node: entry.numa_node,
        });
        devices.chain(self.list_tokens()).chain(withdrawn)
    }

    /// The devices that were allocatable through it since the agent started, whatever became of them.
    pub(crate) fn given(&self) -> impl Iterator<Item = DeviceId> {
        let devices = self.devices.iter().filter(|(_, device)| device.given);
        let withdrawn = self.withdrawn.iter().filter(|(_, entry)| entry.given);
        let withdrawn = withdrawn.filter_map(|(id, _)| device_of(id));
        devices.map(|(id, _)| id.clone()).chain(withdrawn)
    }

    /// What an id of this resource stands for.
    pub fn find(&self, id: &str) -> Option<Found<'_>> {
        let whole = self.devices.get_key_value(id).filter(|(_, device)| device.is_exclusive());
        let replica = || {
            let ReplicaId { device, number } = id.parse().ok()?;
            let entry = self.devices.get_key_value(&device);
            entry.filter(|(_, device)| device.shared().is_some_and(|of| number < of.replicas.get()))
        };
        match whole.or_else(replica) {
            Some((id, device)) => Some(Found::Device(id, device)),
            None if self.pool_has(id) => Some(Found::Token),
            None => self.withdrawn.get(id).map(Found::Withdrawn),
        }
    }

    /// The device that an id of this resource leads to, if it is one still.
    pub fn device_of(&self, id: &str) -> Option<&DeviceId> {
        match self.find(id)? {
            Found::Device(device, _) => Some(device),
            Found::Token | Found::Withdrawn(_) => None,
        }
    }

    /// How its devices are shared: one resource is shared in one way, but for devices that are held
    /// back and still listed as they were.
    pub fn shared(&self) -> Option<Shared> {
        let in_use = self.devices.values().find(|device| device.state == Allocatable::Yes);
        in_use.or_else(|| self.devices.values().next()).and_then(OfferedDevice::shared)
    }

    /// How its devices are shared, or that they are not.
    pub fn sharing(&self) -> Sharing {
        match (self.shared(), self.pool()) {
            (Some(shared), _) => Sharing::Shared(shared),
            (None, Some(pooled)) => Sharing::Pooled(pooled),
            (None, None) => Sharing::Exclusive,
        }
    }

    /// How many ids the kubelet is told of.
    pub fn listed(&self) -> usize {
        let devices = self.devices.values().map(OfferedDevice::ids).sum::<usize>();
        devices + self.tokens() + self.withdrawn.len()
    }

    /// How many ids may be allocated.
    pub fn allocatable(&self) -> usize {
        let may_be = |device: &&OfferedDevice| device.state == Allocatable::Yes;
        let devices = self.devices.values().filter(may_be).map(OfferedDevice::ids).sum::<usize>();
        devices + if self.is_pool_allocatable() { self.tokens() } else { 0 }
    }
}

// === impl OfferedDevice ===

impl OfferedDevice {
    /// How it is shared; `None` for a device that serves one container.
    pub(crate) fn shared(&self) -> Option<Shared> {
        match self.sharing {
            Sharing::Exclusive | Sharing::Pooled(_) => None,
            Sharing::Shared(shared) => Some(shared),
        }
    }

    /// The pool that it is a part of.
    pub fn pooled(&self) -> Option<Pooled> {
        match self.sharing {
            Sharing::Exclusive | Sharing::Shared(_) => None,
            Sharing::Pooled(pooled) => Some(pooled),
        }
    }

    /// Whether it serves one container.
    pub fn is_exclusive(&self) -> bool {
        self.sharing == Sharing::Exclusive
    }

    fn ids(&self) -> usize {
        match self.sharing {
            Sharing::Exclusive => 1,
            Sharing::Shared(shared) => shared.replicas.get() as usize,
            Sharing::Pooled(_) => 0,
        }
    }

    fn list<'a>(&'a self, id: &'a DeviceId) -> impl Iterator<Item = Listed<'a>> {
        let replicas = self.shared().map_or(0, |shared| shared.replicas.get());
        let whole = self.is_exclusive().then(|| Cow::Borrowed(id.as_str()));
        let replica = |number| ReplicaId { device: id.clone(), number }.to_string();
        let ids = whole.into_iter().chain((0..replicas).map(replica).map(Cow::Owned));
        ids.map(|id| Listed { id, state: &self.state, numa_node: self.numa_node })
    }
}

#[cfg(test)]
mod tests;
