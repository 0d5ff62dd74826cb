//! Cleanup of boards between two pods, through failures of every sort.

use std::fs;

use windlass_config::{CleanupSteps, Step, StepAction};
use windlass_core::device::Device;
use windlass_kubelet_api::{checkpoint, deviceplugin::PLUGIN_DIR};
use windlass_kubelet_sim::{Event, Kubelet};
use windlass_machine::{
    BoardEvent::{Frequency, Reset},
    BoardFault,
};
use windlass_testkit::{
    MHZ, RunningAgent, UNKNOWN_HISTORY_STEPS, pod_with as pod, until, until_allocatable,
};

use crate::devices::{
    gateway::{
        BOARDS, Gateway, SPARES, STEP_TIMEOUT, admit, delete, deploy, start, start_with_retries,
    },
    world::{attribute, node},
};

/// Gateway of one board, which the container of pod `a` uses.
async fn start_with_container() -> (Gateway, Kubelet, RunningAgent) {
    let gateway = Gateway::new(1);
    let (kubelet, agent) = gateway.start_ready().await;
    admit(&kubelet, "a", BOARDS).await;
    start(&kubelet, "a").await.expect("started");
    (gateway, kubelet, agent)
}

#[tokio::test]
async fn a_board_is_prepared_before_a_container_starts_and_reset_after_its_release() {
    let gateway = Gateway::new(1);
    let (kubelet, _agent) = gateway.start_ready().await;
    admit(&kubelet, "a", BOARDS).await;
    assert_eq!(gateway.boards[0].take_events(), [], "the container may still pull its image");
    start(&kubelet, "a").await.expect("started");
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
    deploy(&gateway.boards[0]);
    gateway.boards[0].take_events();
    start(&kubelet, "a").await.expect("started again");
    assert_eq!(gateway.boards[0].take_events(), [], "a restart is no new tenant");
    assert!(gateway.boards[0].is_deployed());
    delete(&kubelet, "a").await;
    gateway.until_events(0, &[Reset]).await;
    gateway.until_allocatable(&kubelet, 1).await;
    admit(&kubelet, "b", BOARDS).await;
    start(&kubelet, "b").await.expect("started");
    gateway.until_events(0, &[Reset, Frequency(MHZ)]).await;
}

#[tokio::test]
async fn a_board_that_is_allocated_before_its_release_is_seen_is_cleaned_first() {
    let (gateway, kubelet, _agent) = start_with_container().await;
    deploy(&gateway.boards[0]);
    gateway.boards[0].take_events();
    kubelet.delete_pod("a-uid").await;
    admit(&kubelet, "b", BOARDS).await;
    start(&kubelet, "b").await.expect("started");
    assert!(!gateway.boards[0].is_deployed(), "no data of the other pod remains");
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
}

#[tokio::test]
async fn an_outdated_checkpoint_counts_as_a_release_if_no_pod_has_the_board() {
    let (gateway, kubelet, _agent) = start_with_container().await;
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
    kubelet.delete_pod("a-uid").await;
    gateway.until_events(0, &[Reset]).await;
}

#[tokio::test]
async fn a_board_that_hangs_fails_its_container_with_the_reason_and_no_other() {
    let gateway = Gateway::new(2);
    let (kubelet, agent) = gateway.start_ready().await;
    let first = admit(&kubelet, "a", BOARDS).await;
    admit(&kubelet, "b", BOARDS).await;
    let (failing, healthy) = match gateway.board_of(&first) {
        0 => (0, 1),
        _ => (1, 0),
    };
    gateway.boards[failing].inject(BoardFault::Hangs);
    let (failed, started) = tokio::join!(start(&kubelet, "a"), start(&kubelet, "b"));
    let error = failed.expect_err("it hangs").to_string();
    assert!(error.contains("PreStartContainer rpc failed"), "{error}");
    assert!(error.contains("is not ready for its container: GET http://"), "{error}");
    assert!(error.contains("not done within 300ms"), "{error}");
    started.expect("the other board works");
    gateway.until_events(healthy, &UNKNOWN_HISTORY_STEPS).await;
    gateway.until_withheld(&agent, failing, "cleanup failed: GET http://").await;
    gateway.boards[failing].inject(BoardFault::None);
    start(&kubelet, "a").await.expect("the kubelet tries again with a repaired board");
    gateway.until_events(failing, &UNKNOWN_HISTORY_STEPS).await;
    gateway.until_allocatable(&kubelet, 2).await;
}

#[tokio::test]
async fn a_board_that_cannot_be_cleaned_is_withheld_until_it_is_clean() {
    let (gateway, kubelet, agent) = start_with_container().await;
    gateway.boards[0].inject(BoardFault::Refuses);
    delete(&kubelet, "a").await;
    gateway.until_withheld(&agent, 0, "the answer is 500 Internal Server Error").await;
    gateway.until_allocatable(&kubelet, 0).await;
    gateway.boards[0].take_events();
    gateway.boards[0].inject(BoardFault::None);
    gateway.until_events(0, &[Reset]).await;
    gateway.until_allocatable(&kubelet, 1).await;
}

#[tokio::test]
async fn an_agent_that_dies_during_a_preparation_leaves_a_dirty_board() {
    let gateway = Gateway::new(1);
    let (kubelet, agent) = gateway.start_ready().await;
    admit(&kubelet, "a", BOARDS).await;
    gateway.boards[0].inject(BoardFault::Hangs);
    let kill_during_preparation = async {
        let record = gateway.node.config.places.state_dir.join("handover.json");
        until("the board is being prepared", async || {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            text.contains("preparing").then_some(()).ok_or(text)
        })
        .await;
        agent.kill().await;
    };
    let (failed, ()) = tokio::join!(start(&kubelet, "a"), kill_during_preparation);
    failed.expect_err("the agent was killed");
    let agent = gateway.node.start_agent();
    gateway.until_withheld(&agent, 0, "cleanup: not clean yet").await;
    gateway.boards[0].inject(BoardFault::None);
    gateway.boards[0].take_events();
    start_with_retries(&kubelet, "a").await;
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
}

#[tokio::test]
async fn a_board_that_was_released_while_no_agent_ran_is_reset_by_the_next_one() {
    let (gateway, kubelet, agent) = start_with_container().await;
    agent.kill().await;
    let agent = gateway.node.start_agent();
    gateway.until_allocatable(&kubelet, 1).await;
    gateway.boards[0].take_events();
    start_with_retries(&kubelet, "a").await;
    assert_eq!(gateway.boards[0].take_events(), [], "the cleanup outlives the agent");
    deploy(&gateway.boards[0]);
    gateway.boards[0].take_events();
    agent.kill().await;
    kubelet.delete_pod("a-uid").await;
    let _agent = gateway.node.start_agent();
    gateway.until_events(0, &[Reset]).await;
    gateway.until_allocatable(&kubelet, 1).await;
}

#[tokio::test]
async fn a_cleaning_that_a_dead_agent_began_is_done_by_the_next() {
    let (gateway, kubelet, agent) = start_with_container().await;
    gateway.boards[0].take_events();
    gateway.boards[0].inject(BoardFault::Hangs);
    delete(&kubelet, "a").await;
    gateway.until_withheld(&agent, 0, "cleanup: being cleaned").await;
    agent.kill().await;
    gateway.boards[0].inject(BoardFault::None);
    let _agent = gateway.node.start_agent();
    gateway.until_events(0, &[Reset]).await;
    gateway.until_allocatable(&kubelet, 1).await;
}

#[tokio::test]
async fn after_a_reboot_the_history_of_a_board_is_unknown() {
    let (gateway, kubelet, agent) = start_with_container().await;
    gateway.boards[0].take_events();
    agent.kill().await;
    gateway.node.reboot();
    let _agent = gateway.node.start_agent();
    gateway.until_allocatable(&kubelet, 1).await;
    start_with_retries(&kubelet, "a").await;
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
}

#[tokio::test]
async fn no_step_runs_that_cannot_be_recorded() {
    let gateway = Gateway::new(1);
    let (kubelet, _agent) = gateway.start_ready().await;
    admit(&kubelet, "a", BOARDS).await;
    gateway.block_state_folder();
    let error = start(&kubelet, "a").await.expect_err("no disk").to_string();
    assert!(error.contains("cannot write") && error.contains("handover.json"), "{error}");
    assert_eq!(gateway.boards[0].take_events(), []);
    gateway.unblock_state_folder();
    start_with_retries(&kubelet, "a").await;
    gateway.until_events(0, &UNKNOWN_HISTORY_STEPS).await;
}

#[tokio::test]
async fn no_container_starts_with_a_board_while_its_owner_is_unknown() {
    let (gateway, kubelet, _agent) = start_with_container().await;
    deploy(&gateway.boards[0]);
    gateway.boards[0].take_events();
    let record =
        gateway.node.config.places.kubelet_dir.join(PLUGIN_DIR).join(checkpoint::FILE_NAME);
    let moved = record.with_extension("away");
    fs::rename(&record, &moved).expect("there");
    fs::create_dir(&record).expect("created");
    let error = start(&kubelet, "a").await.expect_err("no checkpoint").to_string();
    assert!(error.contains("checkpoint cannot be read"), "{error}");
    assert_eq!(gateway.boards[0].take_events(), [], "it may be in use");
    fs::remove_dir(&record).expect("empty");
    fs::rename(&moved, &record).expect("moved back");
    start(&kubelet, "a").await.expect("started again");
    assert!(gateway.boards[0].is_deployed(), "a restart is no new tenant");
}

#[tokio::test]
async fn the_kubelet_announces_starts_only_for_resources_with_preparation() {
    let gateway = Gateway::new(1);
    let (kubelet, agent) = gateway.start_ready().await;
    let announced_starts = |resource: &str| {
        let is_start = |event: &Event| match event {
            Event::PreStarted { resource: started, .. } => started == resource,
            _ => false,
        };
        kubelet.events().count(is_start)
    };
    start(&kubelet, "idle").await.expect("started");
    assert_eq!(announced_starts(SPARES), 0);
    let mut policy = gateway.node.config.policy.clone();
    let url = format!("http://{}/chip_reset", gateway.boards[0].control());
    let step = Step { action: StepAction::Http(url), timeout: STEP_TIMEOUT };
    policy.sources[1].cleanup = CleanupSteps { prepare: vec![step.clone()], release: vec![step] };
    agent.set_policy(policy);
    until("a start is announced", async || {
        start(&kubelet, "idle").await.expect("started");
        (announced_starts(SPARES) > 0).then_some(()).ok_or("none")
    })
    .await;
    assert_eq!(gateway.boards[0].take_events(), [], "the holder may use it");
}

#[tokio::test]
async fn attributes_probes_and_steps_use_one_folder() {
    let pci_folder = "sys/devices/pci0000:00/0000:00:05.0/misc/dma1";
    let virtual_folder = "sys/devices/virtual/misc/dma0";
    let devices = r#"
- {name: dma0, folder: virtual/misc/dma0, class: misc, number: "10:1", node: dma0, files: {mode: idle}}
- name: dma1
  pci: {path: "pci0000:00/0000:00:05.0", id: "10ee:9038", class: 0x120000}
  driver: dma
  children: [{folder: misc/dma1, class: misc, number: "10:2", node: dma1, files: {mode: idle}}]
"#;
    // A device without device nodes still has the path at which it was found.
    let config = r#"
sources:
- name: dma
  resource: example.com/dma
  find: {nodes: /dev/dma*}
  attributes: {mode: mode}
  give: {found: none, env: {MODE: "{attr:mode}"}}
  probe: {attribute: mode, equals: [idle, busy], every: 20ms}
  prepare: [{write: mode, text: busy}]
"#;
    let world = node(devices, config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/dma", 2).await;
    let pod = pod("p", "example.com/dma", 2);
    kubelet.admit(pod).await.expect("admitted");
    start(&kubelet, "p").await.expect("started");
    for folder in [pci_folder, virtual_folder] {
        let written = std::fs::read_to_string(world.host_path(&format!("/{folder}/mode")));
        assert_eq!(written.expect("there"), "busy", "{folder}");
    }
    let is_busy =
        |device: &Device| attribute(device, "windlass.dev/mode").as_deref() == Some("busy");
    agent.until(|state| state.inventory.devices.iter().filter(|it| is_busy(it)).count() == 2).await;
}
