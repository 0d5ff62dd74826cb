//! The node at one moment, as every server and every table sees it.

pub mod device_info;
pub mod obstacle;
pub mod offers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;
use tokio::time::Instant;
use windlass_allocations::ledger::Kinship;
use windlass_cdi::{Documents, Lacks, Unwritten, container_edits::Surroundings};
use windlass_config::{Policy, Resources, Sharing, SharingMethod};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceId},
    inventory::Inventory,
    placement::{self, Topology},
    resource::ResourceName,
};
use windlass_host::presence::Absence;
use windlass_lifecycle::cleanup::{self, Failure};

use crate::{
    obstacle::{Obstacle, Obstacles},
    offers::{Claimable, Offer, OfferedDevice, Offers, Unclaimable},
};

/// The node at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// All devices.
    pub inventory: Inventory,
    /// How near they are to each other.
    pub topology: Arc<Topology>,
    /// Which of them are of the same silicon.
    pub kin: Arc<Kinship>,
    /// What was wanted of them.
    pub policy: Arc<Policy>,
    /// What the kubelet is told of them.
    pub offers: Offers,
    /// Devices that are part of no resource, and why.
    pub withheld: BTreeMap<DeviceId, String>,
    /// Resources of the configuration that no device of the node is for, and why.
    pub empty: BTreeMap<ResourceName, String>,
    /// Devices that claims may have, and how several claims share one.
    pub claimable: Claimable,
    /// Devices that claims would have by the configuration and cannot have, and why.
    pub unclaimable: Unclaimable,
    /// What containers get besides devices.
    pub surroundings: Surroundings,
    /// The CDI documents that the offers need.
    pub documents: Documents,
    /// What the CDI documents lack; containers go without.
    pub lacks: Lacks,
    /// The CDI documents that are not up to date, and why.
    pub unwritten: Unwritten,
    /// Devices whose nodes are not where a container would look for them, and why.
    pub absent: Absent,
    /// Since when the disk does not answer, if it is slow.
    pub slow_since: Option<Instant>,
    /// What is in the way of claims that would have a healthy device.
    pub obstacles: Obstacles,
    /// Devices that are not to be chosen before they are clean, and where each stands in one word.
    pub unready: BTreeMap<DeviceId, &'static str>,
    /// Devices whose hand-over failed; they may be healthy.
    pub unclean: BTreeMap<DeviceId, Failure>,
    /// Whether any device may be a claim's that nobody has written down.
    pub is_in_doubt: bool,
}

/// Devices that cannot be handed out for want of a node, and why.
pub type Absent = BTreeMap<DeviceId, Absence>;

/// What becomes of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offering {
    /// The resource that it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceName>,
    /// How it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedAs>,
    /// Why it may not be allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedAs {
    /// `timeSlicing` or `mps`.
    pub method: SharingMethod,
    /// How many containers it serves.
    pub replicas: u32,
    /// Whether it serves them together with the other devices of its resource.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
}

// === impl NodeState ===

impl NodeState {
    /// The resources offered, with the number of ids and of those that may be allocated.
    pub fn resources(&self) -> BTreeMap<ResourceName, (usize, usize)> {
        let count = |offer: &Offer| (offer.listed(), offer.allocatable());
        self.offers.iter().map(|(name, offer)| (name.clone(), count(offer))).collect()
    }

    /// Says that the node has devices and nobody can have any, as the configuration wants it.
    pub fn offers_nothing(&self) -> Option<String> {
        let is_there = |device: &&Device| !device.health.has_vanished();
        let devices = self.inventory.devices.iter().filter(is_there).count();
        let is_empty =
            matches!(&self.policy.resources, Resources::Rules(rules) if rules.is_empty());
        let is_nothing = is_empty && self.offers.is_empty() && self.claimable.is_empty();
        (is_nothing && devices > 0).then(|| {
            format!(
                "nothing is offered of {devices} devices: the configuration's resources are an empty list; leave the \
                 key out for the defaults"
            )
        })
    }

    /// How devices of a resource, or their replicas, are chosen for a container.
    pub fn placement(&self, resource: &ResourceName) -> placement::Policy {
        let sharing = self.offers.get(resource).map(|offer| offer.sharing());
        self.policy.placement(resource, sharing.unwrap_or_default())
    }

    /// The devices of a pool as it is, and as it is meant: in place of the device plugin claims may have them
    /// by now. `None` before the node is known.
    pub fn devices_of_pool(&self, pool: &ResourceName) -> Option<BTreeSet<DeviceId>> {
        let offered = self.offers.get(pool).into_iter().flat_map(|offer| &offer.devices);
        let offered = offered.filter(|(_, device)| device.pooled().is_some());
        let meant = offers::targets(&self.policy, &self.inventory).into_iter();
        let meant = meant.filter(|(_, target)| {
            target.name == *pool && matches!(target.sharing, Sharing::Pooled(_))
        });
        let all = offered.map(|(id, _)| id.clone()).chain(meant.map(|(id, _)| id));
        (self.inventory.generation > 0).then(|| all.collect())
    }

    /// What becomes of each device; one that nobody asked for has no entry.
    pub fn offerings(&self) -> BTreeMap<DeviceId, Offering> {
        let withheld = self.withheld.iter().map(|(id, why)| (id.clone(), Offering::withheld(why)));
        let offered = self.offers.iter().flat_map(|(name, offer)| {
            let entry = |(id, device): (&DeviceId, &OfferedDevice)| {
                (id.clone(), Offering::of(name, device))
            };
            offer.devices.iter().map(entry)
        });
        withheld.chain(offered).collect()
    }

    /// Whether claims may have a device, when nobody has it.
    pub fn is_claimable(&self, id: &DeviceId) -> bool {
        self.claimable.contains_key(id)
    }

    /// Why claims cannot have a device that they would have by the configuration.
    pub fn not_for_claims(&self, id: &DeviceId) -> Option<&'static str> {
        self.unclaimable.get(id).copied()
    }

    /// What keeps claims from a device, or from the GPU that it is a part of.
    pub fn obstacle(&self, device: &Device) -> Option<&Obstacle> {
        let of_whole = || self.obstacles.get(device.parent.as_ref()?);
        self.obstacles.get(&device.id).or_else(of_whole)
    }

    /// The topology of another inventory: this one's where every device is in its place.
    pub fn topology_of(&self, inventory: &Inventory) -> Arc<Topology> {
        let is_in_place = |(device, known): (&Device, &Device)| spot(device) == spot(known);
        let (devices, known) = (&inventory.devices, &self.inventory.devices);
        if devices.len() == known.len() && devices.iter().zip(known).all(is_in_place) {
            return self.topology.clone();
        }
        Arc::new(Topology::of(inventory))
    }

    /// Whether something is done to devices of a resource before containers start with them.
    pub fn is_handed_over(&self, resource: &ResourceName) -> bool {
        let is_cared_for = |id: &DeviceId| {
            let device = self.inventory.get(id.as_str());
            device.is_some_and(|device| cleanup::is_cared_for(&self.policy, device))
        };
        let offer = self.offers.get(resource);
        offer.is_some_and(|offer| offer.devices.keys().any(is_cared_for))
    }

    /// Why a runtime would not find these devices in CDI documents: a name is granted only if it will.
    pub fn check_documents(&self, devices: &[&Device]) -> Result<(), String> {
        let concerns =
            |kind: &Kind| devices.iter().any(|it| self.surroundings.gets_names_of(it, kind));
        if let Some((_, error)) = self.unwritten.iter().find(|(kind, _)| concerns(kind)) {
            return Err(error.to_string());
        }
        let named = self.documents.iter().filter(|(kind, _)| concerns(kind));
        match named.map(|(_, path)| path).find(|path| !path.exists()) {
            None => Ok(()),
            Some(path) => Err(format!(
                "CDI document {} was removed; it is written again within ten seconds",
                path.display()
            )),
        }
    }

    /// How the replicas of shared devices are kept apart.
    pub fn methods(&self) -> impl Iterator<Item = (DeviceId, SharingMethod)> + '_ {
        let devices = self.offers.values().flat_map(|offer| &offer.devices);
        devices.filter_map(|(id, device)| Some((id.clone(), device.shared()?.method)))
    }

    /// The pools that devices are part of.
    pub fn pools(&self) -> impl Iterator<Item = (DeviceId, ResourceName)> + '_ {
        self.offers.iter().flat_map(|(name, offer)| {
            let pooled = offer.devices.iter().filter(|(_, device)| device.pooled().is_some());
            pooled.map(|(id, _)| (id.clone(), name.clone()))
        })
    }

    /// What was given away since the agent started, and is there still.
    pub fn given_and_there(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let given = self.offers.values().flat_map(|offer| offer.given());
        given.filter(|id| {
            self.inventory.get(id.as_str()).is_some_and(|device| !device.health.has_vanished())
        })
    }

    /// Whether both say the same, whatever the generation.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        self.inventory.says_the_same_as(&other.inventory)
            && self.policy == other.policy
            && self.offers == other.offers
            && self.withheld == other.withheld
            && self.empty == other.empty
            && self.claimable == other.claimable
            && self.unclaimable == other.unclaimable
            && self.surroundings == other.surroundings
            && self.documents == other.documents
            && self.lacks == other.lacks
            && self.unwritten == other.unwritten
            && self.absent == other.absent
            && self.slow_since == other.slow_since
            && self.obstacles == other.obstacles
            && self.unready == other.unready
            && self.unclean == other.unclean
            && self.is_in_doubt == other.is_in_doubt
    }
}

/// What the topology has of a device.
fn spot(device: &Device) -> impl PartialEq + '_ {
    let kept = (&device.withheld, &device.not_alone, &device.not_shared);
    (&device.id, &device.place, device.health.has_vanished(), kept)
}

// === impl Offering ===

impl Offering {
    fn withheld(why: &str) -> Self {
        Self { resource: None, shared: None, obstacle: Some(why.to_owned()) }
    }

    fn of(name: &ResourceName, device: &OfferedDevice) -> Self {
        let obstacle = device.state.obstacle().map(str::to_owned);
        let shared = match device.sharing {
            Sharing::Exclusive => None,
            Sharing::Shared(shared) => Some(SharedAs {
                method: shared.method,
                replicas: shared.replicas.get(),
                pool: false,
            }),
            Sharing::Pooled(pooled) => Some(SharedAs {
                method: SharingMethod::Shared,
                replicas: pooled.tokens.get(),
                pool: true,
            }),
        };
        Self { resource: Some(name.clone()), shared, obstacle }
    }
}
