//! One agent at a time, even if the kubelet's folder is deleted or replaced.

use std::{fs, future::pending, pin::pin};

use jiff::Timestamp;
use tokio::task::JoinSet;
use windlass_host::clock::Clock;
use windlass_kubelet_sim::{Kubelet, PluginDirCleanup};
use windlass_node::{Agent, Reservation, StandbyMode, StartError, agent::TaskFailed};
use windlass_testkit::{
    GPU, RunningAgent, registrations, until_allocatable, until_registrations, within_timeout,
};

use crate::agent::world::{gpu_node, pod};

/// Restarts the kubelet, and waits until the agent has registered with it.
async fn restart_and_register(kubelet: &Kubelet) {
    let before = registrations(kubelet);
    kubelet.restart().await.expect("restarted");
    until_registrations(kubelet, before + 1).await;
    until_allocatable(kubelet, GPU, 8).await;
}

#[tokio::test]
async fn a_kubelet_that_deletes_every_file_lets_no_second_agent_serve() {
    let mut world = gpu_node("dgx-h100");
    let mut config = world.kubelet_config();
    config.plugin_dir_cleanup = PluginDirCleanup::AllFiles;
    let kubelet = Kubelet::start(config).expect("the embedded kubelet starts");
    let first = world.start_agent();
    until_allocatable(&kubelet, GPU, 8).await;
    restart_and_register(&kubelet).await;
    world.config.places.state_dir = world.folder.join("other");
    let error = world.try_start_agent().expect_err("refused");
    assert!(matches!(error, StartError::KubeletInUse(_)), "{error}");
    let mut waiting = pin!(Reservation::wait(&world.config, StandbyMode::On));
    tokio::select! {
        result = &mut waiting => panic!("the first one serves: {result:?}"),
        admitted = kubelet.admit(pod("p", 8)) => drop(admitted.expect("the first one answers")),
    }
    drop(first);
    let reservation = waiting.await.expect("the first agent has ended");
    let _second = RunningAgent::start_reserved(&world.config, reservation).expect("it starts");
    until_allocatable(&kubelet, GPU, 8).await;
}

#[tokio::test]
async fn an_agent_locks_a_recreated_folder_before_it_serves_there() {
    let mut world = gpu_node("dgx-h100");
    let (kubelet, _first) = world.start_ready(8).await;
    let plugins = world.config.places.kubelet_dir.join("device-plugins");
    fs::remove_dir_all(&plugins).expect("removed");
    fs::create_dir(&plugins).expect("created again");
    restart_and_register(&kubelet).await;
    world.config.places.state_dir = world.folder.join("other");
    let error = world.try_start_agent().expect_err("refused");
    assert!(matches!(error, StartError::KubeletInUse(_)), "{error}");
    kubelet.admit(pod("p", 8)).await.expect("the first one answers");
}

#[tokio::test]
async fn an_agent_ends_with_a_reason_if_another_locked_the_new_folder() {
    let mut world = gpu_node("dgx-h100");
    let kubelet = world.start_kubelet();
    let clock = Clock::starting_at(Timestamp::now());
    let first = Agent::start(&world.config, clock).expect("the agent starts");
    let mut running = JoinSet::new();
    running.spawn(first.run(pending()));
    until_allocatable(&kubelet, GPU, 8).await;
    let plugins = world.config.places.kubelet_dir.join("device-plugins");
    fs::remove_dir_all(&plugins).expect("removed");
    fs::create_dir(&plugins).expect("created again");
    let error = world.try_start_agent().expect_err("the first one has the state folder");
    assert!(matches!(error, StartError::StateFolderInUse(_)), "{error}");
    world.config.places.state_dir = world.folder.join("other");
    let _second = world.start_agent();
    let ended = within_timeout("the agent ends", running.join_next()).await;
    let error = ended.expect("there is one").expect("no panic").expect_err("it lost the node");
    assert!(matches!(error, TaskFailed::Lost(_)), "{error}");
    restart_and_register(&kubelet).await;
    kubelet.admit(pod("p", 8)).await.expect("the second one answers");
}
