//! Health history of devices across restarts of the agent.

use std::fs;

use windlass_core::health::{HealthState, Reason};
use windlass_testkit::{Node, RunningAgent};

use crate::agent::{health::until_failure, world::with_long_quiet_period};

/// A machine with a boot id, and an agent with a long quiet period.
fn world() -> Node {
    let world = with_long_quiet_period("dgx-h100");
    world.reboot();
    world
}

/// State of each GPU, once all were probed.
async fn states(agent: &RunningAgent) -> Vec<HealthState> {
    let probed = agent.until(|state| {
        let mut devices = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
        state.inventory.is_complete() && devices.all(|gpu| gpu.health.state != HealthState::Unknown)
    });
    let state = probed.await;
    let gpus = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
    gpus.map(|gpu| gpu.health.state).collect()
}

#[tokio::test]
async fn a_quiet_period_continues_after_a_restart_and_ends_with_a_reboot() {
    let world = world();
    let agent = world.start_agent();
    states(&agent).await;
    world.inject("xid:79@3");
    until_failure(&agent, 3, Reason::Xid(79)).await;
    agent.stop().await;

    let agent = world.start_agent();
    let seen = states(&agent).await;
    assert_eq!(seen.iter().filter(|state| **state == HealthState::Unhealthy).count(), 1);
    until_failure(&agent, 3, Reason::Xid(79)).await;
    agent.stop().await;

    world.reboot();
    let agent = world.start_agent();
    assert!(states(&agent).await.iter().all(|state| *state == HealthState::Healthy));
}

#[tokio::test]
async fn a_node_without_faults_writes_no_health_history() {
    let world = world();
    let agent = world.start_agent();
    states(&agent).await;
    agent.stop().await;
    let files =
        std::fs::read_dir(&world.config.places.state_dir).expect("the devices are recorded");
    let mut files: Vec<_> = files.map(|entry| entry.expect("an entry").file_name()).collect();
    files.sort();
    // The spare files reserve space for a full disk, and have no health history.
    let spare = [".health-nvidia.json.spare", ".health-nvidia.json.spare2"];
    assert_eq!(files, [spare[0], spare[1], "devices.json"]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_set_aside_and_the_agent_serves() {
    let world = world();
    fs::create_dir_all(&world.config.places.state_dir).expect("created");
    fs::write(world.config.places.state_dir.join("health-nvidia.json"), "{").expect("written");
    let agent = world.start_agent();
    assert_eq!(states(&agent).await.len(), 8);
    agent.stop().await;
    assert!(world.config.places.state_dir.join("health-nvidia.json.unreadable").exists());
}
