//! Claims that got another allocation, or lost theirs, under the same UID and without a call to the driver.

use std::fs;

use serde_json::{Value, json};
use windlass_kubelet_api::dra::checkpoint::{Checkpoint, ClaimState, DriverState, FILE_NAME};
use windlass_testkit::RunningAgent;

use crate::dra::{
    kubelet::Kubelet,
    world::{Allocated, FIRST_GPU, SECOND_GPU, World, claim, gpus},
};

impl World {
    /// Kubelet checkpoint of claims whose UIDs are their names, before a driver has answered.
    pub(crate) fn write_kubelet_checkpoint(&self, names: &[&str]) {
        let state = |name: &&str| ClaimState {
            claim_uid: (*name).to_owned(),
            claim_name: (*name).to_owned(),
            namespace: "ns".to_owned(),
            pod_uids: ["p".to_owned()].into(),
            drivers: [("windlass.dev".to_owned(), DriverState::default())].into(),
        };
        let checkpoint = Checkpoint { claims: Some(names.iter().map(state).collect()) };
        fs::create_dir_all(&self.config.places.kubelet_dir).expect("created");
        fs::write(self.config.places.kubelet_dir.join(FILE_NAME), checkpoint.to_json())
            .expect("written");
    }
}

/// Prepares claim `c` with the second GPU in place of the first, which is free for another claim then.
async fn check_reallocation(world: &World, agent: &RunningAgent, kubelet: &mut Kubelet) {
    world.claim(agent, "c", &[SECOND_GPU]);
    let devices = kubelet.prepare("c").await.expect("prepared again");
    let id = gpus(&agent.state.borrow())[1].id.as_str().to_lowercase();
    assert!(devices.iter().map(|device| &device.device_name).eq([&id]), "{devices:?}");
    world.claim(agent, "first", &[FIRST_GPU]);
    kubelet.prepare("first").await.expect("the old device is free");
    world.claim(agent, "second", &[SECOND_GPU]);
    let error = kubelet.prepare("second").await.expect_err("the new device is in use");
    assert!(error.ends_with("is held by another claim"), "{error}");
}

#[tokio::test]
async fn a_reallocated_claim_releases_its_old_devices_before_it_gets_the_new_ones() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    kubelet.prepare("c").await.expect("prepared");
    check_reallocation(&world, &agent, &mut kubelet).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_reallocated_claim_with_an_interrupted_preparation_releases_its_old_devices() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    kubelet.prepare("c").await.expect("prepared");
    agent.stop().await;
    world.mark_prepare_started();
    let (agent, mut kubelet) = world.start_ready().await;
    check_reallocation(&world, &agent, &mut kubelet).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_without_devices_of_the_node_is_released_unless_the_kubelet_knows_it() {
    let (world, agent, mut kubelet) = World::start().await;
    let names = ["kept", "deallocated", "elsewhere", "known"];
    for (gpu, name) in names.into_iter().enumerate() {
        world.claim(&agent, name, &[Allocated { request: "a", gpu }]);
        kubelet.prepare(name).await.expect("prepared");
    }
    agent.stop().await;
    world.write_kubelet_checkpoint(&["known"]);
    let result =
        json!({"request": "a", "driver": "windlass.dev", "pool": "n10/nvidia", "device": "gpu-0"});
    world.put(&claim("elsewhere", &[result]));
    for name in ["deallocated", "known"] {
        let mut object = claim(name, &[]);
        object["status"] = json!({});
        world.put(&object);
    }
    let (agent, _) = world.start_ready().await;
    let is_expected = |record: &Value| {
        let claims = record["claims"].as_object().expect("a map");
        claims.keys().map(String::as_str).eq(["kept", "known"])
    };
    world.until_record(is_expected).await;
    agent.stop().await;
}
