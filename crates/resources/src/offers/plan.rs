//! Plan of the resources from inventory and policy. No device is ever allocatable through two resources.
//!
//! A device stays with the resource through which it was allocatable since the agent started, even if it matches other
//! rules later. Only a new policy moves it, in three steps, since the kubelet may be allocating it right now:
//!
//! ```text
//!   kept ──policy changed──> waiting ──every Allocate is in the kubelet's checkpoint──> moved
//!                            (listed as unhealthy,                   (offered again; not allocatable
//!                             every Allocate is refused)              while a container holds it)
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use windlass_allocations::{HeldIds, duplicates::duplicates};
use windlass_config::{
    DraOffer, Policy, Resources, ShareResources, Shared, Sharing, SharingMethod,
};
use windlass_core::{
    device::{Device, DeviceId, Partitioning},
    inventory::Inventory,
    replica::{ReplicaId, device_of_id, token_number},
    resource::ResourceName,
};

use super::{
    Allocatability, Fingerprints, Offer, OfferedDevice, Offers, WithdrawnId,
    assignment::{AssignedResource, Assigner, Assignment, ExclusiveUse, present_parts},
    diagnose::{PlanResults, diagnose},
    earlier_ids,
    shares::{ShareTokens, ShareUnit, ShareableGpu, ShareableGpus},
};

/// Kind of each device's replicas at its last allocation.
pub type ReplicaKinds = BTreeMap<DeviceId, ReplicaKind>;

/// Sharing method and memory of replicas. A device never has replicas of two kinds at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaKind {
    method: SharingMethod,
    memory_mib: Option<u64>,
}

/// Pooled resource of each device at its last allocation. The kubelet counts a pool's devices as tokens, which name no
/// device.
pub type Pools = BTreeMap<DeviceId, ResourceName>;

/// Inputs of a plan.
#[derive(Clone, Copy)]
pub struct OfferInputs<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The devices.
    pub inventory: &'a Inventory,
    /// Resources of the last plan.
    pub previous: &'a Offers,
    /// Ids that containers hold.
    pub held: &'a HeldIds,
    /// Kind of each device's held replicas, if known.
    pub replica_kinds: &'a ReplicaKinds,
    /// Pool that each device was part of, if known.
    pub pools: &'a Pools,
    /// Recorded hardware of every id that a container may hold.
    pub fingerprints: &'a Fingerprints,
    /// Permission to move devices to another resource.
    pub move_permission: MovePermission,
    /// Returns the reason why a healthy device cannot be allocated, if any.
    pub obstacle: &'a dyn Fn(&Device, Sharing) -> Option<String>,
    /// Returns the reason why a healthy GPU cannot have shares by amounts, if any.
    pub share_obstacle: &'a dyn Fn(&Device) -> Option<String>,
    /// Returns the cleanup that the device needs first, if any, in words.
    pub cleanup: &'a dyn Fn(&DeviceId) -> Option<String>,
}

impl std::fmt::Debug for OfferInputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfferInputs").finish_non_exhaustive()
    }
}

/// Permission to move devices to another resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovePermission {
    /// Every device stays with its resource.
    Denied,
    /// The policy is new: devices that must move are listed, but cannot be allocated.
    Pending,
    /// The kubelet's checkpoint names every holder: waiting devices move.
    Allowed,
}

/// The planned resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The resources.
    pub offers: Offers,
    /// Devices outside every resource, with the reason. Devices that no rule selects are omitted.
    pub withheld: BTreeMap<DeviceId, String>,
    /// True if a device waits for its move.
    pub has_pending_moves: bool,
    /// Devices shared by MPS, unless a container holds them in another form.
    pub mps: BTreeMap<DeviceId, Shared>,
    /// Configured resources without a device, with the reason.
    pub empty_resources: BTreeMap<ResourceName, String>,
    /// Devices for claims, with the sharing among several claims.
    pub claimable: ClaimableDevices,
    /// Devices that the configuration assigns to claims, but that cannot be allocated to claims, with the reason.
    pub unclaimable: UnclaimableDevices,
    /// GPUs of which pods may have shares by amounts.
    pub shareable: ShareableGpus,
}

/// Devices for claims, with the sharing among several claims.
pub type ClaimableDevices = BTreeMap<DeviceId, Sharing>;

/// Devices that the configuration assigns to claims, but that cannot be allocated to claims, with the reason.
pub type UnclaimableDevices = BTreeMap<DeviceId, &'static str>;

/// Reason for a device that is offered to claims and not to the device plugin.
const OFFERED_TO_CLAIMS: &str = "offered through Dynamic Resource Allocation instead";

/// Reason why a device that is shared by MPS is not offered to claims.
const SHARED_BY_MPS: &str = "it is shared by MPS among the containers of its resource, which claims cannot join: \
    name it under dra.shares instead of the resource's sharing";

/// Reason why a device whose replicas have a configured memory is not offered to claims.
const SHARED_BY_MEMORY: &str = "its resource has replicas with a given memory, which claims cannot get: name it under \
    dra.shares instead of the resource's sharing";

/// Reason why a device in the resource of virtual GPUs is not offered.
const NOT_COUNTED: &str = "its resource counts virtual GPUs (shares.gpus), but it is no whole GPU that pods can share: \
    assign it to another resource";

/// Reason why a GPU on which instances are created for claims, and these instances, are not offered.
const DIVIDED_FOR_CLAIMS: &str =
    "MIG instances are made on this GPU for claims: dra.partitions is onDemand";

struct Planner<'a> {
    inputs: OfferInputs<'a>,
    /// Devices that were allocatable since the agent started.
    once_allocatable: BTreeSet<DeviceId>,
    /// Earlier ids of each device or of its parts.
    earlier_ids: BTreeMap<DeviceId, BTreeSet<DeviceId>>,
    offers: BTreeMap<ResourceName, Offer>,
    withheld: BTreeMap<DeviceId, String>,
    has_pending_moves: bool,
    mps: BTreeMap<DeviceId, Shared>,
    claimable: ClaimableDevices,
    unclaimable: UnclaimableDevices,
    shareable: ShareableGpus,
}

/// Resource name and form of id under which the kubelet counts a device. The kubelet does not know that two identities
/// are the same device.
#[derive(Clone, Debug, PartialEq)]
struct KubeletIdentity {
    name: ResourceName,
    form: IdForm,
}

/// Form of a device's ids. Replicas of different kinds differ, though their ids are equal. The kind is unknown for
/// replicas that were held when the agent started: an unknown kind equals every kind.
#[derive(Clone, Copy, Debug)]
enum IdForm {
    Device,
    Replicas(Option<ReplicaKind>),
    Tokens,
}

impl PartialEq for IdForm {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Replicas(Some(one)), Self::Replicas(Some(other))) => one == other,
            (Self::Device, Self::Device)
            | (Self::Replicas(_), Self::Replicas(_))
            | (Self::Tokens, Self::Tokens) => true,
            _ => false,
        }
    }
}

/// Plans the resources of an inventory.
pub fn plan(inputs: OfferInputs<'_>) -> Plan {
    let assigner = Assigner::new(inputs.policy, inputs.inventory);
    let mut planner = Planner {
        inputs,
        once_allocatable: inputs
            .previous
            .values()
            .flat_map(|offer| offer.once_allocatable())
            .collect(),
        earlier_ids: earlier_ids(inputs.fingerprints, inputs.inventory),
        offers: BTreeMap::new(),
        withheld: BTreeMap::new(),
        has_pending_moves: false,
        mps: BTreeMap::new(),
        claimable: ClaimableDevices::new(),
        unclaimable: UnclaimableDevices::new(),
        shareable: ShareableGpus::new(),
    };
    let devices = inputs.inventory.devices.iter();
    let mut assignments: Vec<_> = devices.map(|device| (device, assigner.assign(device))).collect();
    planner.withhold_duplicates(&mut assignments);
    for (device, assignment) in assignments {
        let exclusive_use = assigner.exclusive_use(device);
        planner.add_shareable(device, &assignment, exclusive_use);
        let assignment = planner.offer_to_claims(device, assignment, exclusive_use);
        let assignment = planner.remove_counted_by_shares(device, assignment);
        planner.apply_assignment(device, assignment);
    }
    planner.offer_shares();
    planner.list_once_allocatable();
    planner.list_held();
    planner.finish()
}

// === impl Planner ===

impl Planner<'_> {
    /// Withholds all but one of the devices that several sources found for the same hardware. A device that a container
    /// holds, or that was allocatable, takes precedence.
    fn withhold_duplicates(&self, assignments: &mut [(&Device, Assignment)]) {
        let held = self.inputs.held.values().flatten().filter_map(|id| device_of_id(id));
        let preferred = held.chain(self.once_allocatable.iter().cloned()).collect();
        let offered_devices = assignments
            .iter()
            .filter(|(device, assignment)| self.is_or_was_offered(&device.id, assignment));
        let mut reasons = duplicates(offered_devices.map(|(device, _)| *device), &preferred);
        for (device, assignment) in assignments {
            if let Some(reason) = reasons.remove(&device.id) {
                *assignment = Assignment::Unusable(reason);
            }
        }
    }

    /// True if the device is assigned to a resource, or was offered and has not moved yet, so that a container may hold
    /// it.
    fn is_or_was_offered(&self, id: &DeviceId, assignment: &Assignment) -> bool {
        match assignment {
            Assignment::Resource(_) => true,
            Assignment::Withheld(_) | Assignment::Unassigned
                if self.inputs.move_permission == MovePermission::Allowed =>
            {
                false
            }
            Assignment::Withheld(_) | Assignment::Unusable(_) | Assignment::Unassigned => {
                self.current_resource(id).is_some()
            }
        }
    }

    /// Makes a device claimable if the configuration assigns it to claims. Returns the assignment that remains for the
    /// device plugin.
    fn offer_to_claims(
        &mut self,
        device: &Device,
        assignment: Assignment,
        exclusive_use: ExclusiveUse,
    ) -> Assignment {
        let policy = &self.inputs.policy.dra;
        let is_for_claims = policy.offers(device, device.mig_profile());
        let is_divided = self.is_divided_for_claims(device);
        if device.health.has_vanished() {
            // A vanished device creates no new resource. One that was allocatable stays listed.
            let is_unassigned = is_divided || (is_for_claims && policy.offer == DraOffer::Instead);
            return if is_unassigned { Assignment::Unassigned } else { assignment };
        }
        if is_divided {
            return Assignment::Withheld(DIVIDED_FOR_CLAIMS.to_owned());
        }
        let sharing = match &assignment {
            Assignment::Resource(resource) => resource.sharing,
            Assignment::Unassigned if exclusive_use == ExclusiveUse::Possible => Sharing::Exclusive,
            Assignment::Unassigned | Assignment::Withheld(_) | Assignment::Unusable(_) => {
                return assignment;
            }
        };
        if !is_for_claims {
            return assignment;
        }
        if sharing.is_mps() {
            // The daemon serves the resource's containers: a published device would always be refused.
            self.unclaimable.insert(device.id.clone(), SHARED_BY_MPS);
            return assignment;
        }
        if matches!(sharing, Sharing::Shared(shared) if shared.memory_mib.is_some()) {
            self.unclaimable.insert(device.id.clone(), SHARED_BY_MEMORY);
            return assignment;
        }
        self.claimable.insert(device.id.clone(), sharing);
        match policy.offer {
            DraOffer::Instead => Assignment::Withheld(OFFERED_TO_CLAIMS.to_owned()),
            DraOffer::Beside | DraOffer::Off => assignment,
        }
    }

    /// Makes a GPU shareable by amounts, if the configuration counts it and it is not shared in another way.
    fn add_shareable(
        &mut self,
        device: &Device,
        assignment: &Assignment,
        exclusive_use: ExclusiveUse,
    ) {
        let is_exclusive = match assignment {
            Assignment::Resource(resource) => resource.sharing == Sharing::Exclusive,
            Assignment::Unassigned => exclusive_use == ExclusiveUse::Possible,
            Assignment::Withheld(_) | Assignment::Unusable(_) => false,
        };
        let is_shareable = is_exclusive
            && self.inputs.policy.shares.counts_amounts_of(device)
            && device.sharing_refusal.is_none()
            && !self.is_divided_for_claims(device);
        if is_shareable && let Some(memory_mib) = device.memory_mib() {
            let obstacle = self.share_obstacle(device);
            self.shareable.insert(device.id.clone(), ShareableGpu { memory_mib, obstacle });
        }
    }

    /// Removes a device from the resource that counts virtual GPUs, because that resource's ids stand for no device.
    fn remove_counted_by_shares(&self, device: &Device, assignment: Assignment) -> Assignment {
        let counting_resource = self.inputs.policy.shares.gpus.as_ref();
        match &assignment {
            Assignment::Resource(resource) if counting_resource == Some(&resource.name) => {
                if self.shareable.contains_key(&device.id) {
                    Assignment::Unassigned
                } else {
                    Assignment::Withheld(NOT_COUNTED.to_owned())
                }
            }
            _ => assignment,
        }
    }

    fn share_obstacle(&self, device: &Device) -> Option<String> {
        unhealthy_reason(device)
            .or_else(|| (self.inputs.share_obstacle)(device))
            .or_else(|| (self.inputs.cleanup)(&device.id))
    }

    /// Offers the resources that count amounts of the shareable GPUs.
    fn offer_shares(&mut self) {
        let ShareResources { memory, compute, gpus, per_gpu, .. } = &self.inputs.policy.shares;
        let virtual_gpu = ShareUnit::VirtualGpu(per_gpu.get());
        for (name, unit) in
            [(memory, ShareUnit::Gibibyte), (compute, ShareUnit::Percent), (gpus, virtual_gpu)]
        {
            if let Some((name, tokens)) =
                name.as_ref().zip(ShareTokens::from_gpus(unit, &self.shareable))
            {
                self.offers.entry(name.clone()).or_default().shares = Some(tokens);
            }
        }
    }

    /// True if MIG instances are created for claims on this GPU, or on this instance's GPU.
    fn is_divided_for_claims(&self, device: &Device) -> bool {
        let OfferInputs { policy, inventory, .. } = self.inputs;
        let gpu = device.parent.as_ref().and_then(|id| inventory.get(id.as_str()));
        policy.creates_instances_for_claims(gpu.unwrap_or(device))
    }

    /// Offers, withholds or moves a device, by its assignment, its current resource, and the permission to move.
    fn apply_assignment(&mut self, device: &Device, assignment: Assignment) {
        let current_resource = self.current_resource(&device.id);
        let move_permission = self.inputs.move_permission;
        match (assignment, current_resource) {
            (Assignment::Resource(resource), Some(current))
                if current.kubelet_identity() == resource.kubelet_identity() =>
            {
                self.offer(device, &resource);
            }
            (Assignment::Unusable(reason), Some(current)) => {
                self.list_unallocatable(device, &current, reason);
            }
            // A divided device is no longer offered, even without permission to move: its parts are.
            (Assignment::Unassigned, Some(_))
                if device.partitioned && move_permission != MovePermission::Pending => {}
            (_, Some(current)) if move_permission == MovePermission::Denied => {
                self.offer(device, &current);
            }
            (assignment, Some(current)) if move_permission == MovePermission::Pending => {
                self.has_pending_moves = true;
                self.list_unallocatable(device, &current, move_reason(assignment));
            }
            // From here on the device has no current resource, or may move from it.
            (Assignment::Resource(resource), _) => self.offer(device, &resource),
            (Assignment::Withheld(reason) | Assignment::Unusable(reason), _) => {
                self.withheld.insert(device.id.clone(), reason);
            }
            (Assignment::Unassigned, _) => {}
        }
    }

    /// Resource through which the device was allocatable since the agent started.
    fn current_resource(&self, id: &DeviceId) -> Option<AssignedResource> {
        self.inputs.previous.iter().find_map(|(name, offer)| {
            let device = offer.devices.get(id).filter(|device| device.was_allocatable)?;
            Some(AssignedResource { name: name.clone(), sharing: device.sharing })
        })
    }

    fn offer(&mut self, device: &Device, resource: &AssignedResource) {
        let current_resource = self.current_resource(&device.id);
        let state = self.allocatability(device, resource);
        let was_allocatable = current_resource
            .is_some_and(|current| current.kubelet_identity() == resource.kubelet_identity());
        self.insert(device, resource, was_allocatable || state == Allocatability::Ready, state);
    }

    /// Keeps the device listed, but not allocatable.
    fn list_unallocatable(&mut self, device: &Device, current: &AssignedResource, reason: String) {
        self.insert(device, current, true, Allocatability::Blocked(reason));
    }

    fn insert(
        &mut self,
        device: &Device,
        resource: &AssignedResource,
        was_allocatable: bool,
        state: Allocatability,
    ) {
        let (sharing, numa_node) = (resource.sharing, self.numa_hint(device));
        let offered_device = OfferedDevice { state, sharing, numa_node, was_allocatable };
        let offer = self.offers.entry(resource.name.clone()).or_default();
        offer.devices.insert(device.id.clone(), offered_device);
    }

    /// NUMA node that the kubelet gets as a hint.
    fn numa_hint(&self, device: &Device) -> Option<u32> {
        let is_hinted = !device.kind.is_network() || self.inputs.policy.nics.numa_hints;
        device.place.numa_node.filter(|_| is_hinted)
    }

    fn allocatability(&mut self, device: &Device, resource: &AssignedResource) -> Allocatability {
        let conflict = self.conflict(device, resource);
        if conflict.is_none()
            && let Sharing::Shared(shared) = resource.sharing
            && shared.method == SharingMethod::Mps
        {
            self.mps.insert(device.id.clone(), shared);
        }
        let reason = unhealthy_reason(device)
            .or(conflict)
            .or_else(|| self.part_failure(device))
            .or_else(|| (self.inputs.obstacle)(device, resource.sharing));
        match reason {
            Some(reason) => Allocatability::Blocked(reason),
            None => (self.inputs.cleanup)(&device.id)
                .map_or(Allocatability::Ready, Allocatability::AfterCleanup),
        }
    }

    /// Failure of a part, for a GPU that is offered as a whole although it is divided.
    fn part_failure(&self, device: &Device) -> Option<String> {
        let parts = present_parts(self.inputs.inventory, &device.id);
        let failures =
            parts.filter_map(|part| Some(format!("{}: {}", part.id, part.health.failure()?)));
        device.partitioned.then_some(failures)?.next()
    }

    /// Reason why the device cannot be allocated yet: a container may hold it, its parent or a part in another way.
    fn conflict(&mut self, device: &Device, resource: &AssignedResource) -> Option<String> {
        if self.inputs.move_permission == MovePermission::Pending
            && self.was_allocatable_under_other_id(device)
        {
            self.has_pending_moves = true;
            return Some("moves from another resource".to_owned());
        }
        let identity = resource.kubelet_identity();
        let device_identity =
            self.held_identities(&device.id).find(|held_identity| *held_identity != identity);
        let mut relatives = self.relatives(device).chain(self.earlier(device));
        let held_identity =
            device_identity.or_else(|| relatives.find_map(|id| self.held_identities(id).next()));
        held_identity
            .map(|held_identity| format!("a container holds it as {}", held_identity.name))
            .or_else(|| self.memory_conflict(device, resource))
    }

    /// Reason why the device cannot be allocated: containers hold replicas with another memory, perhaps from an earlier
    /// agent.
    fn memory_conflict(&self, device: &Device, resource: &AssignedResource) -> Option<String> {
        let is_held = self.held_identities(&device.id).next().is_some();
        let fingerprint = self.inputs.fingerprints.get(&device.id).filter(|_| is_held)?;
        let memory_mib = memory_of(resource.sharing);
        let reason = || "containers hold replicas of it that have other memory".to_owned();
        (!fingerprint.has_replicas_of(memory_mib)).then(reason)
    }

    /// True if a container may hold hardware of this device under another id. A parent or part counts while a resource
    /// lists it. An earlier id counts if it was allocatable since the agent started, because no record shows that it
    /// has moved.
    fn was_allocatable_under_other_id(&self, device: &Device) -> bool {
        self.relatives(device).any(|id| self.current_resource(id).is_some())
            || self.earlier(device).any(|id| self.once_allocatable.contains(id))
    }

    /// Parent and parts of a device.
    fn relatives<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = &'a DeviceId> {
        let parts = self.inputs.inventory.parts_of(&device.id).map(|part| &part.id);
        device.parent.iter().chain(parts)
    }

    /// Earlier ids of the device or of its parts, which a container may still hold.
    fn earlier(&self, device: &Device) -> impl Iterator<Item = &DeviceId> {
        self.earlier_ids.get(&device.id).into_iter().flatten()
    }

    /// Identities under which containers hold a device.
    fn held_identities<'a>(
        &'a self,
        id: &'a DeviceId,
    ) -> impl Iterator<Item = KubeletIdentity> + 'a {
        let is_replica =
            move |held: &String| held.parse().is_ok_and(|replica: ReplicaId| replica.device == *id);
        self.inputs.held.iter().flat_map(move |(name, ids)| {
            let device_form = ids.contains(id.as_str()).then_some(IdForm::Device);
            let kind = self.inputs.replica_kinds.get(id).copied();
            let replicas = ids.iter().any(is_replica).then_some(IdForm::Replicas(kind));
            let is_pooled = self.inputs.pools.get(id) == Some(name);
            let has_tokens = is_pooled && ids.iter().any(|id| token_number(id).is_some());
            let tokens = has_tokens.then_some(IdForm::Tokens);
            let forms = device_form.into_iter().chain(replicas).chain(tokens);
            forms.map(|form| KubeletIdentity { name: name.clone(), form })
        })
    }

    /// Keeps ids listed that were allocatable since the agent started.
    fn list_once_allocatable(&mut self) {
        for (name, last_offer) in self.inputs.previous {
            let devices = last_offer.devices.iter().filter(|(_, device)| device.was_allocatable);
            let ids = devices.flat_map(|(id, device)| device.list(id).map(|entry| entry.id));
            let withdrawn = last_offer.withdrawn.iter().filter(|(_, entry)| entry.was_allocatable);
            let withdrawn_ids = withdrawn.map(|(id, _)| id.clone());
            let tokens = last_offer.once_allocatable_tokens();
            for id in ids.map(String::from).chain(tokens).chain(withdrawn_ids) {
                self.list_withdrawn(name, id, true);
            }
        }
    }

    /// Keeps held ids listed, if their resource is still offered, or if an earlier agent offered them and claims may
    /// wait for their device: without a list the kubelet would not write that a holder has ended.
    fn list_held(&mut self) {
        for (name, ids) in self.inputs.held {
            let is_offered = self.offers.contains_key(name);
            for id in ids {
                if is_offered || self.was_offered(name, id) {
                    self.list_withdrawn(name, id.clone(), false);
                }
            }
        }
    }

    /// True if claims are offered, and this or an earlier agent offered the id's device through this resource. An id
    /// that no agent offered is another plugin's.
    fn was_offered(&self, name: &ResourceName, id: &str) -> bool {
        let fingerprint = || self.inputs.fingerprints.get(&device_of_id(id)?);
        self.inputs.policy.dra.offer != DraOffer::Off
            && fingerprint().is_some_and(|fingerprint| fingerprint.was_offered_as(name))
    }

    /// Keeps an id listed as unallocatable, unless it is offered.
    fn list_withdrawn(&mut self, name: &ResourceName, id: String, was_allocatable: bool) {
        let inventory = self.inputs.inventory;
        let offer = self.offers.entry(name.clone()).or_default();
        if offer.resolve(&id).is_some() {
            return;
        }
        let replica_device = id.parse::<ReplicaId>().map(|replica| replica.device.to_string());
        let device_id = replica_device.as_deref().unwrap_or(&id);
        let device = inventory.get(device_id);
        let is_listed_otherwise =
            offer.devices.contains_key(device_id) || offer.devices.contains_key(id.as_str());
        let reason = match device {
            _ if is_listed_otherwise || offer.pool().is_some() => "shared in another way now",
            None if token_number(&id).is_some() => "no longer offered as this resource",
            Some(device) if device.partitioned => match device.family().partitioning {
                Partitioning::Mig => "cut into MIG instances",
                Partitioning::Parts | Partitioning::Never => "cut into parts",
            },
            Some(_) => "no longer offered as this resource",
            None => "no longer on this node",
        };
        let numa_node = device.and_then(|device| device.place.numa_node);
        let state = Allocatability::Blocked(reason.to_owned());
        offer.withdrawn.insert(id, WithdrawnId { state, numa_node, was_allocatable });
    }

    fn finish(self) -> Plan {
        let OfferInputs { policy, inventory, previous, .. } = self.inputs;
        let empty_reasons = match &policy.resources {
            Resources::Default => BTreeMap::new(),
            Resources::Rules(rules) => {
                let (offers, withheld) = (&self.offers, &self.withheld);
                diagnose(rules, PlanResults { inventory, offers, withheld })
            }
        };
        let offers =
            self.offers.into_iter().map(|(name, offer)| reuse_unchanged(name, offer, previous));
        Plan {
            offers: offers.collect(),
            withheld: self.withheld,
            has_pending_moves: self.has_pending_moves,
            mps: self.mps,
            empty_resources: empty_reasons,
            claimable: self.claimable,
            unclaimable: self.unclaimable,
            shareable: self.shareable,
        }
    }
}

/// Reason why a device that is not healthy cannot be allocated.
fn unhealthy_reason(device: &Device) -> Option<String> {
    if device.health.is_healthy() {
        return None;
    }
    let failure = device.health.failure().map(ToString::to_string);
    Some(failure.unwrap_or_else(|| "not probed yet".to_owned()))
}

fn move_reason(assignment: Assignment) -> String {
    match assignment {
        Assignment::Resource(resource) => format!("moves to {}", resource.name),
        Assignment::Withheld(reason) | Assignment::Unusable(reason) => reason,
        Assignment::Unassigned => "other devices are offered in its place".to_owned(),
    }
}

/// Reuses the `Arc` of an unchanged offer, so that later comparisons are cheap.
fn reuse_unchanged(
    name: ResourceName,
    offer: Offer,
    previous: &Offers,
) -> (ResourceName, Arc<Offer>) {
    let unchanged = previous.get(&name).filter(|earlier| ***earlier == offer);
    let offer = unchanged.cloned().unwrap_or_else(|| Arc::new(offer));
    (name, offer)
}

/// Memory of a replica in MiB, if the configuration sets it.
fn memory_of(sharing: Sharing) -> Option<u64> {
    match sharing {
        Sharing::Shared(shared) => shared.memory_mib,
        Sharing::Exclusive | Sharing::Pooled(_) => None,
    }
}

// === impl Plan ===

impl Plan {
    /// Memory of the device's replicas in MiB, if the configuration sets it.
    pub(super) fn replica_memory(&self, device: &DeviceId) -> Option<u64> {
        let mut offered_devices =
            self.offers.values().filter_map(|offer| offer.devices.get(device));
        memory_of(offered_devices.next()?.sharing)
    }
}

// === impl ReplicaKind ===

impl From<Shared> for ReplicaKind {
    fn from(Shared { method, memory_mib, .. }: Shared) -> Self {
        Self { method, memory_mib }
    }
}

// === impl AssignedResource ===

impl AssignedResource {
    fn kubelet_identity(&self) -> KubeletIdentity {
        let form = match self.sharing {
            Sharing::Exclusive => IdForm::Device,
            Sharing::Shared(shared) => IdForm::Replicas(Some(shared.into())),
            Sharing::Pooled(_) => IdForm::Tokens,
        };
        KubeletIdentity { name: self.name.clone(), form }
    }
}
