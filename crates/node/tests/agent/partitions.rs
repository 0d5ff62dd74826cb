//! MIG partitions made and removed while the agent runs, through the real dlopen.

use std::sync::Arc;

use windlass_config::DraMigMode;
use windlass_core::{
    attribute::Quantity,
    device::{Device, DeviceId, DeviceKind, Partition, PossiblePartition},
};
use windlass_discovery::mig::{MigFailure, PartitionError};
use windlass_host::causes;
use windlass_machine::{mig::GpuInstanceProfile, state::Process};
use windlass_resources::NodeState;
use windlass_testkit::{Node, RunningAgent, within_timeout};

use crate::agent::world::gpu_node;

/// An agent on two A100 with 80 GB and two A30, all in MIG mode without instances.
async fn gpus_in_mig_mode() -> (Node, RunningAgent) {
    let world = gpu_node("mig-pcie");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.of_kind(DeviceKind::Gpu).count() == 4).await;
    (world, agent)
}

fn gpu(agent: &RunningAgent, index: u32) -> Device {
    let state = agent.state.borrow();
    let mut gpus = state.inventory.of_kind(DeviceKind::Gpu);
    gpus.find(|gpu| gpu.index == index).expect("a GPU of that index").clone()
}

/// The partition of that profile and start on a GPU.
fn partition_at(agent: &RunningAgent, index: u32, profile: &str, start: u32) -> Partition {
    let gpu = gpu(agent, index);
    let is_match = |possible: &&PossiblePartition| {
        possible.partition.profile.as_str() == profile && possible.partition.start == start
    };
    gpu.partitions.iter().find(is_match).expect("the card has this partition").partition.clone()
}

/// Waits until the device is listed and healthy, or until it no longer is.
async fn until_served(agent: &RunningAgent, device: &DeviceId, served: bool) -> Arc<NodeState> {
    let is_served = |state: &Arc<NodeState>| {
        let found = state.inventory.get(device.as_str());
        found.is_some_and(|device| device.health.is_healthy()) == served
    };
    agent.until(is_served).await
}

fn refusal(outcome: Result<DeviceId, PartitionError>) -> (MigFailure, String) {
    let error = outcome.expect_err("refused");
    let message = causes(&error);
    (error.failure, message)
}

/// Profiles of the GPU instances on a GPU; true if the instance has a compute instance.
fn instances(world: &Node, gpu: usize) -> Vec<(String, bool)> {
    let model = world.machine.model().expect("a model");
    let instances = model.gpus[gpu].mig.iter().flatten();
    instances.map(|instance| (instance.profile.clone(), instance.compute.is_some())).collect()
}

#[tokio::test]
async fn a_gpu_in_mig_mode_lists_all_its_possible_partitions() {
    let (_world, agent) = gpus_in_mig_mode().await;
    let (a100, a30) = (gpu(&agent, 0), gpu(&agent, 2));
    assert_eq!((a100.partitions.len(), a30.partitions.len()), (25, 13));
    let half = partition_at(&agent, 0, "3g.40gb", 4);
    assert_eq!((half.profile_id, half.slices()), (9, 4..8));
    assert_eq!(partition_at(&agent, 2, "2g.12gb+me", 2).profile_id, 6);
    let possible =
        a100.partitions.iter().find(|candidate| candidate.partition == half).expect("listed");
    let capacity = possible.capacity.iter().map(|(name, amount)| (name.to_string(), *amount));
    let expected = [
        ("nvidia.com/copyEngines", Quantity::Count(3)),
        ("nvidia.com/decoders", Quantity::Count(2)),
        ("nvidia.com/encoders", Quantity::Count(0)),
        ("nvidia.com/jpegEngines", Quantity::Count(0)),
        ("nvidia.com/memory", Quantity::Bytes(40_192 << 20)),
        ("nvidia.com/multiprocessors", Quantity::Count(42)),
        ("nvidia.com/ofaEngines", Quantity::Count(0)),
    ];
    let expected = expected.map(|(name, amount)| (name.to_owned(), amount));
    assert_eq!(capacity.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_gpu_that_needs_a_reset_for_mig_has_no_possible_partitions_until_mig_is_on() {
    let world = gpu_node("mig-a100");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    assert!(gpu(&agent, 3).partitions.is_empty());
    world.machine.set_mig(3, Some(&[])).expect("MIG on");
    let has_partitions = |state: &Arc<NodeState>| {
        state.inventory.devices.iter().any(|gpu| gpu.index == 3 && gpu.partitions.len() == 25)
    };
    agent.until(has_partitions).await;
    let partition = partition_at(&agent, 3, "1g.5gb+me", 0);
    world.machine.set_mig(3, None).expect("MIG off");
    let (failure, message) = refusal(agent.partitions.create(&partition).await);
    assert!(matches!(failure, MigFailure::MigDisabled), "{message}");
    agent.partitions.remove(&partition).await.expect("there is none");

    let error = agent.partitions.enable_mig(&partition.gpu).await.expect_err("it takes a reset");
    let expected =
        format!("cannot turn MIG on for {}: nvmlDeviceSetMigMode: the GPU needs a", partition.gpu);
    assert!(causes(&error).starts_with(&expected), "{}", causes(&error));
    let model = world.machine.model().expect("a model");
    assert_eq!(model.gpus[3].mig_at_reset, None, "no reset has consequences");
}

#[tokio::test]
async fn mig_is_turned_on_and_off_at_once_without_instances_and_processes() {
    let mut world = gpu_node("dgx-h100");
    world.config.policy.dra.mig_mode = DraMigMode::OnDemand;
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let (partition, handle) = (partition_at(&agent, 3, "1g.10gb", 6), agent.partitions.clone());
    let set_processes = |processes: Vec<Process>| {
        world.machine.update(|model| model.gpus[3].live.processes = processes).expect("changed");
    };
    set_processes(vec![Process { pid: 7, memory_mib: 256, gpu_instance: None, sm_percent: 0 }]);
    let error = handle.enable_mig(&partition.gpu).await.expect_err("busy");
    let expected = format!("cannot turn MIG on for {}: it is in use by a process", partition.gpu);
    assert_eq!(causes(&error), expected);
    set_processes(Vec::new());
    for _ in 0..2 {
        handle.enable_mig(&partition.gpu).await.expect("on");
    }
    handle.create(&partition).await.expect("created");
    let error = handle.disable_mig(&partition.gpu).await.expect_err("an instance exists");
    let expected =
        format!("cannot turn MIG off for {}: it has MIG instances: {partition}", partition.gpu);
    assert_eq!(causes(&error), expected);
    handle.remove(&partition).await.expect("removed");
    for _ in 0..2 {
        handle.disable_mig(&partition.gpu).await.expect("off");
    }
    assert_eq!(world.machine.model().expect("a model").gpus[3].mig, None);
}

#[tokio::test]
async fn two_small_and_one_large_partition_are_made_and_removed_again() {
    let (world, agent) = gpus_in_mig_mode().await;
    let partitions = [("1g.10gb", 0), ("1g.10gb+me", 1), ("3g.40gb", 4)]
        .map(|(name, at_slice)| partition_at(&agent, 0, name, at_slice));
    let mut devices = Vec::new();
    for partition in &partitions {
        let device = agent.partitions.create(partition).await.expect("created");
        assert_eq!(agent.partitions.create(partition).await.expect("found"), device);
        let state = until_served(&agent, &device, true).await;
        let listed = state.inventory.get(device.as_str()).expect("listed");
        assert_eq!(listed.partition.as_ref(), Some(partition));
        assert_eq!(listed.nodes.len(), 3, "the GPU's node and two capabilities");
        devices.push(device);
    }
    let (failure, message) =
        refusal(agent.partitions.create(&partition_at(&agent, 0, "2g.20gb", 0)).await);
    assert!(matches!(failure, MigFailure::PlacementOccupied(_)));
    let uuid = gpu(&agent, 0).id;
    let expected = format!(
        "cannot make MIG partition 2g.20gb at memory slices 0-1 of {uuid}: no room: taken by \
         1g.10gb at memory slice 0 of {uuid}, 1g.10gb+me at memory slice 1 of {uuid}"
    );
    assert_eq!(message, expected);
    let (_, message) =
        refusal(agent.partitions.create(&partition_at(&agent, 0, "1g.10gb+me", 2)).await);
    assert!(message.ends_with("no room: no more 1g.10gb+me can be made"), "{message}");

    for (partition, device) in partitions.iter().zip(&devices) {
        agent.partitions.remove(partition).await.expect("removed");
        agent.partitions.remove(partition).await.expect("it is gone");
        until_served(&agent, device, false).await;
    }
    assert_eq!(instances(&world, 0), []);
    let recreated = agent.partitions.create(&partitions[2]).await.expect("created");
    assert_ne!(recreated, devices[2], "a recreated device has another id");
}

#[tokio::test]
async fn an_incomplete_partition_is_removed_and_an_incomplete_removal_is_completed() {
    let (world, agent) = gpus_in_mig_mode().await;
    let half = partition_at(&agent, 2, "2g.12gb", 2);
    world.inject("no-compute-instance@2");
    let (_, message) = refusal(agent.partitions.create(&half).await);
    let end = "nvmlGpuInstanceCreateComputeInstance: an internal driver error";
    assert!(message.ends_with(end), "{message}");
    assert_eq!(instances(&world, 2), []);
    world.inject("recover@2");

    let make_incomplete = || {
        let add_instance = |model: &mut windlass_machine::Model| {
            let gpu = &mut model.gpus[2];
            let capability = gpu.card.mig.expect("an A30");
            let shape = GpuInstanceProfile::by_name("2g.12gb", capability)
                .expect("the card has this profile");
            gpu.create_gpu_instance(shape, Some(2)).expect("there is room");
        };
        world.machine.update(add_instance).expect("changed");
    };
    make_incomplete();
    agent.partitions.create(&half).await.expect("finished");
    assert_eq!(instances(&world, 2), [("2g.12gb".to_owned(), true)]);
    agent.partitions.remove(&half).await.expect("removed");
    make_incomplete();
    agent.partitions.remove(&half).await.expect("removed");
    assert_eq!(instances(&world, 2), []);
}

#[tokio::test]
async fn a_partition_in_use_or_in_place_of_another_is_not_removed() {
    let (world, agent) = gpus_in_mig_mode().await;
    let (partition, whole) = (partition_at(&agent, 2, "1g.6gb", 0), gpu(&agent, 2).id);
    let first = agent.partitions.create(&partition).await.expect("created");
    let set_processes = |processes: Vec<Process>| {
        world.machine.update(|model| model.gpus[2].live.processes = processes).expect("changed");
    };
    set_processes(vec![Process { pid: 7, memory_mib: 256, gpu_instance: Some(3), sm_percent: 0 }]);
    let error = agent.partitions.remove_device(&whole, &first).await.expect_err("in use");
    assert!(matches!(error.failure, MigFailure::InUse), "{error:?}");
    set_processes(Vec::new());
    agent.partitions.remove_device(&whole, &first).await.expect("removed");
    let second = agent.partitions.create(&partition).await.expect("created");
    agent.partitions.remove_device(&whole, &first).await.expect("it is gone");
    assert_eq!(agent.partitions.create(&partition).await.expect("it exists"), second);
}

#[tokio::test]
async fn a_hanging_gpu_delays_no_other_and_its_request_succeeds_later() {
    let (world, agent) = gpus_in_mig_mode().await;
    let (hanging, healthy) =
        (partition_at(&agent, 0, "7g.80gb", 0), partition_at(&agent, 1, "7g.80gb", 0));
    world.inject("hang@0");
    let (slow, quick) =
        tokio::join!(agent.partitions.create(&hanging), agent.partitions.create(&healthy));
    quick.expect("created");
    let (failure, message) = refusal(slow);
    assert!(matches!(failure, MigFailure::Timeout(_)), "{message}");
    world.inject("recover@0");
    let device =
        agent.partitions.create(&hanging).await.expect("created by the first or the second call");
    assert_eq!(instances(&world, 0), [("7g.80gb".to_owned(), true)]);
    until_served(&agent, &device, true).await;
}

#[tokio::test]
async fn without_a_driver_a_request_is_refused_and_a_stopped_agent_accepts_none() {
    let (world, agent) = gpus_in_mig_mode().await;
    let partition = partition_at(&agent, 0, "1g.10gb", 0);
    let (unknown, handle) =
        ("GPU-of-another-node".parse().expect("an id"), agent.partitions.clone());
    let (failure, message) =
        refusal(handle.create(&Partition { gpu: unknown, ..partition.clone() }).await);
    assert!(matches!(failure, MigFailure::NoGpu), "{message}");
    world.machine.remove_driver().expect("removed");
    agent.until(|state| !state.inventory.devices.iter().any(|gpu| gpu.health.is_healthy())).await;
    assert!(handle.create(&partition).await.is_err());
    agent.stop().await;
    let outcome = within_timeout("an answer", handle.create(&partition)).await;
    assert!(matches!(refusal(outcome).0, MigFailure::Stopped));
}
