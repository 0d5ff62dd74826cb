//! Claims across restarts of the agent: its record of claims is read again, also if files are lost or corrupt.

use std::fs;

use serde_json::{Value, json};
use windlass_resources::NodeState;
use windlass_testkit::{RunningAgent, until_removed};

use crate::dra::world::{FIRST_GPU, SECOND_GPU, World, gpus, records};

/// Kubelet checkpoint of a claim whose UID is its name.
pub(crate) fn write_prepared_checkpoint(world: &World, name: &str, state: &NodeState) {
    let id = state.inventory.devices[0].id.to_string();
    let device = json!({
        "PoolName": "n1/nvidia", "DeviceName": id.to_lowercase(), "RequestNames": ["a"],
        "ShareID": null, "CDIDeviceIDs": [format!("windlass.dev/gpu={id}")],
    });
    let claim = json!({
        "ClaimUID": name, "ClaimName": name, "Namespace": "ns", "PodUIDs": {"p": {}},
        "DriverState": {"windlass.dev": {"Devices": [device]}},
    });
    let data = json!({
        "kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": [claim],
    });
    let document = json!({"Data": data.to_string(), "Checksum": 0}).to_string();
    fs::write(world.config.places.kubelet_dir.join("dra_manager_state"), document)
        .expect("written");
}

#[tokio::test]
async fn a_claim_outlives_the_agent_and_keeps_its_device() {
    let mut world = World::new();
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    let first = kubelet.prepare("c").await.expect("prepared");
    let document = world.document("c");
    agent.stop().await;

    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "other", &[FIRST_GPU]);
    let error = kubelet.prepare("other").await.expect_err("held");
    assert!(error.ends_with("is held by another claim"), "{error}");
    world.api.go_offline().await;
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    assert_eq!(world.document("c"), document);
    kubelet.unprepare("c").await.expect("without an API server");
    assert_eq!(world.document("c"), None);
    agent.stop().await;
}

#[tokio::test]
async fn a_preparation_that_a_kill_interrupted_is_repeated_or_released() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    world.claim(&agent, "d", &[SECOND_GPU]);
    let first = kubelet.prepare("c").await.expect("prepared");
    kubelet.prepare("d").await.expect("prepared");
    agent.stop().await;
    // The state after a kill between the record of both preparations and the document of claim c.
    world.mark_prepare_started();
    fs::remove_file(world.config.places.cdi_dir.join("windlass.dev-claim-c.json")).expect("there");

    let (agent, mut kubelet) = world.start_ready().await;
    world.until_record(|record| record["checksum"].is_u64()).await;
    kubelet.unprepare("d").await.expect("released");
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    assert!(world.document("c").is_some());
    assert_eq!(fs::read_to_string(world.record()).expect("there").matches("Started").count(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn a_removed_document_is_written_again_and_that_of_a_released_claim_is_not() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    world.claim(&agent, "d", &[SECOND_GPU]);
    kubelet.prepare("c").await.expect("prepared");
    kubelet.prepare("d").await.expect("prepared");
    let [document_c, document_d] = ["c", "d"].map(|uid| world.document(uid).expect("there"));
    // One rename instead of several deletions, since the agent writes to the folder.
    let move_away = |moved: &str| {
        fs::rename(&world.config.places.cdi_dir, world.config.places.cdi_dir.with_extension(moved))
            .expect("moved");
    };
    move_away("once");
    world.until_document("c", &document_c).await;
    kubelet.unprepare("c").await.expect("released");
    move_away("twice");
    world.until_document("d", &document_d).await;
    assert_eq!(world.document("c"), None);
    agent.stop().await;
}

#[tokio::test]
async fn a_corrupt_record_is_renamed_and_the_kubelets_checkpoint_is_used() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    world.claim(&agent, "other", &[FIRST_GPU]);
    let first = kubelet.prepare("c").await.expect("prepared");
    write_prepared_checkpoint(&world, "c", &agent.state.borrow());
    agent.stop().await;
    let record = fs::read_to_string(world.record()).expect("there");
    for path in records(&world.config.places) {
        fs::write(path, record.replace("\"ns\"", "\"nt\""))
            .expect("one byte of its claims changed");
    }
    let stale = world.config.places.cdi_dir.join("windlass.dev-claim-stale.json");
    fs::write(&stale, "{}").expect("written");

    let (agent, mut kubelet) = world.start_ready().await;
    assert!(world.record().with_extension("json.unreadable").exists());
    assert!(!stale.exists(), "that claim is unknown");
    let error = kubelet.prepare("other").await.expect_err("held");
    assert!(error.ends_with("is held by another claim"), "{error}");
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    kubelet.unprepare("c").await.expect("released");
    kubelet.prepare("other").await.expect("free");
    agent.stop().await;
}

#[tokio::test]
async fn no_claim_is_lost_if_the_record_and_the_documents_are_deleted_in_turn() {
    let mut world = World::new();
    let (mut agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    let first = kubelet.prepare("c").await.expect("prepared");
    write_prepared_checkpoint(&world, "c", &agent.state.borrow());
    let record = fs::read(world.record()).expect("there");
    let document = world.document("c").expect("there");
    let folder = world.config.places.cdi_dir.clone();
    // An agent that lost both would have to read the claim from the API server.
    world.api.go_offline().await;
    for damage in [None, Some("{"), None] {
        agent.stop().await;
        match damage {
            None => fs::remove_file(world.record()).expect("it was there"),
            Some(text) => fs::write(world.record(), text).expect("written"),
        }
        // This agent is killed before it does anything for claims.
        RunningAgent::start(&world.config).expect("it starts").kill().await;
        (agent, _) = world.start_ready().await;
        world.until_records(&record).await;
        // One rename instead of several deletions, since the agent writes to the folder.
        let moved = tempfile::tempdir_in(&world.config.places.state_dir).expect("a folder");
        fs::rename(&folder, moved.path().join("cdi")).expect("moved");
        world.until_document("c", &document).await;
        world.until_records(&record).await;
    }
    agent.stop().await;
    fs::remove_dir_all(&folder).expect("it was there");
    (agent, kubelet) = world.start_ready().await;
    world.until_document("c", &document).await;
    world.until_records(&record).await;
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    kubelet.unprepare("c").await.expect("released");
    assert_eq!(world.document("c"), None);
    agent.stop().await;
}

#[tokio::test]
async fn a_newer_record_is_not_changed_and_the_driver_waits_until_it_is_removed() {
    let world = World::new();
    fs::create_dir_all(&world.config.places.state_dir).expect("created");
    fs::write(world.record(), r#"{"version": 9}"#).expect("written");
    let agent = RunningAgent::start(&world.config).expect("it starts");
    agent.until(|state| gpus(state).len() == 8).await;
    assert!(!world.registration().exists());
    assert_eq!(fs::read_to_string(world.record()).expect("there"), r#"{"version": 9}"#);
    fs::remove_file(world.record()).expect("there");
    world.register_kubelet().await;
    agent.stop().await;
}

#[tokio::test]
async fn no_claim_is_prepared_that_cannot_be_recorded() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "known", &[SECOND_GPU]);
    let known_devices = kubelet.prepare("known").await.expect("prepared");
    let state = &world.config.places.state_dir;
    let moved = state.with_extension("aside");
    fs::rename(state, &moved).expect("moved");
    fs::write(state, "").expect("a file in place of the folder");
    world.claim(&agent, "c", &[FIRST_GPU]);
    world.claim(&agent, "d", &[FIRST_GPU]);
    let error = kubelet.prepare("c").await.expect_err("not recorded");
    assert!(error.contains("cannot write") && error.contains("claims.json"), "{error}");
    assert_eq!(world.document("c"), None);
    assert_eq!(kubelet.prepare("known").await.expect("it is recorded"), known_devices);
    kubelet.unprepare("known").await.expect_err("the release cannot be recorded");
    fs::remove_file(state).expect("there");
    assert_eq!(kubelet.prepare("known").await.expect("as before"), known_devices);
    kubelet.prepare("d").await.expect("the other claim took no device");
    agent.stop().await;
}

#[tokio::test]
async fn a_deleted_claim_is_released_at_the_next_start() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "kept", &[FIRST_GPU]);
    world.claim(&agent, "gone", &[SECOND_GPU]);
    for name in ["kept", "gone"] {
        kubelet.prepare(name).await.expect("prepared");
    }
    write_prepared_checkpoint(&world, "kept", &agent.state.borrow());
    agent.stop().await;
    for name in ["kept", "gone"] {
        world.remove(name);
    }
    let (agent, _) = world.start_ready().await;
    until_removed(&world.config.places.cdi_dir.join("windlass.dev-claim-gone.json")).await;
    let record: Value =
        serde_json::from_slice(&fs::read(world.record()).expect("there")).expect("JSON");
    let claims: Vec<_> = record["claims"].as_object().expect("a map").keys().collect();
    assert_eq!(claims.iter().filter(|it| **it == "kept").count(), 1, "the kubelet still has it");
    agent.stop().await;
}
