//! Shared devices, MIG strategies, and a policy that changes while containers run.

use std::{collections::BTreeSet, sync::Arc};

use windlass_config::{
    MigStrategy, PerContainer, Policy, Replicas, ResourceRule, Resources, Selector, Shared,
    Sharing, SharingMethod,
};
use windlass_core::{device::DeviceKind, enforcement::Enforcement};
use windlass_kubelet_sim::Pod;
use windlass_resources::NodeState;
use windlass_testkit::{GPU, pod_with, registrations, until_allocatable};

use crate::agent::world::{gpu_id, gpu_node, pod, until_gpu_counts};

pub(crate) const SHARED: &str = "nvidia.com/gpu.shared";

pub(crate) fn shared(replicas: u64, per_container: PerContainer) -> Sharing {
    let replicas = Replicas::try_from(replicas).expect("valid");
    let method = SharingMethod::TimeSlicing;
    Sharing::Shared(Shared { method, replicas, per_container, memory_mib: None })
}

/// Replicas of the first GPU with this memory each, and the other GPUs as a whole.
pub(crate) fn first_gpu_by_memory(gib: u64) -> Resources {
    let Sharing::Shared(shared) = shared(1024, PerContainer::Any) else {
        unreachable!("it is shared")
    };
    let sharing = Sharing::Shared(Shared { memory_mib: Some(gib << 10), ..shared });
    Resources::Rules(vec![rule(SHARED, &[0], sharing), rule(GPU, &[], Sharing::Exclusive)])
}

pub(crate) fn rule(name: &str, index: &[u32], sharing: Sharing) -> ResourceRule {
    let index = index.iter().copied().collect();
    let devices = Selector { index, ..Selector::all(DeviceKind::Gpu) };
    ResourceRule::new(name.parse().expect("valid"), devices, sharing)
}

pub(crate) fn devices_of(ids: &BTreeSet<String>) -> BTreeSet<&str> {
    ids.iter().map(|id| id.rsplit_once("::").expect("a replica").0).collect()
}

#[tokio::test]
async fn one_node_has_exclusive_shared_and_withheld_gpus() {
    let mut world = gpu_node("dgx-h100");
    let sharing = shared(8, PerContainer::Any);
    let rules = vec![rule(GPU, &[0, 1], Sharing::Exclusive), rule(SHARED, &[2, 3, 4, 5], sharing)];
    world.config.policy.resources = Resources::Rules(rules);
    let (kubelet, agent) = world.start_ready(2).await;
    until_allocatable(&kubelet, SHARED, 32).await;
    let withheld: Vec<_> = [6, 7].map(|index| gpu_id(&agent, index)).into();
    let offers = agent.state.borrow().device_offers();
    for id in withheld {
        let obstacle = offers[id.as_str()].obstacle.as_deref();
        assert_eq!(obstacle, Some("no rule of the configuration takes it"));
    }
    let admission = kubelet.admit(pod_with("p", SHARED, 4)).await.expect("admitted");
    let ids = admission.allocation("main", SHARED).expect("allocated").ids();
    assert_eq!(devices_of(&ids).len(), 4, "one replica of each GPU: {ids:?}");
}

#[tokio::test]
async fn a_container_that_requests_two_replicas_is_refused_if_one_is_the_limit() {
    let mut world = gpu_node("t4-edge");
    let sharing = shared(4, PerContainer::One);
    world.config.policy.resources = Resources::Rules(vec![rule(GPU, &[], sharing)]);
    let (kubelet, _agent) = world.start_ready(4).await;
    let rejection = kubelet.admit(pod("greedy", 2)).await.expect_err("refused");
    assert!(rejection.message.contains("2 replicas requested"), "{rejection}");
    kubelet.admit(pod("modest", 1)).await.expect("admitted");
}

#[tokio::test]
async fn a_fault_reaches_every_replica_of_its_gpu() {
    let mut world = gpu_node("dgx-h100");
    let sharing = shared(4, PerContainer::Any);
    world.config.policy.resources = Resources::Rules(vec![rule(GPU, &[], sharing)]);
    let (kubelet, _agent) = world.start_ready(32).await;
    world.inject("xid:79@3");
    until_gpu_counts(&kubelet, (32, 28)).await;
    world.inject("recover@3");
    until_gpu_counts(&kubelet, (32, 32)).await;
}

#[tokio::test]
async fn mig_is_offered_by_profile_as_gpus_or_not_at_all() {
    for (strategy, gpus) in
        [(MigStrategy::Mixed, 2), (MigStrategy::Single, 7), (MigStrategy::None, 4)]
    {
        let mut world = gpu_node("mig-a100");
        world.config.policy.mig = strategy;
        let (kubelet, agent) = world.start_ready(gpus).await;
        kubelet.admit(pod("p", 1)).await.expect("admitted");
        let resources = agent.state.borrow().resources().len();
        assert_eq!(resources, if strategy == MigStrategy::Mixed { 4 } else { 1 }, "{strategy:?}");
    }
}

#[tokio::test]
async fn a_new_policy_moves_free_gpus_at_once_and_held_ones_when_they_are_released() {
    let world = gpu_node("dgx-h100");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, GPU, 8).await;
    kubelet.admit(pod("holder", 3)).await.expect("admitted");
    let sharing = shared(2, PerContainer::Any);
    let resources = Resources::Rules(vec![rule(SHARED, &[], sharing)]);
    agent.set_policy(Policy { resources, ..world.config.policy.clone() });
    until_allocatable(&kubelet, SHARED, 10).await;
    until_gpu_counts(&kubelet, (8, 0)).await;
    kubelet.delete_pod("holder-uid").await;
    // The kubelet writes a release to its checkpoint at its next allocation.
    kubelet.admit(pod_with("first", SHARED, 1)).await.expect("admitted");
    until_allocatable(&kubelet, SHARED, 16).await;
    kubelet.admit(pod_with("rest", SHARED, 15)).await.expect("admitted");
}

#[tokio::test]
async fn a_gpu_is_shared_by_mps_from_the_first_answer_of_its_daemon_until_its_last_container_ends()
{
    let mut world = gpu_node("t4-edge");
    let Sharing::Shared(time_slicing) = shared(4, PerContainer::One) else {
        unreachable!("it is shared")
    };
    let mps = Sharing::Shared(Shared { method: SharingMethod::Mps, ..time_slicing });
    world.config.policy.resources = Resources::Rules(vec![rule(SHARED, &[], mps)]);
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, SHARED, 4).await;
    kubelet.admit(Pod::new("bystander")).await.expect("admitted");
    let admission = kubelet.admit(pod_with("client", SHARED, 1)).await.expect("admitted");
    let grant = &admission.allocation("main", SHARED).expect("allocated").run_options;
    let pipe = format!("/run/windlass/mps/{}/pipe", gpu_id(&agent, 0));
    assert_eq!(grant.envs["CUDA_MPS_PIPE_DIRECTORY"], pipe);
    assert!(grant.mounts.iter().any(|mount| mount.container_path == pipe), "{:?}", grant.mounts);

    agent.set_policy(Policy::default());
    let is_withheld = |state: &Arc<NodeState>| {
        let obstacle = state.device_offers().into_values().find_map(|offer| offer.obstacle);
        obstacle.is_some_and(|obstacle| obstacle.contains("a container holds it"))
    };
    agent.until(is_withheld).await;
    let daemon = world.machine.host_root().join(pipe.trim_start_matches('/'));
    assert!(daemon.exists(), "its container continues");
    kubelet.delete_pod("client-uid").await;
    until_allocatable(&kubelet, GPU, 1).await;
    agent.stop().await;
    let stopped = windlass_lifecycle::mps::stop_all(&world.config.places, &world.config.mps).await;
    assert!(stopped.values().all(Result::is_ok), "{stopped:?}");
}

#[tokio::test]
async fn each_shared_mig_instance_has_a_separate_daemon() {
    let mut world = gpu_node("mig-a100");
    let Sharing::Shared(time_slicing) = shared(2, PerContainer::One) else {
        unreachable!("it is shared")
    };
    let sharing = Sharing::Shared(Shared { method: SharingMethod::Mps, ..time_slicing });
    let mig_profiles = ["1g.5gb".to_owned()].into();
    let devices = Selector { mig_profiles, ..Selector::all(DeviceKind::Mig) };
    let rule = ResourceRule::new(SHARED.parse().expect("a name"), devices, sharing);
    world.config.policy.resources = Resources::Rules(vec![rule]);
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, SHARED, 16).await;
    let admission = kubelet.admit(pod_with("client", SHARED, 1)).await.expect("admitted");
    let grant = &admission.allocation("main", SHARED).expect("allocated").run_options;
    let pipe = &grant.envs["CUDA_MPS_PIPE_DIRECTORY"];
    assert!(pipe.starts_with("/run/windlass/mps/MIG-"), "{pipe}");
    let state = agent.state.borrow().clone();
    let instances = state.inventory.devices.iter().filter(|device| device.kind.is_mig_instance());
    let enforced = instances.filter_map(|device| state.enforcement(device));
    let unenforced = enforced.filter(|enforcement| *enforcement == Enforcement::None).count();
    assert_eq!(unenforced, 8, "a program may run without the daemon");
    agent.stop().await;
    let stopped = windlass_lifecycle::mps::stop_all(&world.config.places, &world.config.mps).await;
    assert!(stopped.len() == 8 && stopped.values().all(Result::is_ok), "{stopped:?}");
}

#[tokio::test]
async fn a_resource_that_a_new_policy_does_not_change_is_not_registered_again() {
    let world = gpu_node("mig-a100");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, "nvidia.com/mig-1g.5gb", 8).await;
    let before = registrations(&kubelet);
    let excluded = Selector { ids: [gpu_id(&agent, 3)].into(), ..Selector::all(DeviceKind::Gpu) };
    agent.set_policy(Policy { exclude: vec![excluded], ..world.config.policy.clone() });
    until_gpu_counts(&kubelet, (2, 1)).await;
    assert_eq!(registrations(&kubelet), before, "no resource is registered again");
}
