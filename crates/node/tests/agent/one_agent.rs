//! One agent at a time, even if the kubelet's folder is deleted or replaced.

use std::{fs, future::pending, pin::pin};

use jiff::Timestamp;
use tokio::task::JoinSet;
use windlass_host::clock::Clock;
use windlass_kubelet_sim::{Cleanup, Event, Kubelet};
use windlass_node::{Agent, StartError, agent::PartFailed};
use windlass_testkit::{GPU, LIMIT, allocatable, in_time};

use crate::agent::world::{gpu_node, pod};

/// Restarts the kubelet, and waits until the agent has registered with it.
async fn restarted(kubelet: &Kubelet) {
    let is_registration = |event: &&Event| matches!(event, Event::Registered { .. });
    let registrations = kubelet.calls().count(|event| is_registration(&event));
    kubelet.restart().await.expect("restarted");
    let is_registered_again =
        |events: &[Event]| events.iter().filter(is_registration).count() > registrations;
    kubelet.calls().wait_for(is_registered_again, LIMIT).await.expect("registered again");
    allocatable(kubelet, GPU, 8).await;
}

#[tokio::test]
async fn a_kubelet_that_deletes_every_file_lets_no_second_agent_serve() {
    let mut world = gpu_node("dgx-h100");
    let mut settings = world.kubelet_config();
    settings.cleanup = Cleanup::AllFiles;
    let kubelet = Kubelet::start(settings).expect("the embedded kubelet starts");
    let first = world.agent();
    allocatable(&kubelet, GPU, 8).await;
    restarted(&kubelet).await;
    world.config.places.state_dir = world.folder.join("other");
    let error = world.try_agent().expect_err("refused");
    assert!(matches!(error, StartError::Taken(_)), "{error}");
    let mut waiting = pin!(windlass_node::stand_by(&world.config));
    tokio::select! {
        waited = &mut waiting => panic!("the first one serves: {waited:?}"),
        admitted = kubelet.admit(pod("p", 8)) => drop(admitted.expect("the first one answers")),
    }
    drop(first);
    waiting.await.expect("the first agent has ended");
    let _second = world.agent();
    allocatable(&kubelet, GPU, 8).await;
}

#[tokio::test]
async fn an_agent_locks_a_recreated_folder_before_it_serves_there() {
    let mut world = gpu_node("dgx-h100");
    let (kubelet, _first) = world.serving(8).await;
    let plugins = world.config.places.kubelet_dir.join("device-plugins");
    fs::remove_dir_all(&plugins).expect("removed");
    fs::create_dir(&plugins).expect("made anew");
    restarted(&kubelet).await;
    world.config.places.state_dir = world.folder.join("other");
    let error = world.try_agent().expect_err("refused");
    assert!(matches!(error, StartError::Taken(_)), "{error}");
    kubelet.admit(pod("p", 8)).await.expect("the first one answers");
}

#[tokio::test]
async fn an_agent_ends_with_a_reason_if_another_locked_the_new_folder() {
    let mut world = gpu_node("dgx-h100");
    let kubelet = world.kubelet();
    let clock = Clock::starting_at(Timestamp::now());
    let first = Agent::start(&world.config, clock).expect("the agent starts");
    let mut running = JoinSet::new();
    running.spawn(first.run(pending()));
    allocatable(&kubelet, GPU, 8).await;
    let plugins = world.config.places.kubelet_dir.join("device-plugins");
    fs::remove_dir_all(&plugins).expect("removed");
    fs::create_dir(&plugins).expect("made anew");
    let error = world.try_agent().expect_err("the first one has the state folder");
    assert!(matches!(error, StartError::StateTaken(_)), "{error}");
    world.config.places.state_dir = world.folder.join("other");
    let _second = world.agent();
    let ended = in_time("the agent ends", running.join_next()).await;
    let error = ended.expect("there is one").expect("no panic").expect_err("it lost the node");
    assert!(matches!(error, PartFailed::Lost(_)), "{error}");
    restarted(&kubelet).await;
    kubelet.admit(pod("p", 8)).await.expect("the second one answers");
}
