//! Snapshot of a node: devices, offered resources, CDI documents, and every reason to withhold a device.

pub mod device_info;
pub mod obstacle;
pub mod offers;

mod enforcement;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;
use tokio::time::Instant;
use windlass_allocations::ledger::Overlaps;
use windlass_cdi::{
    DocumentErrors, Documents, MissingParts, container_edits::NodeExtras,
    memory_limits::LimitSupport,
};
use windlass_config::{Policy, Resources, Sharing, SharingMethod};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceId},
    enforcement::Enforcement,
    inventory::Inventory,
    placement::{self, Topology},
    resource::ResourceName,
    virtual_gpus,
};
use windlass_host::presence::Absence;
use windlass_lifecycle::cleanup::{self, Failure};

use crate::{
    obstacle::{Obstacle, Obstacles},
    offers::{
        ClaimableDevices, Offer, OfferedDevice, Offers, ReplicaKind, ShareableGpus,
        UnclaimableDevices,
    },
};

/// Snapshot of the node, as the reconciler publishes it.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// All devices.
    pub inventory: Inventory,
    /// Distances between devices.
    pub topology: Arc<Topology>,
    /// Devices that share hardware.
    pub overlaps: Arc<Overlaps>,
    /// Policy of the snapshot.
    pub policy: Arc<Policy>,
    /// Resources for the kubelet.
    pub offers: Offers,
    /// Devices outside every resource, with the reason.
    pub withheld: BTreeMap<DeviceId, String>,
    /// Configured resources without a device, with the reason.
    pub empty_resources: BTreeMap<ResourceName, String>,
    /// Devices for claims, with the sharing among several claims.
    pub claimable: ClaimableDevices,
    /// Devices that the configuration assigns to claims, but that cannot be allocated to claims, with the reason.
    pub unclaimable: UnclaimableDevices,
    /// GPUs of which pods may have shares by amounts.
    pub shareable: ShareableGpus,
    /// Node-wide extras of containers.
    pub node_extras: NodeExtras,
    /// CDI documents on disk.
    pub documents: Documents,
    /// Configured files and nodes, and parts of the driver, that the CDI documents lack.
    pub missing_parts: MissingParts,
    /// CDI documents that are not up to date, with the reason.
    pub document_errors: DocumentErrors,
    /// Devices with a missing device node, with the reason.
    pub absences: Absences,
    /// Means to limit the GPU memory of containers.
    pub limit_support: LimitSupport,
    /// Memory in MiB of each device's replicas that containers hold or may get, if the configuration sets it.
    pub replica_memory: BTreeMap<DeviceId, u64>,
    /// Time since which the disk does not answer; `None` if it answers.
    pub disk_slow_since: Option<Instant>,
    /// Reasons why healthy devices cannot be allocated to claims.
    pub claim_obstacles: Obstacles,
    /// Devices whose cleanup has not finished, with the cleanup's state in one word.
    pub pending_cleanups: BTreeMap<DeviceId, &'static str>,
    /// Devices whose cleanup failed; they may be healthy.
    pub failed_cleanups: BTreeMap<DeviceId, Failure>,
    /// True if the records of claims may be incomplete, so that any device may belong to a claim.
    pub claims_may_be_missing: bool,
}

/// Devices that cannot be allocated because a device node is missing, with the reason.
pub type Absences = BTreeMap<DeviceId, Absence>;

/// A device's resource, or the reason why it has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceOffer {
    /// Resource of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceName>,
    /// Sharing among containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharingSummary>,
    /// The strongest means that enforces memory limits on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Reason why the device cannot be allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// Sharing of a device among containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharingSummary {
    /// `timeSlicing`, `mps` or `shared`.
    pub method: SharingMethod,
    /// Number of containers that can share the device, or the pool.
    pub replicas: u32,
    /// Memory of a replica in MiB, if the configuration sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// True if all devices of the resource are shared together.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
}

// === impl NodeState ===

impl NodeState {
    /// Offered resources, each with its number of ids and of allocatable ids.
    pub fn resources(&self) -> BTreeMap<ResourceName, (usize, usize)> {
        let counts = |offer: &Offer| (offer.listed_count(), offer.allocatable_count());
        self.offers.iter().map(|(name, offer)| (name.clone(), counts(offer))).collect()
    }

    /// A warning for a node whose configuration offers none of its devices.
    pub fn no_offer_warning(&self) -> Option<String> {
        let is_present = |device: &&Device| !device.health.has_vanished();
        let devices = self.inventory.devices.iter().filter(is_present).count();
        let is_empty =
            matches!(&self.policy.resources, Resources::Rules(rules) if rules.is_empty());
        let offers_none = is_empty && self.offers.is_empty() && self.claimable.is_empty();
        (offers_none && devices > 0).then(|| {
            format!(
                "nothing is offered of {devices} devices: the configuration's resources are an empty list; leave the \
                 key out for the defaults"
            )
        })
    }

    /// Placement policy for a container's devices of this resource.
    pub fn placement(&self, resource: &ResourceName) -> placement::Policy {
        let sharing = self.offers.get(resource).map(|offer| offer.sharing());
        self.policy.placement(resource, sharing.unwrap_or_default())
    }

    /// Devices of a pool: those of its offer, and those that the configuration assigns to it. Some of the latter may be
    /// offered to claims instead. `None` before the first inventory.
    pub fn devices_of_pool(&self, pool: &ResourceName) -> Option<BTreeSet<DeviceId>> {
        let offered_devices = self.offers.get(pool).into_iter().flat_map(|offer| &offer.devices);
        let offered_devices = offered_devices.filter(|(_, device)| device.pooled().is_some());
        let assignments = offers::assigned_resources(&self.policy, &self.inventory).into_iter();
        let configured_devices = assignments.filter(|(_, assigned_resource)| {
            assigned_resource.name == *pool
                && matches!(assigned_resource.sharing, Sharing::Pooled(_))
        });
        let ids =
            offered_devices.map(|(id, _)| id.clone()).chain(configured_devices.map(|(id, _)| id));
        (self.inventory.generation > 0).then(|| ids.collect())
    }

    /// Each device's resource, or the reason why it has none. Devices that no rule selects are omitted.
    pub fn device_offers(&self) -> BTreeMap<DeviceId, DeviceOffer> {
        let enforcement = |id: &DeviceId| self.enforcement(self.inventory.get(id.as_str())?);
        let withheld = self.withheld.iter().map(|(id, reason)| {
            let enforcement = enforcement(id);
            (id.clone(), DeviceOffer { enforcement, ..DeviceOffer::withheld(reason) })
        });
        let offered = self.offers.iter().flat_map(|(name, offer)| {
            let devices = offer.devices.iter();
            devices.map(move |(id, device)| {
                let enforcement = enforcement(id);
                (id.clone(), DeviceOffer { enforcement, ..DeviceOffer::from_offered(name, device) })
            })
        });
        withheld.chain(offered).collect()
    }

    /// True if the device may be allocated to a claim once it is free.
    pub fn is_claimable(&self, id: &DeviceId) -> bool {
        self.claimable.contains_key(id)
    }

    /// Reason why a device that the configuration assigns to claims cannot be allocated to them.
    pub fn unclaimable_reason(&self, id: &DeviceId) -> Option<&'static str> {
        self.unclaimable.get(id).copied()
    }

    /// Reason why a healthy device, or its parent GPU, cannot be allocated to a claim.
    pub fn obstacle(&self, device: &Device) -> Option<&Obstacle> {
        let parent_obstacle = || self.claim_obstacles.get(device.parent.as_ref()?);
        self.claim_obstacles.get(&device.id).or_else(parent_obstacle)
    }

    /// Topology of an inventory. Reuses the current topology if no device has changed its location.
    pub fn topology_of(&self, inventory: &Inventory) -> Arc<Topology> {
        let (devices, last_devices) = (&inventory.devices, &self.inventory.devices);
        let mut pairs = devices.iter().zip(last_devices);
        let is_unchanged = pairs.all(|(device, last)| topology_key(device) == topology_key(last));
        if devices.len() == last_devices.len() && is_unchanged {
            return self.topology.clone();
        }
        Arc::new(Topology::from_inventory(inventory))
    }

    /// True if `nvidia.com/gpu` counts virtual GPUs.
    pub fn counts_virtual_gpus(&self) -> bool {
        let mut offers =
            self.offers.iter().filter(|(name, _)| name.as_str() == virtual_gpus::COUNT_RESOURCE);
        offers.any(|(_, offer)| offer.counts_shares())
    }

    /// True if the kubelet must call the agent before a container of the resource starts: for cleanup steps, or because
    /// a share gets its GPU then.
    pub fn needs_pre_start(&self, resource: &ResourceName) -> bool {
        let counts_shares = self.offers.get(resource).is_some_and(|offer| offer.counts_shares());
        counts_shares || self.needs_cleanup(resource)
    }

    fn needs_cleanup(&self, resource: &ResourceName) -> bool {
        let mut ids = self.offers.get(resource).into_iter().flat_map(|offer| offer.devices.keys());
        ids.any(|id| {
            let device = self.inventory.get(id.as_str());
            device.is_some_and(|device| cleanup::is_configured(&self.policy, device))
        })
    }

    /// Checks that a container runtime finds these devices in CDI documents. Fails with the reason for the kubelet.
    pub fn check_documents(&self, devices: &[&Device]) -> Result<(), String> {
        let concerns =
            |kind: &Kind| devices.iter().any(|device| self.node_extras.gets_names_of(device, kind));
        if let Some((_, error)) = self.document_errors.iter().find(|(kind, _)| concerns(kind)) {
            return Err(error.to_string());
        }
        let documents = self.documents.iter().filter(|(kind, _)| concerns(kind));
        match documents.map(|(_, path)| path).find(|path| !path.exists()) {
            None => Ok(()),
            Some(path) => Err(format!(
                "CDI document {} was removed; it is written again within ten seconds",
                path.display()
            )),
        }
    }

    /// Kind of the replicas of each device that was allocatable since the agent started.
    pub fn replica_kinds(&self) -> impl Iterator<Item = (DeviceId, ReplicaKind)> + '_ {
        let devices = self.offers.values().flat_map(|offer| &offer.devices);
        let allocated = devices.filter(|(_, device)| device.was_allocatable());
        allocated.filter_map(|(id, device)| Some((id.clone(), device.shared()?.into())))
    }

    /// Pool of each pooled device.
    pub fn pools(&self) -> impl Iterator<Item = (DeviceId, ResourceName)> + '_ {
        self.offers.iter().flat_map(|(name, offer)| {
            let pooled = offer.devices.iter().filter(|(_, device)| device.pooled().is_some());
            pooled.map(|(id, _)| (id.clone(), name.clone()))
        })
    }

    /// Present devices that were allocatable since the agent started.
    pub fn present_once_allocatable(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let devices = self.offers.values().flat_map(|offer| offer.once_allocatable());
        devices.filter(|id| {
            self.inventory.get(id.as_str()).is_some_and(|device| !device.health.has_vanished())
        })
    }

    /// Equality apart from the inventory's generation.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.inventory.has_same_content(&other.inventory)
            && self.policy == other.policy
            && self.offers == other.offers
            && self.withheld == other.withheld
            && self.empty_resources == other.empty_resources
            && self.claimable == other.claimable
            && self.unclaimable == other.unclaimable
            && self.shareable == other.shareable
            && self.node_extras == other.node_extras
            && self.documents == other.documents
            && self.missing_parts == other.missing_parts
            && self.document_errors == other.document_errors
            && self.absences == other.absences
            && self.limit_support == other.limit_support
            && self.replica_memory == other.replica_memory
            && self.disk_slow_since == other.disk_slow_since
            && self.claim_obstacles == other.claim_obstacles
            && self.pending_cleanups == other.pending_cleanups
            && self.failed_cleanups == other.failed_cleanups
            && self.claims_may_be_missing == other.claims_may_be_missing
    }
}

/// Properties of a device on which the topology depends.
fn topology_key(device: &Device) -> impl PartialEq + '_ {
    let restrictions = (&device.withheld, &device.exclusive_use_refusal, &device.sharing_refusal);
    (&device.id, &device.place, device.health.has_vanished(), restrictions)
}

// === impl DeviceOffer ===

impl DeviceOffer {
    fn withheld(reason: &str) -> Self {
        let obstacle = Some(reason.to_owned());
        Self { resource: None, shared: None, enforcement: None, obstacle }
    }

    fn from_offered(name: &ResourceName, device: &OfferedDevice) -> Self {
        let obstacle = device.state.obstacle().map(str::to_owned);
        let shared = match device.sharing {
            Sharing::Exclusive => None,
            Sharing::Shared(shared) => Some(SharingSummary {
                method: shared.method,
                replicas: shared.replicas.get(),
                memory_mib: shared.memory_mib,
                pool: false,
            }),
            Sharing::Pooled(pooled) => Some(SharingSummary {
                method: SharingMethod::Shared,
                replicas: pooled.tokens.get(),
                memory_mib: None,
                pool: true,
            }),
        };
        Self { resource: Some(name.clone()), shared, enforcement: None, obstacle }
    }
}
