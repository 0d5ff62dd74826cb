//! Health history of devices across restarts of the agent.

use std::fs;

use windlass_core::health::{HealthState, Reason};
use windlass_testkit::{Node, Running};

use crate::agent::{health::until_failure, world::unforgiving};

/// A machine with a boot id, and an agent with a long quiet period.
fn world() -> Node {
    let world = unforgiving("dgx-h100");
    world.reboot();
    world
}

/// State of each GPU, once all were probed.
async fn states(agent: &Running) -> Vec<HealthState> {
    let probed = agent.until(|state| {
        let mut devices = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
        state.inventory.is_complete() && devices.all(|gpu| gpu.health.state != HealthState::Unknown)
    });
    let state = probed.await;
    let gpus = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
    gpus.map(|gpu| gpu.health.state).collect()
}

#[tokio::test]
async fn a_fault_is_waited_out_over_a_restart_and_forgiven_by_a_reboot() {
    let world = world();
    let agent = world.agent();
    states(&agent).await;
    world.inject("xid:79@3");
    until_failure(&agent, 3, Reason::Xid(79)).await;
    agent.stop().await;

    let agent = world.agent();
    let seen = states(&agent).await;
    assert_eq!(seen.iter().filter(|state| **state == HealthState::Unhealthy).count(), 1);
    until_failure(&agent, 3, Reason::Xid(79)).await;
    agent.stop().await;

    world.reboot();
    let agent = world.agent();
    assert!(states(&agent).await.iter().all(|state| *state == HealthState::Healthy));
}

#[tokio::test]
async fn a_node_without_trouble_writes_no_evidence_down() {
    let world = world();
    let agent = world.agent();
    states(&agent).await;
    agent.stop().await;
    let written =
        std::fs::read_dir(&world.config.places.state_dir).expect("what devices are is noted");
    let mut written: Vec<_> = written.map(|entry| entry.expect("an entry").file_name()).collect();
    written.sort();
    // The spare files reserve space for a full disk, and have no health history.
    let room = [".health-nvidia.json.spare", ".health-nvidia.json.spare2"];
    assert_eq!(written, [room[0], room[1], "devices.json"]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_set_aside_and_the_agent_serves() {
    let world = world();
    fs::create_dir_all(&world.config.places.state_dir).expect("made");
    fs::write(world.config.places.state_dir.join("health-nvidia.json"), "{").expect("written");
    let agent = world.agent();
    assert_eq!(states(&agent).await.len(), 8);
    agent.stop().await;
    assert!(world.config.places.state_dir.join("health-nvidia.json.unreadable").exists());
}
