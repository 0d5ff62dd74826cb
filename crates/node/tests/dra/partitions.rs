//! MIG instances that are created for claims and removed with them.

use std::{fs, sync::Arc};

use serde_json::json;
use windlass_config::{DraOffer, DraPartitions, DraPolicy};
use windlass_core::device::{Device, DeviceId};
use windlass_machine::mig::GpuInstanceProfile;
use windlass_resources::NodeState;
use windlass_testkit::RunningAgent;

use crate::dra::world::{World, claim, gpus};

/// Two A100 with 80 GB and two A30, all in MIG mode and without instances.
fn gpus_in_mig_mode() -> World {
    let dra = DraPolicy {
        offer: DraOffer::Beside,
        partitions: DraPartitions::OnDemand,
        ..DraPolicy::default()
    };
    World::from_profile("mig-pcie", dra)
}

/// Puts a claim that has its name as its UID, and that got this partition of the first GPU.
fn put(world: &World, agent: &RunningAgent, (name, partition): (&str, &str)) {
    let gpu = gpus(&agent.state.borrow())[0].id.as_str().to_lowercase();
    let result = json!({
        "request": "a", "driver": "windlass.dev", "pool": "n1/nvidia",
        "device": format!("{gpu}-mig-{partition}"),
    });
    world.put(&claim(name, &[result]));
}

/// MIG instances of the first GPU, as `1g.10gb@0`.
fn instances(world: &World) -> Vec<String> {
    let model = world.machine.model().expect("a model");
    let instances = model.gpus[0].mig.iter().flatten();
    let mut places: Vec<_> =
        instances.map(|instance| format!("{}@{}", instance.profile, instance.start)).collect();
    places.sort();
    places
}

/// The instance that the node's inventory has at a place of the first GPU.
fn instance(state: &NodeState, start: u32) -> Option<Device> {
    let gpu = gpus(&Arc::new(state.clone()))[0].id.clone();
    let is_match = |device: &&Device| {
        let place = device.partition.as_ref();
        place.is_some_and(|it| it.gpu == gpu && it.start == start) && !device.health.has_vanished()
    };
    state.inventory.devices.iter().find(is_match).cloned()
}

/// Creates a 1g.10gb at a place of the first GPU, as an administrator does.
fn create_instance(world: &World, start: u32) {
    let add_instance = |model: &mut windlass_machine::Model| {
        let gpu = &mut model.gpus[0];
        let shape = GpuInstanceProfile::by_name("1g.10gb", gpu.card.mig.expect("an A100"))
            .expect("a profile of the card");
        let id = gpu.create_gpu_instance(shape, Some(start)).expect("there is room");
        gpu.create_compute_instance(id).expect("it is empty");
    };
    world.machine.update(add_instance).expect("changed");
}

#[tokio::test]
async fn instances_of_one_gpu_are_created_and_removed_for_two_claims() {
    let world = gpus_in_mig_mode();
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("c", "3g-40gb-9-4"));
    put(&world, &agent, ("d", "1g-10gb-19-0"));
    put(&world, &agent, ("e", "4g-40gb-5-0"));
    put(&world, &agent, ("f", "3g-40gb-9-4"));
    let first = kubelet.prepare("c").await.expect("prepared");
    kubelet.prepare("d").await.expect("prepared");
    assert_eq!(instances(&world), ["1g.10gb@0", "3g.40gb@4"]);
    let state = agent.state.borrow().clone();
    let instance_of_c = instance(&state, 4).expect("it is in the inventory");
    let cdi = &first[0].cdi_device_ids;
    assert!(cdi.contains(&format!("windlass.dev/gpu={}", instance_of_c.id)), "{cdi:?}");
    let offer = state.device_offers()[&instance_of_c.id].clone();
    let obstacle = offer.obstacle.expect("the device plugin does not offer it");
    assert!(offer.resource.is_none() && obstacle.contains("for claims"), "{obstacle}");
    for (name, conflict) in [("e", "the same slices"), ("f", "the same place")] {
        let error = kubelet.prepare(name).await.expect_err(conflict);
        assert!(error.ends_with("is held by another claim"), "{error}");
    }
    agent.stop().await;

    // The next agent answers from the record.
    let (agent, mut kubelet) = world.start_ready().await;
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    kubelet.unprepare("d").await.expect("released");
    assert_eq!(instances(&world), ["3g.40gb@4"]);
    assert_eq!(instance(&agent.state.borrow(), 0), None, "a removed instance is not offered");
    kubelet.prepare("e").await.expect("there is room now");
    for name in ["c", "e"] {
        kubelet.unprepare(name).await.expect("released");
    }
    assert!(instances(&world).is_empty());
    agent.stop().await;
}

#[tokio::test]
async fn instances_of_released_claims_are_removed_from_the_inventory() {
    let world = gpus_in_mig_mode();
    let (agent, mut kubelet) = world.start_ready().await;
    let before = agent.state.borrow().inventory.devices.len();
    for name in (0..20).map(|number| format!("c{number}")) {
        put(&world, &agent, (&name, "1g-10gb-19-0"));
        kubelet.prepare(&name).await.expect("prepared");
        kubelet.unprepare(&name).await.expect("released");
    }
    agent.until(|state| state.inventory.devices.len() == before).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_instance_from_before_a_kill_is_found_by_its_slices_or_removed() {
    let world = gpus_in_mig_mode();
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("kept", "2g-20gb-14-0"));
    put(&world, &agent, ("gone", "2g-20gb-14-2"));
    let first = kubelet.prepare("kept").await.expect("prepared");
    kubelet.prepare("gone").await.expect("prepared");
    agent.stop().await;
    // The state between the creation of the instance and the record of it.
    world.mark_prepare_started();
    for name in ["kept", "gone"] {
        world.change_record(|record| record["claims"][name]["devices"][0]["cdi"] = json!([]));
        fs::remove_file(
            world.config.places.cdi_dir.join(format!("windlass.dev-claim-{name}.json")),
        )
        .expect("there");
    }
    world.remove("gone");

    let (agent, mut kubelet) = world.start_ready().await;
    agent.until(|state| instance(state, 2).is_none()).await;
    assert_eq!(kubelet.prepare("kept").await.expect("prepared"), first);
    assert_eq!(instances(&world), ["2g.20gb@0"]);
    kubelet.unprepare("kept").await.expect("released");
    assert!(instances(&world).is_empty());
    agent.stop().await;
}

#[tokio::test]
async fn an_unclaimed_instance_is_removed_once_instances_are_created_for_claims() {
    let mut world = gpus_in_mig_mode();
    let policy = world.config.policy.clone();
    world.config.policy.dra.partitions = DraPartitions::AsCut;
    let (agent, _kubelet) = world.start_ready().await;
    create_instance(&world, 5);
    agent.until(|state| instance(state, 5).is_some()).await;
    agent.set_policy(policy);
    agent.until(|state| instance(state, 5).is_none()).await;
    assert!(instances(&world).is_empty());
    agent.stop().await;
}

#[tokio::test]
async fn an_unclaimed_instance_is_removed_at_the_start_and_a_claimed_one_is_not() {
    let world = gpus_in_mig_mode();
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("c", "1g-10gb-19-6"));
    put(&world, &agent, ("d", "1g-10gb-19-5"));
    let first = kubelet.prepare("c").await.expect("prepared");
    create_instance(&world, 5);
    agent.until(|state| instance(state, 5).is_some()).await;
    let error = kubelet.prepare("d").await.expect_err("a foreign instance");
    assert!(error.contains("was not made for this claim"), "{error}");
    let foreign: DeviceId = instance(&agent.state.borrow(), 5).expect("there").id;
    agent.stop().await;

    let (agent, mut kubelet) = world.start_ready().await;
    agent
        .until(|state| {
            let device = state.inventory.get(foreign.as_str());
            device.is_none_or(|device| device.health.has_vanished())
        })
        .await;
    assert_eq!(instances(&world), ["1g.10gb@6"]);
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    kubelet.prepare("d").await.expect("the slices are free");
    agent.stop().await;
}
