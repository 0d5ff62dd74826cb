//! Placement of devices: policies of resources, allocatable devices, allocation history.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use tonic::Code;
use windlass_config::{PerContainer, Policy, ResourceRule, Resources, Selector, Sharing};
use windlass_core::{
    device::{DeviceId, DeviceKind},
    placement::{
        self, Policy as Placement, Request,
        shares::{self, ShareRequest, SharedDevice},
    },
    replica::ReplicaId,
};
use windlass_deviceplugin::history::{self, Candidates, RecordedChoice};
use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};
use windlass_kubelet_sim::Kubelet;
use windlass_machine::MachineProfile;
use windlass_resources::NodeState;
use windlass_testkit::{GPU, Node, RunningAgent, pod_with, registrations, until_allocatable};

use crate::agent::{
    sharing::{SHARED, devices_of, rule, shared},
    world::{client, gpu_id, gpu_node, gpu_node_of, pod, until_gpu_counts, with_long_quiet_period},
};

const SLICES: &str = "nvidia.com/mig-1g.5gb";

fn rules_with_placement(placement: Placement, rule: ResourceRule) -> Resources {
    Resources::Rules(vec![ResourceRule { placement: Some(placement), ..rule }])
}

/// Whole GPUs under a policy.
fn gpus(placement: Placement) -> Resources {
    rules_with_placement(placement, rule(GPU, &[], Sharing::Exclusive))
}

/// GPUs with four replicas each, under a policy.
fn shares(placement: Placement) -> Resources {
    rules_with_placement(placement, rule(SHARED, &[], shared(4, PerContainer::Any)))
}

/// Kubelet and agent of a machine with these resources.
async fn start_ready(
    mut world: Node,
    resources: Resources,
    (resource, count): (&str, usize),
) -> (Node, Kubelet, RunningAgent) {
    world.config.policy.resources = resources;
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, resource, count).await;
    (world, kubelet, agent)
}

/// The ids that a new pod gets.
async fn ids(kubelet: &Kubelet, name: &str, (resource, count): (&str, u64)) -> BTreeSet<String> {
    let admission = kubelet.admit(pod_with(name, resource, count)).await.expect("admitted");
    admission.allocation("main", resource).expect("allocated").ids()
}

/// Indices of the GPUs with these ids.
fn indices(agent: &RunningAgent, ids: &BTreeSet<String>) -> Vec<u32> {
    let state = agent.state.borrow();
    let gpus = state.inventory.devices.iter().filter(|device| ids.contains(device.id.as_str()));
    gpus.map(|gpu| gpu.index).collect()
}

#[tokio::test]
async fn whole_gpus_are_chosen_by_the_policy_of_their_resource() {
    // The GPUs 0 to 3 are on one NUMA node, 4 to 7 on the other.
    for (placement, expected) in [
        (Placement::Aligned, [&[0][..], &[1, 2], &[4, 5, 6]]),
        (Placement::Packed, [&[0], &[1, 2], &[3, 4, 5]]),
        (Placement::Distributed, [&[0], &[4, 5], &[1, 2, 6]]),
        (Placement::NumaStrict, [&[0], &[1, 2], &[4, 5, 6]]),
        (Placement::First, [&[0], &[1, 2], &[3, 4, 5]]),
    ] {
        let (_world, kubelet, agent) =
            start_ready(gpu_node("dgx-h100"), gpus(placement), (GPU, 8)).await;
        for (name, (size, expected)) in ["a", "b", "c"].into_iter().zip((1..).zip(expected)) {
            let ids = ids(&kubelet, name, (GPU, size)).await;
            assert_eq!(indices(&agent, &ids), expected, "{placement}");
        }
    }
}

#[tokio::test]
async fn mig_instances_come_from_as_many_gpus_as_the_policy_says() {
    let mut profile = MachineProfile::named("mig-a100").expect("a shipped profile");
    profile.gpus[1].mig = profile.gpus[0].mig.clone();
    for (placement, gpu_count) in [
        (Placement::Aligned, 1),
        (Placement::Packed, 1),
        (Placement::Distributed, 2),
        (Placement::First, 1),
    ] {
        let devices = Selector {
            mig_profiles: ["1g.5gb".to_owned()].into(),
            ..Selector::all(DeviceKind::Mig)
        };
        let rule = ResourceRule::new(SLICES.parse().expect("valid"), devices, Sharing::Exclusive);
        let (_world, kubelet, agent) =
            start_ready(gpu_node_of(&profile), rules_with_placement(placement, rule), (SLICES, 14))
                .await;
        let ids = ids(&kubelet, "p", (SLICES, 2)).await;
        let gpus: BTreeSet<_> = indices(&agent, &ids).into_iter().collect();
        assert_eq!(gpus.len(), gpu_count, "{placement}");
    }
}

#[tokio::test]
async fn replicas_fill_a_gpu_or_spread_as_the_policy_says() {
    for (placement, expected) in [
        (Placement::Aligned, 4),
        (Placement::Packed, 1),
        (Placement::Distributed, 4),
        (Placement::NumaStrict, 4),
        (Placement::First, 1),
    ] {
        let (_world, kubelet, _agent) =
            start_ready(gpu_node("dgx-h100"), shares(placement), (SHARED, 32)).await;
        let mut used = BTreeSet::new();
        for name in ["a", "b", "c", "d"] {
            let ids = ids(&kubelet, name, (SHARED, 1)).await;
            used.extend(devices_of(&ids).into_iter().map(str::to_owned));
        }
        assert_eq!(used.len(), expected, "{placement}: {used:?}");
    }
}

#[tokio::test]
async fn a_new_policy_applies_to_the_next_choice_and_disturbs_no_stream() {
    let mut world = gpu_node("dgx-h100");
    let default = world.config.policy.clone();
    let with_placement = |placement| Policy { resources: gpus(placement), ..default.clone() };
    world.config.policy = with_placement(Placement::Packed);
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, GPU, 8).await;
    let before = registrations(&kubelet);
    assert_eq!(indices(&agent, &ids(&kubelet, "a", (GPU, 1)).await), [0]);
    assert_eq!(indices(&agent, &ids(&kubelet, "b", (GPU, 1)).await), [1]);
    agent.set_policy(with_placement(Placement::Distributed));
    let name = GPU.parse().expect("valid");
    let adopted = |state: &Arc<NodeState>| state.placement(&name) == Placement::Distributed;
    agent.until(adopted).await;
    assert_eq!(indices(&agent, &ids(&kubelet, "c", (GPU, 1)).await), [4]);
    assert_eq!(registrations(&kubelet), before, "no resource is registered again");
}

#[tokio::test]
async fn a_pod_that_fits_no_numa_node_is_refused_with_the_numbers() {
    let resources = gpus(Placement::NumaStrict);
    let (_world, kubelet, _agent) = start_ready(gpu_node("dgx-h100"), resources, (GPU, 8)).await;
    let rejection = kubelet.admit(pod("wide", 5)).await.expect_err("refused");
    let expected = "nvidia.com/gpu: 5 devices of one NUMA node requested, and no node has more \
                    than 4 available";
    assert!(rejection.message.contains(expected), "{rejection}");
    kubelet.admit(pod("narrow", 4)).await.expect("admitted");
    let (_world, kubelet, _agent) =
        start_ready(gpu_node("dgx-h100"), shares(Placement::NumaStrict), (SHARED, 32)).await;
    let rejection = kubelet.admit(pod_with("wide", SHARED, 17)).await.expect_err("refused");
    let expected = "17 replicas of one NUMA node requested, and none has more than 16 available";
    assert!(rejection.message.contains(expected), "{rejection}");
}

fn preferred_allocation_request(
    available: &[String],
    required: &[String],
    size: i32,
) -> PreferredAllocationRequest {
    PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: required.to_vec(),
            allocation_size: size,
        }],
    }
}

#[tokio::test]
async fn a_kubelet_with_an_old_list_gets_allocatable_devices_or_the_reason() {
    let (world, kubelet, agent) =
        start_ready(with_long_quiet_period("dgx-h100"), Resources::Default, (GPU, 8)).await;
    world.inject("xid:79@0");
    until_gpu_counts(&kubelet, (8, 7)).await;
    let mut plugin = client(&kubelet, GPU).await;
    let failed = gpu_id(&agent, 0);
    let mut listed: Vec<_> = (0..8).map(|index| gpu_id(&agent, index)).collect();
    listed.push("GPU-unknown".to_owned());
    let answer =
        plugin.get_preferred_allocation(preferred_allocation_request(&listed, &[], 7)).await;
    let chosen = answer.expect("enough devices remain").into_inner().container_responses.remove(0);
    assert_eq!(chosen.device_i_ds, listed[1..8], "never one that Allocate refuses");
    for (required, size, code, expected) in [
        (
            &listed[..1],
            2,
            Code::FailedPrecondition,
            format!("{failed} cannot be allocated: XID 79"),
        ),
        (&listed[8..], 2, Code::InvalidArgument, "no device GPU-unknown".to_owned()),
        (
            &[],
            8,
            Code::InvalidArgument,
            format!(
                "nvidia.com/gpu: 8 devices requested, 7 available; {failed} is excluded: \
                 it cannot be allocated: XID 79"
            ),
        ),
    ] {
        let answer = plugin
            .get_preferred_allocation(preferred_allocation_request(&listed, required, size))
            .await;
        let status = answer.expect_err("refused");
        assert_eq!(status.code(), code);
        assert!(status.message().contains(&expected), "{}", status.message());
    }
}

#[tokio::test]
async fn replicas_of_a_failed_gpu_are_excluded_and_reported() {
    let (world, kubelet, agent) =
        start_ready(with_long_quiet_period("dgx-h100"), shares(Placement::Packed), (SHARED, 32))
            .await;
    world.inject("xid:79@0");
    until_allocatable(&kubelet, SHARED, 28).await;
    let mut plugin = client(&kubelet, SHARED).await;
    let replicas = |index| {
        let id = gpu_id(&agent, index);
        (0..4).map(move |number| format!("{id}::{number}"))
    };
    let mut listed: Vec<_> = (0..2).flat_map(replicas).collect();
    // Adds an id beyond the existing replicas, and one of a missing device.
    listed.extend([format!("{}::9", gpu_id(&agent, 1)), "GPU-unknown::0".to_owned()]);
    let answer =
        plugin.get_preferred_allocation(preferred_allocation_request(&listed, &[], 4)).await;
    let chosen = answer.expect("enough devices remain").into_inner().container_responses.remove(0);
    assert_eq!(chosen.device_i_ds, listed[4..8]);
    for (required, size, expected) in [
        (&listed[..1], 2, format!("{} cannot be allocated: XID 79", listed[0])),
        (&listed[8..9], 2, format!("has no device {}", listed[8])),
        (&[], 5, format!("5 replicas requested, 4 available; {} is excluded", gpu_id(&agent, 0))),
    ] {
        let answer = plugin
            .get_preferred_allocation(preferred_allocation_request(&listed, required, size))
            .await;
        let message = answer.expect_err("refused").message().to_owned();
        assert!(message.contains(&expected), "{message}");
    }
}

/// Answer to a recorded request, computed again.
fn repeated_answer(state: &NodeState, choice: &RecordedChoice) -> Vec<String> {
    let (size, policy) = (choice.size, choice.policy);
    match &choice.candidates {
        Candidates::Devices { available, required, .. } => {
            let available: Vec<_> = available.iter().map(DeviceId::as_str).collect();
            let required: Vec<_> = required.iter().map(DeviceId::as_str).collect();
            let request =
                Request { available: &available, required: &required, near: &[], size, policy };
            let answer = placement::choose(&state.topology, request).expect("an answer");
            answer.devices.iter().map(ToString::to_string).collect()
        }
        Candidates::Replicas { span, pools, .. } => {
            let free: BTreeMap<_, Vec<u32>> =
                pools.iter().map(|pool| (&pool.device, pool.free.iter().collect())).collect();
            let devices: Vec<_> = pools
                .iter()
                .map(|pool| SharedDevice {
                    id: pool.device.as_str(),
                    free: &free[&pool.device],
                    in_use: pool.in_use,
                })
                .collect();
            let required: Vec<ReplicaId> =
                pools.iter().flat_map(|pool| pool.replicas(&pool.required)).collect();
            let (devices, required) = (&devices, &required);
            let request = ShareRequest { devices, required, near: &[], size, policy, span: *span };
            let answer = shares::choose(&state.topology, request).expect("an answer");
            answer.replicas.iter().map(ToString::to_string).collect()
        }
    }
}

#[tokio::test]
async fn choices_outlive_the_agent_and_can_be_repeated() {
    for (resources, resource, count) in
        [(gpus(Placement::Aligned), GPU, 8), (shares(Placement::Distributed), SHARED, 32)]
    {
        let (world, kubelet, agent) =
            start_ready(gpu_node("dgx-h100"), resources, (resource, count)).await;
        let mut granted = vec![ids(&kubelet, "a", (resource, 3)).await];
        agent.stop().await;
        let recorded = history::read(&world.config.places.state_dir).expect("written");
        assert_eq!(recorded.len(), 1);
        let agent = world.start_agent();
        until_allocatable(&kubelet, resource, count).await;
        granted.push(ids(&kubelet, "b", (resource, 2)).await);
        let state = agent.state.borrow().clone();
        agent.stop().await;
        let recorded = history::read(&world.config.places.state_dir).expect("written");
        assert_eq!(recorded.len(), 2);
        for (choice, granted) in recorded.iter().zip(granted.iter().rev()) {
            assert_eq!((choice.resource.as_str(), choice.size), (resource, granted.len()));
            assert!(choice.exact);
            let chosen: BTreeSet<_> = choice.chosen().into_iter().collect();
            assert_eq!(chosen, *granted, "the newest first");
            let repeated: BTreeSet<_> = repeated_answer(&state, choice).into_iter().collect();
            assert_eq!(repeated, *granted);
        }
        assert!(recorded[0].at >= recorded[1].at);
    }
}

#[tokio::test]
async fn an_unwritable_state_folder_loses_the_history_and_fails_no_pod() {
    let mut world = gpu_node("dgx-h100");
    // Root may write into any folder, but not below a file.
    fs::write(world.folder.join("file"), "").expect("written");
    world.config.places.state_dir = world.folder.join("file/state");
    let (kubelet, agent) = world.start_ready(8).await;
    kubelet.admit(pod("a", 2)).await.expect("admitted");
    agent.stop().await;
    history::read(&world.config.places.state_dir).expect_err("no folder");
    let agent = world.start_agent();
    until_allocatable(&kubelet, GPU, 8).await;
    kubelet.admit(pod("b", 2)).await.expect("admitted");
    agent.stop().await;
}
