//! Plans step by step: offered resources, listed ids, and a single owner of each device.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use windlass_allocations::HeldIds;
use windlass_config::{
    DraOffer, MigStrategy, PerContainer, Policy, Replicas, ResourceRule, Resources, Selector,
    Shared, Sharing, SharingMethod,
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Quantity},
    device::{Device, DeviceId, DeviceKind, DeviceNode, MIG_PROFILE, SourceName},
    health::{HealthTracker, Observation, Reason},
    inventory::Inventory,
    resource::ResourceName,
};
use windlass_discovery::default_resource;

use super::{
    Allocatability, Fingerprints, MovePermission, OfferInputs, Offers, Plan, Pools, ReplicaKinds,
    plan, record, replica_sizes,
};

/// A node with successive plans, as the reconciler makes them.
struct Node {
    policy: Policy,
    devices: Vec<Device>,
    held: HeldIds,
    replica_kinds: ReplicaKinds,
    fingerprints: Fingerprints,
    move_permission: MovePermission,
    plan: Plan,
}

impl Node {
    fn new(devices: Vec<Device>) -> Self {
        Self {
            policy: Policy::default(),
            devices,
            held: HeldIds::new(),
            replica_kinds: ReplicaKinds::new(),
            fingerprints: Fingerprints::new(),
            move_permission: MovePermission::Denied,
            plan: Plan::default(),
        }
    }

    fn with_rules(mut self, rules: Vec<ResourceRule>) -> Self {
        self.policy.resources = Resources::Rules(rules);
        self
    }

    fn with_mig(mut self, strategy: MigStrategy) -> Self {
        self.policy.mig = strategy;
        self
    }

    fn plan(&mut self) -> &mut Self {
        let mut inventory = Inventory { devices: self.devices.clone(), ..Inventory::default() };
        inventory.sort();
        let previous = std::mem::take(&mut self.plan.offers);
        self.plan = plan(OfferInputs {
            policy: &self.policy,
            inventory: &inventory,
            previous: &previous,
            held: &self.held,
            replica_kinds: &self.replica_kinds,
            pools: &Pools::new(),
            fingerprints: &self.fingerprints,
            move_permission: self.move_permission,
            obstacle: &|_, _| None,
            share_obstacle: &|_| None,
            cleanup: &|_| None,
        });
        record(&mut self.fingerprints, &self.plan, &inventory, &self.held);
        self
    }

    /// Restarts the agent: plans are lost, fingerprints are on disk.
    fn restart(&mut self) -> &mut Self {
        self.plan = Plan::default();
        self.move_permission = MovePermission::Denied;
        self
    }

    fn set_held_ids(&mut self, resource: &str, ids: &[&str]) -> &mut Self {
        let ids = ids.iter().map(ToString::to_string).collect();
        self.held = HeldIds::from([(name(resource), ids)]);
        self
    }

    /// Each id of a resource, with the reason why it cannot be allocated, or an empty text.
    fn entries(&self, resource: &str) -> Vec<(String, String)> {
        let Some(offer) = self.plan.offers.get(&name(resource)) else { return Vec::new() };
        let state = |state: &Allocatability| state.obstacle().unwrap_or_default().to_owned();
        offer.list().map(|entry| (entry.id.into_owned(), state(entry.state))).collect()
    }

    fn allocatable_count(&self, resource: &str) -> usize {
        self.plan.offers.get(&name(resource)).map_or(0, |offer| offer.allocatable_count())
    }

    fn withheld_devices(&self) -> Vec<(&str, &str)> {
        self.plan.withheld.iter().map(|(id, reason)| (id.as_str(), reason.as_str())).collect()
    }

    /// No device is allocatable in two ways at once.
    fn assert_single_owners(&self) {
        let mut owned_ids = BTreeSet::new();
        for offer in self.plan.offers.values() {
            let ready_devices =
                offer.devices.iter().filter(|(_, device)| device.state == Allocatability::Ready);
            ready_devices
                .for_each(|(id, _)| assert!(owned_ids.insert(id.clone()), "{id} has two owners"));
        }
    }
}

const GPU: &str = "nvidia.com/gpu";

fn name(text: &str) -> ResourceName {
    text.parse().expect("valid")
}

fn device(id: &str, index: u32, observation: &Observation) -> Device {
    let mut tracker = HealthTracker::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    tracker.observe(observation, Timestamp::UNIX_EPOCH);
    let id = id.parse().expect("valid");
    Device {
        index,
        health: tracker.health().clone(),
        ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
    }
}

fn gpu(id: &str, index: u32) -> Device {
    device(id, index, &Observation::Passed)
}

fn gpus(count: u32) -> Vec<Device> {
    (0..count).map(|index| gpu(&format!("g{index}"), index)).collect()
}

/// A GPU in MIG mode, and its instances.
fn mig_gpu(id: &str, index: u32, profiles: &[&str]) -> Vec<Device> {
    let parent = Device { partitioned: true, ..gpu(id, index) };
    let part = |(part, profile): (usize, &&str)| Device {
        kind: DeviceKind::Mig,
        parent: Some(parent.id.clone()),
        part: u32::try_from(part).ok(),
        attributes: BTreeMap::from([(MIG_PROFILE, AttributeValue::string(*profile))]),
        ..gpu(&format!("{id}-{part}"), index)
    };
    let instances: Vec<_> = profiles.iter().enumerate().map(part).collect();
    std::iter::once(parent.clone()).chain(instances).collect()
}

fn shared(replicas: u64) -> Sharing {
    shared_by(SharingMethod::TimeSlicing, replicas)
}

fn shared_by(method: SharingMethod, replicas: u64) -> Sharing {
    Sharing::Shared(Shared {
        method,
        replicas: Replicas::try_from(replicas).expect("valid"),
        per_container: PerContainer::Any,
        memory_mib: None,
    })
}

/// Bytes of memory as the driver reports them.
fn memory(gib: u64) -> BTreeMap<AttributeName, Quantity> {
    BTreeMap::from([(AttributeName::new("nvidia.com", "memory"), Quantity::Bytes(gib << 30))])
}

/// At most this many replicas, each with this much memory.
fn shared_by_memory(gib: u64, replicas: u64) -> Sharing {
    let Sharing::Shared(shared) = shared(replicas) else { unreachable!("it is shared") };
    Sharing::Shared(Shared { memory_mib: Some(gib << 10), ..shared })
}

fn rule(resource: &str, index: &[u32], sharing: Sharing) -> ResourceRule {
    let index = index.iter().copied().collect();
    let devices = Selector { index, ..Selector::all(DeviceKind::Gpu) };
    ResourceRule::new(name(resource), devices, sharing)
}

fn entry(id: &str, reason: &str) -> (String, String) {
    (id.to_owned(), reason.to_owned())
}

#[test]
fn an_id_that_was_offered_is_never_dropped() {
    let mut node = Node::new(gpus(2));
    assert_eq!(node.plan().allocatable_count(GPU), 2);
    node.devices = mig_gpu("g1", 1, &["1g.5gb"]);
    node.plan();
    assert_eq!(
        node.entries(GPU),
        [entry("g0", "no longer on this node"), entry("g1", "cut into MIG instances")]
    );
    assert_eq!(node.allocatable_count("nvidia.com/mig-1g.5gb"), 1);
}

#[test]
fn amounts_count_unshared_whole_gpus_and_their_ids_stay_listed() {
    const AMOUNTS: &str = "windlass.dev/gpu-memory";
    let rules = vec![rule("a.com/shared", &[1], shared(3)), rule(GPU, &[], Sharing::Exclusive)];
    let mut node = Node::new(gpus(3)).with_rules(rules);
    node.policy.shares.memory = Some(name(AMOUNTS));
    for (device, gib) in node.devices.iter_mut().zip([2, 4, 3]) {
        device.capacity = memory(gib);
    }
    assert_eq!(node.plan().allocatable_count(AMOUNTS), 5);
    assert_eq!(node.plan.shareable.keys().map(DeviceId::as_str).collect::<Vec<_>>(), ["g0", "g2"]);
    let lost = Observation::Failed(Reason::Lost, "lost".into());
    node.devices[2] = Device { capacity: memory(3), ..device("g2", 2, &lost) };
    assert_eq!((node.plan().allocatable_count(AMOUNTS), node.entries(AMOUNTS).len()), (2, 5));
    node.devices[0].partitioned = true;
    assert_eq!((node.plan().allocatable_count(AMOUNTS), node.entries(AMOUNTS).len()), (0, 5));
    node.policy.shares.memory = None;
    node.plan();
    assert_eq!(node.entries(AMOUNTS)[0], entry("0", "no longer offered as this resource"));
    assert_eq!(node.entries(AMOUNTS).len(), 5);
}

#[test]
fn a_gpu_has_as_many_replicas_as_its_memory_allows() {
    let mut node = Node::new(gpus(4)).with_rules(vec![rule(GPU, &[], shared_by_memory(10, 6))]);
    for (device, gib) in node.devices.iter_mut().zip([80, 45, 8]) {
        device.capacity = memory(gib);
    }
    assert_eq!(node.plan().allocatable_count(GPU), 6 + 4);
    let replicas = |node: &Node, id: &str| {
        let offer = &node.plan.offers[&name(GPU)];
        offer.devices[id].shared().map(|shared| shared.replicas.get())
    };
    assert_eq!((replicas(&node, "g0"), replicas(&node, "g1")), (Some(6), Some(4)));
    let sizes = replica_sizes(&node.plan.offers, &node.fingerprints);
    assert_eq!((sizes["g0"].memory_mib, sizes["g0"].max_replicas), (10 << 10, 6));
    let [("g2", small_reason), ("g3", unknown_reason)] = node.withheld_devices()[..] else {
        panic!("{:?}", node.withheld_devices())
    };
    assert!(
        small_reason.contains("a replica has 10240 MiB of memory, and the device 8192 MiB"),
        "{small_reason}"
    );
    assert!(unknown_reason.contains("its memory is unknown"), "{unknown_reason}");
    // After a restart with replicas of another size, none is allocatable before those of the first size are released.
    let rules = |gib| Resources::Rules(vec![rule(GPU, &[], shared_by_memory(gib, 1024))]);
    node.set_held_ids(GPU, &["g0::0"]);
    for gib in [20, 5] {
        node.policy.resources = rules(gib);
        node.restart();
        let state = |node: &Node| node.plan.offers[&name(GPU)].devices["g0"].state.clone();
        let Allocatability::Blocked(reason) = state(node.plan()) else { panic!("{gib}") };
        assert_eq!(reason, "containers hold replicas of it that have other memory");
        let sizes = replica_sizes(&node.plan.offers, &node.fingerprints);
        assert_eq!(sizes["g0"].memory_mib, 10 << 10, "a container holds replicas of it");
    }
    node.policy.resources = rules(10);
    assert_eq!(node.restart().plan().allocatable_count(GPU), 8 + 4);
    node.held.clear();
    // The same holds without a restart of the agent.
    node.policy.resources = rules(5);
    node.move_permission = MovePermission::Pending;
    node.plan();
    assert!(node.plan.has_pending_moves);
    assert_eq!(node.entries(GPU)[0], entry("g0::0", "moves to nvidia.com/gpu"));
    node.move_permission = MovePermission::Allowed;
    assert_eq!(node.plan().allocatable_count(GPU), 16 + 9 + 1);
}

#[test]
fn virtual_gpus_take_the_place_of_whole_ones_once_their_containers_are_known() {
    let mut node = Node::new(gpus(2));
    node.devices[0].capacity = memory(1);
    node.plan();
    node.policy.shares.gpus = Some(name(GPU));
    node.move_permission = MovePermission::Pending;
    node.plan();
    assert!(node.plan.has_pending_moves);
    assert_eq!(node.entries(GPU)[0], entry("g0", "other devices are offered in its place"));
    node.move_permission = MovePermission::Allowed;
    node.plan();
    assert_eq!((node.plan.offers[&name(GPU)].devices.len(), node.allocatable_count(GPU)), (0, 10));
    assert_eq!(node.entries(GPU)[10], entry("g0", "no longer offered as this resource"));
    let [("g1", reason)] = node.withheld_devices()[..] else {
        panic!("{:?}", node.withheld_devices())
    };
    assert!(reason.starts_with("its resource counts virtual GPUs"), "its memory is unknown");
}

#[test]
fn an_id_that_was_never_allocatable_is_dropped() {
    let lost = Observation::Failed(Reason::Lost, "lost".into());
    let mut node = Node::new(vec![device("nvidia-index-0", 0, &lost)]);
    node.plan();
    node.devices = gpus(1);
    assert_eq!(node.plan().entries(GPU), [entry("g0", "")]);
}

#[test]
fn an_unhealthy_device_has_its_reason_and_an_unchanged_offer_is_reused() {
    let failed = Observation::Fault(Reason::Xid(79), "fell off".into());
    let mut node = Node::new(vec![device("a", 0, &failed)]);
    assert!(node.plan().entries(GPU)[0].1.starts_with("XID 79, fell off"));
    let last_offers: Offers = node.plan.offers.clone();
    node.plan();
    assert!(Arc::ptr_eq(&last_offers[&name(GPU)], &node.plan.offers[&name(GPU)]));
}

#[test]
fn a_shared_device_is_listed_by_its_replicas() {
    let rules = vec![rule("a.com/shared", &[1], shared(3)), rule(GPU, &[], Sharing::Exclusive)];
    let mut node = Node::new(gpus(2)).with_rules(rules);
    assert_eq!(node.plan().entries(GPU), [entry("g0", "")]);
    let replicas = [entry("g1::0", ""), entry("g1::1", ""), entry("g1::2", "")];
    assert_eq!(node.entries("a.com/shared"), replicas);
    let offer = &node.plan.offers[&name("a.com/shared")];
    assert_eq!((offer.listed_count(), offer.allocatable_count()), (3, 3));
    assert!(offer.resolve("g1::2").is_some());
    for unknown in ["g1", "g1::3", "g1::02", "g0::0", "g0"] {
        assert!(offer.resolve(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn devices_shared_by_mps_are_never_claimable() {
    for offer in [DraOffer::Beside, DraOffer::Instead] {
        let rules = vec![rule("example.com/gpu-mps", &[], shared_by(SharingMethod::Mps, 4))];
        let mut node = Node::new(gpus(1)).with_rules(rules);
        node.policy.dra.offer = offer;
        node.plan();
        assert!(node.plan.claimable.is_empty(), "{offer:?}: it would be refused");
        assert!(node.plan.unclaimable["g0"].contains("by MPS"), "{offer:?}");
        assert_eq!(
            node.allocatable_count("example.com/gpu-mps"),
            4,
            "{offer:?}: containers may use it"
        );
    }
}

#[test]
fn fewer_replicas_withdraw_the_last_and_more_bring_them_back() {
    let rules = |replicas| vec![rule(GPU, &[], shared(replicas))];
    let mut node = Node::new(gpus(1)).with_rules(rules(3));
    node.plan();
    node.policy.resources = Resources::Rules(rules(1));
    node.plan();
    let reason = "shared in another way now";
    assert_eq!(
        node.entries(GPU),
        [entry("g0::0", ""), entry("g0::1", reason), entry("g0::2", reason)]
    );
    node.policy.resources = Resources::Rules(rules(3));
    assert_eq!(node.plan().allocatable_count(GPU), 3);
}

#[test]
fn a_new_policy_moves_a_device_once_no_container_holds_it() {
    let mut node = Node::new(gpus(2));
    node.plan();
    node.policy.resources = Resources::Rules(vec![rule("a.com/new", &[], Sharing::Exclusive)]);
    node.move_permission = MovePermission::Pending;
    node.plan();
    assert!(node.plan.has_pending_moves);
    let reason = "moves to a.com/new";
    assert_eq!(node.entries(GPU), [entry("g0", reason), entry("g1", reason)]);
    assert_eq!(node.allocatable_count("a.com/new"), 0);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids(GPU, &["g1"]).plan();
    assert!(!node.plan.has_pending_moves);
    assert_eq!(
        node.entries("a.com/new"),
        [entry("g0", ""), entry("g1", "a container holds it as nvidia.com/gpu")]
    );
    assert_eq!(node.allocatable_count(GPU), 0, "both ids are listed, as unhealthy");
    assert_eq!(node.entries(GPU).len(), 2);
    node.move_permission = MovePermission::Denied;
    node.held.clear();
    assert_eq!(node.plan().allocatable_count("a.com/new"), 2);
    node.assert_single_owners();
}

#[test]
fn a_device_that_becomes_shared_waits_for_its_exclusive_container() {
    let mut node = Node::new(gpus(1));
    node.plan();
    node.policy.resources = Resources::Rules(vec![rule(GPU, &[], shared(2))]);
    node.move_permission = MovePermission::Pending;
    node.plan();
    assert_eq!(node.entries(GPU), [entry("g0", "moves to nvidia.com/gpu")]);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids(GPU, &["g0"]).plan();
    let reason = "a container holds it as nvidia.com/gpu";
    assert_eq!(
        node.entries(GPU),
        [entry("g0::0", reason), entry("g0::1", reason), entry("g0", "shared in another way now")]
    );
    node.move_permission = MovePermission::Denied;
    node.held.clear();
    assert_eq!(node.plan().allocatable_count(GPU), 2);
}

#[test]
fn without_a_new_policy_a_device_stays_with_its_resource_whatever_its_position() {
    let rules = vec![rule("a.com/first", &[0], Sharing::Exclusive), rule(GPU, &[], shared(2))];
    let mut node = Node::new(gpus(2)).with_rules(rules);
    node.plan();
    node.devices = vec![gpu("g1", 0)];
    node.plan();
    assert_eq!(node.entries("a.com/first"), [entry("g0", "no longer on this node")]);
    assert_eq!(node.entries(GPU), [entry("g1::0", ""), entry("g1::1", "")]);
}

#[test]
fn ids_held_before_the_agent_started_are_listed() {
    let mut node = Node::new(gpus(1));
    node.set_held_ids(GPU, &["lost", "g0::1"]).plan();
    let entries = node.entries(GPU);
    assert_eq!(entries[0], entry("g0", "a container holds it as nvidia.com/gpu"));
    assert_eq!(entries[1], entry("g0::1", "shared in another way now"));
    assert_eq!(entries[2], entry("lost", "no longer on this node"));
    node.devices.clear();
    node.plan.offers.clear();
    assert!(node.plan().plan.offers.is_empty(), "a node without devices offers no resource");
}

#[test]
fn after_a_restart_for_claims_the_ids_of_an_earlier_agent_are_listed_until_they_are_released() {
    let mut node = Node::new(gpus(2));
    node.policy.dra.offer = DraOffer::Instead;
    node.set_held_ids(GPU, &["g0"]).plan();
    assert!(node.plan.offers.is_empty(), "another plugin gave it");
    node.policy.dra.offer = DraOffer::Beside;
    node.plan().restart();
    node.policy.dra.offer = DraOffer::Instead;
    node.plan();
    assert_eq!(node.entries(GPU), [entry("g0", "no longer offered as this resource")]);
    node.set_held_ids("a.com/gpu", &["g0"]).plan();
    assert!(node.plan.offers.is_empty(), "another plugin's resource");
    node.restart().policy.resources = Resources::Rules(vec![]);
    node.set_held_ids(GPU, &["g0", "g0::1"]).plan();
    let reason = "no longer offered as this resource";
    assert_eq!(node.entries(GPU), [entry("g0", reason), entry("g0::1", reason)]);
    node.held.clear();
    assert!(node.plan().plan.offers.is_empty(), "they are released");
}

#[test]
fn parts_of_a_gpu_that_a_container_holds_whole_are_not_allocatable() {
    let mut node = Node::new(mig_gpu("g0", 0, &["1g.5gb", "1g.5gb"])).with_mig(MigStrategy::None);
    assert_eq!(node.plan().entries(GPU), [entry("g0", "")]);
    node.policy.mig = MigStrategy::Mixed;
    node.move_permission = MovePermission::Pending;
    assert_eq!(node.plan().allocatable_count("nvidia.com/mig-1g.5gb"), 0);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids(GPU, &["g0"]).plan();
    let reason = "a container holds it as nvidia.com/gpu";
    assert_eq!(
        node.entries("nvidia.com/mig-1g.5gb"),
        [entry("g0-0", reason), entry("g0-1", reason)]
    );
}

#[test]
fn devices_keep_waiting_through_repeated_plans() {
    let mut node = Node::new(mig_gpu("g0", 0, &["1g.5gb", "1g.5gb"])).with_mig(MigStrategy::None);
    node.plan();
    node.policy.mig = MigStrategy::Mixed;
    node.move_permission = MovePermission::Pending;
    for _ in 0..3 {
        assert_eq!(node.plan().allocatable_count("nvidia.com/mig-1g.5gb"), 0);
        assert!(node.plan.has_pending_moves && node.allocatable_count(GPU) == 0);
    }
}

#[test]
fn instances_wait_only_for_the_policy_that_moves_their_gpu() {
    let mut node = Node::new(gpus(1));
    node.plan();
    node.devices = mig_gpu("g0", 0, &["1g.5gb"]);
    for (move_permission, expected) in
        [(MovePermission::Pending, 0), (MovePermission::Allowed, 1), (MovePermission::Pending, 1)]
    {
        node.move_permission = move_permission;
        assert_eq!(
            node.plan().allocatable_count("nvidia.com/mig-1g.5gb"),
            expected,
            "{move_permission:?}"
        );
    }
    assert!(!node.plan.has_pending_moves);
}

#[test]
fn a_new_instance_waits_for_the_holder_of_a_vanished_one_on_its_gpu() {
    let mut node = Node::new(mig_gpu("g0", 0, &["1g.5gb"]));
    node.plan();
    let vanished = Observation::Failed(Reason::Vanished, "gone".into());
    let mut devices = mig_gpu("g0", 0, &["1g.5gb", "1g.5gb"]);
    devices[1].health = device("x", 0, &vanished).health;
    node.devices = devices;
    node.move_permission = MovePermission::Pending;
    assert_eq!(node.plan().allocatable_count("nvidia.com/mig-1g.5gb"), 0);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids("nvidia.com/mig-1g.5gb", &["g0-0"]).plan();
    assert_eq!(node.allocatable_count("nvidia.com/mig-1g.5gb"), 0);
    node.move_permission = MovePermission::Denied;
    node.held.clear();
    assert_eq!(node.plan().allocatable_count("nvidia.com/mig-1g.5gb"), 1);
}

/// A device of one node, found by a source.
fn with_node(id: &str, source: &str, node: &str) -> Device {
    let source: SourceName = source.parse().expect("valid");
    let kind = DeviceKind::Other;
    Device { source, kind, nodes: vec![DeviceNode::new(node)], ..gpu(id, 0) }
}

/// A rule that takes devices with these ids.
fn rule_for(resource: &str, ids: &[&str]) -> ResourceRule {
    let ids = ids.iter().map(ToString::to_string).collect();
    let devices = Selector { ids, ..Selector::all(DeviceKind::Other) };
    ResourceRule::new(name(resource), devices, Sharing::Exclusive)
}

const CAMERA: &str = "a.com/camera";

#[test]
fn of_two_sources_the_one_whose_device_is_held_keeps_it_over_a_restart() {
    let cameras = [("a-cam", "a"), ("b-cam", "b")];
    let devices = cameras.map(|(id, source)| with_node(id, source, "/dev/video0")).to_vec();
    let mut node = Node::new(devices).with_rules(vec![rule_for(CAMERA, &["a-cam", "b-cam"])]);
    node.set_held_ids(CAMERA, &["b-cam"]).plan();
    let offered_ids = node.plan.offers[&name(CAMERA)].devices.keys().map(ToString::to_string);
    assert_eq!(offered_ids.collect::<Vec<_>>(), ["b-cam"]);
    assert!(node.withheld_devices()[0].1.starts_with("b-cam of b is the same device"));
}

/// One camera that two sources find, allocatable as the first source's device.
fn camera_of_two_sources() -> Node {
    let cameras = [("a-cam", "a"), ("b-cam", "b")];
    let devices = cameras.map(|(id, source)| with_node(id, source, "/dev/video0")).to_vec();
    let mut node = Node::new(devices).with_rules(vec![rule_for(CAMERA, &["a-cam", "b-cam"])]);
    assert_eq!(node.plan().entries(CAMERA), [entry("a-cam", "")]);
    node
}

#[test]
fn a_device_that_stays_offered_keeps_its_hardware_although_a_rule_selects_a_duplicate() {
    let mut node = camera_of_two_sources();
    node.policy.resources = Resources::Rules(vec![rule_for(CAMERA, &["b-cam"])]);
    assert_eq!(node.plan().entries(CAMERA), [entry("a-cam", "")]);
    assert!(node.withheld_devices()[0].1.starts_with("a-cam of a is the same device"));
    node.move_permission = MovePermission::Pending;
    assert_eq!(node.plan().allocatable_count(CAMERA), 0);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids(CAMERA, &["a-cam"]).plan();
    let held = entry("b-cam", "a container holds it as a.com/camera");
    assert_eq!(node.entries(CAMERA)[0], held);
    node.move_permission = MovePermission::Denied;
    node.held.clear();
    assert_eq!(node.plan().entries(CAMERA)[0], entry("b-cam", ""));
}

#[test]
fn an_unusable_device_keeps_its_hardware_from_duplicates() {
    let mut node = camera_of_two_sources();
    node.devices[0].withheld = Some("asleep".to_owned());
    assert_eq!(node.plan().entries(CAMERA), [entry("a-cam", "asleep")]);
    node.devices[0].withheld = None;
    assert_eq!(node.plan().entries(CAMERA), [entry("a-cam", "")]);
}

#[test]
fn hardware_held_under_another_id_is_not_allocatable_after_a_restart() {
    let rules = vec![rule_for(CAMERA, &["port", "region", "other"])];
    let mut node = Node::new(vec![with_node("port", "a", "/dev/port0")]).with_rules(rules);
    node.plan();
    node.devices = vec![with_node("region", "a", "/dev/port0"), with_node("other", "a", "/dev/x")];
    node.restart().set_held_ids(CAMERA, &["port"]).plan();
    let held = entry("region", "a container holds it as a.com/camera");
    let gone = entry("port", "no longer on this node");
    assert_eq!(node.entries(CAMERA), [entry("other", ""), held, gone]);
    node.held.clear();
    assert_eq!(node.plan().allocatable_count(CAMERA), 2);
}

#[test]
fn a_node_that_a_held_device_had_is_not_allocatable_as_another_device() {
    let rules = vec![rule_for(CAMERA, &["one", "two"])];
    let mut node = Node::new(vec![with_node("one", "a", "/dev/video0")]).with_rules(rules);
    node.plan();
    let renumbered = [("one", "/dev/video1"), ("two", "/dev/video0")];
    node.devices = renumbered.map(|(id, path)| with_node(id, "a", path)).to_vec();
    node.restart().set_held_ids(CAMERA, &["one"]).plan();
    let held = entry("two", "a container holds it as a.com/camera");
    assert_eq!(node.entries(CAMERA), [entry("one", ""), held.clone()]);
    assert_eq!(node.plan().entries(CAMERA)[1], held, "the record stays while the id is held");
    node.held.clear();
    node.plan();
    assert_eq!(node.plan().allocatable_count(CAMERA), 2);
}

#[test]
fn a_whole_gpu_waits_for_the_holder_of_a_vanished_instance() {
    let mut node = Node::new(mig_gpu("g0", 0, &["1g.5gb"]));
    node.plan();
    node.devices = gpus(1);
    node.restart().set_held_ids("nvidia.com/mig-1g.5gb", &["g0-0"]).plan();
    assert_eq!(node.entries(GPU), [entry("g0", "a container holds it as nvidia.com/mig-1g.5gb")]);
}

#[test]
fn replicas_of_another_method_wait_for_held_replicas() {
    let two_replicas = |method| match shared(2) {
        Sharing::Shared(shared) => Sharing::Shared(Shared { method, ..shared }),
        other => other,
    };
    let rules = |method| vec![rule(GPU, &[], two_replicas(method))];
    let mut node = Node::new(gpus(1)).with_rules(rules(SharingMethod::TimeSlicing));
    node.plan();
    node.policy.resources = Resources::Rules(rules(SharingMethod::Mps));
    node.move_permission = MovePermission::Pending;
    let Sharing::Shared(time_slicing) = shared(1) else { unreachable!("it is shared") };
    node.replica_kinds = ReplicaKinds::from([(gpus(1)[0].id.clone(), time_slicing.into())]);
    assert_eq!(node.plan().allocatable_count(GPU), 0);
    node.move_permission = MovePermission::Allowed;
    node.set_held_ids(GPU, &["g0::0"]).plan();
    assert!(node.plan.mps.is_empty(), "no daemon runs while a container is time-sliced");
    node.move_permission = MovePermission::Denied;
    node.held.clear();
    assert_eq!(node.plan().plan.mps.len(), 1);
}

#[test]
fn single_offers_no_gpu_without_a_common_profile() {
    let mut devices = mig_gpu("g0", 0, &["3g.20gb", "1g.5gb"]);
    devices.push(gpu("g1", 1));
    let mut node = Node::new(devices).with_mig(MigStrategy::Single);
    assert!(node.plan().plan.offers.is_empty());
    assert_eq!(node.withheld_devices().len(), 3);
}

#[test]
fn mixed_offers_each_profile_under_its_name() {
    let mut devices = mig_gpu("g0", 0, &["1g.10gb+me", "1c.2g.20gb"]);
    devices.extend(mig_gpu("g1", 1, &[]));
    devices.push(gpu("g2", 2));
    let mut node = Node::new(devices);
    node.plan();
    let names: Vec<_> = node.plan.offers.keys().map(ResourceName::as_str).collect();
    assert_eq!(names, [GPU, "nvidia.com/mig-1c.2g.20gb", "nvidia.com/mig-1g.10gb.me"]);
    assert_eq!(
        node.withheld_devices(),
        [("g1", "MIG is on, but no instance exists: make one, or turn MIG off")]
    );
}

#[test]
fn single_offers_uniform_gpus_and_withholds_others_with_a_reason() {
    let mut devices = mig_gpu("g0", 0, &["1g.5gb", "1g.5gb"]);
    devices.extend(mig_gpu("g1", 1, &["3g.20gb", "1g.5gb"]));
    devices.push(gpu("g2", 2));
    devices.extend(mig_gpu("g3", 3, &[]));
    let mut node = Node::new(devices).with_mig(MigStrategy::Single);
    node.plan();
    assert_eq!(node.entries(GPU), [entry("g0-0", ""), entry("g0-1", "")]);
    let withheld: Vec<_> = node.withheld_devices().iter().map(|(id, _)| *id).collect();
    assert_eq!(withheld, ["g1-0", "g1-1", "g2", "g3"]);
    let whole_gpus = Node::new(gpus(2)).with_mig(MigStrategy::Single).plan().allocatable_count(GPU);
    assert_eq!(whole_gpus, 2, "without any MIG, single means whole GPUs");
}

#[test]
fn none_offers_a_divided_gpu_whole_and_not_its_parts() {
    let mut node = Node::new(mig_gpu("g0", 0, &["1g.5gb"])).with_mig(MigStrategy::None);
    node.plan();
    assert_eq!(node.entries(GPU), [entry("g0", "")]);
    assert_eq!(node.plan.offers.len(), 1);
}

#[test]
fn a_divided_gpu_offered_as_a_whole_fails_with_its_parts() {
    let mut devices = mig_gpu("g0", 0, &["1g.5gb", "1g.5gb"]);
    let failed = Observation::Fault(Reason::Xid(79), "fell off".into());
    devices[2].health = device("x", 0, &failed).health;
    let mut node = Node::new(devices).with_mig(MigStrategy::None);
    assert_eq!(node.plan().entries(GPU), [entry("g0", "g0-1: XID 79, fell off")]);
}

#[test]
fn devices_are_excluded_by_id_and_by_expression() {
    let mut node = Node::new(gpus(3)).with_rules(vec![rule(GPU, &[0, 1], Sharing::Exclusive)]);
    let by_id = Selector { ids: ["g0".to_owned()].into(), ..Selector::all(DeviceKind::Gpu) };
    let missing_attribute =
        r#"device.attributes["nvidia.com"].productName == "x""#.parse().expect("CEL");
    let by_expression =
        Selector { index: [1].into(), expression: Some(missing_attribute), ..by_id.clone() };
    node.policy.exclude = vec![by_id, Selector { ids: BTreeSet::new(), ..by_expression }];
    node.plan();
    assert_eq!(node.plan.offers.len(), 0);
    let reasons: Vec<_> =
        node.withheld_devices().into_iter().map(|(_, reason)| reason.to_owned()).collect();
    assert_eq!(reasons[0], "excluded by the configuration");
    assert!(reasons[1].starts_with("withheld, since an exclude rule cannot be"), "{}", reasons[1]);
    assert_eq!(reasons[2], "no rule of the configuration takes it");
}

#[test]
fn planning_again_changes_nothing() {
    let rules = vec![rule("a.com/x", &[0], shared(4)), rule(GPU, &[], Sharing::Exclusive)];
    let mut node = Node::new(gpus(3)).with_rules(rules);
    node.set_held_ids("a.com/y", &["g2"]).plan();
    let first = node.plan.clone();
    assert_eq!(node.plan().plan, first);
    assert_eq!((node.allocatable_count("a.com/x"), node.allocatable_count(GPU)), (4, 1));
}

proptest::proptest! {
    /// Every possible MIG profile gives a resource name, and different profiles give different names.
    #[test]
    fn every_profile_has_a_resource_name_of_its_own(
        one in "([1-7]c\\.)?[1-7]g\\.[1-9][0-9]{0,2}gb(\\+(me|gfx|me\\.all))?",
        other in "([1-7]c\\.)?[1-7]g\\.[1-9][0-9]{0,2}gb(\\+(me|gfx|me\\.all))?",
    ) {
        let name = |profile: &str| {
            default_resource(&Policy::default(), &mig_gpu("g", 0, &[profile])[1]).expect("a valid name")
        };
        proptest::prop_assert!(name(&one).as_str().starts_with("nvidia.com/mig-"));
        proptest::prop_assert_eq!(one == other, name(&one) == name(&other));
    }
}

#[test]
fn a_resource_without_a_device_has_a_reason() {
    let reasons = |node: &mut Node| {
        let empty = &node.plan().plan.empty_resources;
        empty.iter().map(|(name, reason)| format!("{name}: {reason}")).collect::<Vec<_>>()
    };
    let with_expression = |text: &str| Selector {
        expression: Some(text.parse().expect("valid")),
        ..Selector::all(DeviceKind::Gpu)
    };
    let rules_for =
        |devices: Selector| vec![ResourceRule::new(name("a.com/x"), devices, Sharing::Exclusive)];
    let mut node = Node::new(gpus(2)).with_rules(rules_for(Selector::all(DeviceKind::Fpga)));
    assert_eq!(reasons(&mut node), ["a.com/x: this node has no device of kind fpga"]);
    node = node.with_rules(rules_for(with_expression("device.kind == 'gpu' && device.index == 7")));
    let expected = "a.com/x: none of 2 is the device of kind gpu that its rule selects: g0 does not match: \
                    device.index == 7 is false: index is 0";
    assert_eq!(reasons(&mut node), [expected]);
    node =
        node.with_rules(rules_for(with_expression("device.attributes['nvidia.com'].brand == 'x'")));
    assert!(reasons(&mut node)[0].ends_with("g0 does not match: it has no brand"));
    node.devices.truncate(1);
    node = node
        .with_rules(rules_for(Selector { index: [3].into(), ..Selector::all(DeviceKind::Gpu) }));
    let expected = "a.com/x: g0, the only device of kind gpu, has another index, id or profile";
    assert_eq!(reasons(&mut node), [expected]);
    node.devices = gpus(2);
    let first = rule("a.com/first", &[0], Sharing::Exclusive);
    let rules =
        [vec![first], rules_for(Selector { index: [0].into(), ..Selector::all(DeviceKind::Gpu) })];
    node = node.with_rules(rules.concat());
    assert_eq!(reasons(&mut node), ["a.com/x: g0 is part of a.com/first"]);
    node = node.with_rules(rules_for(Selector::all(DeviceKind::Gpu)));
    node.policy.exclude = vec![Selector::all(DeviceKind::Gpu)];
    node.plan.offers.clear();
    let expected =
        "a.com/x: g0 is not offered: excluded by the configuration, like all 2 devices of its rule";
    assert_eq!(reasons(&mut node), [expected]);
}
