//! The agent and a kubelet that starts late, restarts, deletes sockets and drops streams.

use std::sync::Arc;

use tonic::Request;
use windlass_kubelet_api::deviceplugin::{Empty, UNHEALTHY};
use windlass_kubelet_sim::{
    Event, Faults, Kubelet, NodeStatus, PodPhase, RegistrationFault, Release, StreamFault,
};
use windlass_resources::NodeState;
use windlass_testkit::{GPU, TIMEOUT, registrations, until_allocatable, until_registrations};

use crate::agent::world::{client, gpu_node, pod, until_gpu_counts, with_long_quiet_period};

/// Waits until the plugin has registered this many times in total, and the node has every GPU again.
async fn until_registered_again(kubelet: &Kubelet, times: usize) {
    until_registrations(kubelet, times).await;
    until_allocatable(kubelet, GPU, 8).await;
}

#[tokio::test]
async fn the_agent_registers_with_a_kubelet_that_starts_late() {
    let world = gpu_node("dgx-h100");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let kubelet = world.start_kubelet();
    until_allocatable(&kubelet, GPU, 8).await;
    assert_eq!(registrations(&kubelet), 1);
}

#[tokio::test]
async fn restarts_of_the_kubelet_change_no_allocation() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    let admission = kubelet.admit(pod("trainer", 4)).await.expect("admitted");
    kubelet.start_container("trainer-uid", "main").await.expect("started");
    let held = admission.allocation("main", GPU).expect("allocated").ids();
    for restart in 1..=4 {
        kubelet.restart().await.expect("restarted");
        until_registered_again(&kubelet, 1 + restart).await;
        let node = kubelet.status();
        let trainer = &node.pods["trainer-uid"];
        assert_eq!(trainer.phase, PodPhase::Admitted, "restart {restart}");
        let devices = trainer.containers["main"].devices[GPU].values().flatten().cloned();
        assert_eq!(devices.collect::<std::collections::BTreeSet<_>>(), held, "restart {restart}");
    }
    let rejection = kubelet.admit(pod("second", 5)).await.expect_err("four are held");
    assert!(rejection.message.contains("Requested: 5, Available: 4"), "{rejection}");
}

#[tokio::test]
async fn the_death_of_the_agent_changes_no_allocation() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    kubelet.admit(pod("trainer", 4)).await.expect("admitted");
    // A drop ends the agent without cleanup, like SIGKILL: socket and documents remain.
    drop(agent);
    until_gpu_counts(&kubelet, (8, 0)).await;
    let _agent = world.start_agent();
    until_gpu_counts(&kubelet, (8, 8)).await;
    assert_eq!(kubelet.status().resources[GPU].in_use.len(), 4);
}

#[tokio::test]
async fn a_deleted_socket_is_created_again_and_registered() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    kubelet.delete_socket("windlass-nvidia.com_gpu.sock").expect("deleted");
    until_registered_again(&kubelet, 2).await;
    assert!(world.socket().exists());
    kubelet.delete_sockets().expect("deleted");
    kubelet.replace_registration_socket(1).expect("bound again");
    until_registered_again(&kubelet, 3).await;
    kubelet.admit(pod("p", 8)).await.expect("the new socket answers");
}

#[tokio::test]
async fn the_agent_registers_with_a_kubelet_socket_that_is_replaced_twice() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    kubelet.replace_registration_socket(2).expect("bound again");
    until_registered_again(&kubelet, 2).await;
    kubelet.admit(pod("p", 1)).await.expect("admitted");
}

#[tokio::test]
async fn both_kinds_of_kubelet_are_served_through_restarts_and_losses() {
    for release in [Release::UpTo1_36, Release::From1_37] {
        let world = gpu_node("dgx-h100");
        let config = windlass_kubelet_sim::Config { release, ..world.kubelet_config() };
        let kubelet = Kubelet::start(config).expect("started");
        let _agent = world.start_agent();
        until_allocatable(&kubelet, GPU, 8).await;
        kubelet.admit(pod("trainer", 4)).await.expect("admitted");
        kubelet.start_container("trainer-uid", "main").await.expect("started");
        kubelet.close_plugin_connection(GPU).await;
        until_registered_again(&kubelet, 2).await;
        kubelet.restart().await.expect("restarted");
        until_registered_again(&kubelet, 3).await;
        assert_eq!(kubelet.status().resources[GPU].in_use.len(), 4, "{release:?}");
    }
}

#[tokio::test]
async fn a_lost_stream_leads_to_a_new_registration_though_the_socket_is_the_same() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    kubelet.close_plugin_connection(GPU).await;
    until_registered_again(&kubelet, 2).await;
}

#[tokio::test]
async fn a_refused_registration_is_tried_again_until_it_succeeds() {
    let world = gpu_node("dgx-h100");
    let kubelet = world.start_kubelet();
    let refuse = RegistrationFault::Refuse("refused by the test".to_owned());
    kubelet.set_faults(Faults { registration: refuse, ..Faults::default() });
    let _agent = world.start_agent();
    let refused = |event: &Event| matches!(event, Event::RegistrationRefused { .. });
    let has_several = |events: &[Event]| events.iter().filter(|event| refused(event)).count() >= 3;
    kubelet.events().wait_for(has_several, TIMEOUT).await.expect("several attempts");
    kubelet.set_faults(Faults::default());
    until_allocatable(&kubelet, GPU, 8).await;
}

#[tokio::test]
async fn every_open_stream_gets_every_change_and_none_is_ended_for_another() {
    let world = with_long_quiet_period("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let mut second =
        plugin.list_and_watch(Request::new(Empty {})).await.expect("open").into_inner();
    let list = second.message().await.expect("open").expect("a list");
    assert_eq!(list.devices.len(), 8);

    world.inject("xid:79@2");
    let list = second.message().await.expect("still open").expect("a list");
    assert_eq!(list.devices.iter().filter(|device| device.health == UNHEALTHY).count(), 1);
    until_gpu_counts(&kubelet, (8, 7)).await;
}

#[tokio::test]
async fn a_kubelet_that_never_reads_delays_no_other() {
    let world = gpu_node("dgx-h100");
    let kubelet = world.start_kubelet();
    let streams = StreamFault::NeverRead;
    kubelet.set_faults(Faults { streams, ..Faults::default() });
    let agent = world.start_agent();
    let registered = |node: &NodeStatus| node.plugins.contains_key(GPU);
    kubelet.wait_for(registered, TIMEOUT).await.expect("registered");
    let is_healthy = |state: &Arc<NodeState>| {
        state.inventory.devices.iter().all(|device| device.health.is_healthy())
    };
    // The driver sends events to registered listeners only, so the test waits until all GPUs are healthy.
    agent.until(|state| !state.inventory.devices.is_empty() && is_healthy(state)).await;
    for _ in 0..20 {
        world.inject("xid:79@0");
    }
    agent.until(|state| !is_healthy(state)).await;
    let mut plugin = client(&kubelet, GPU).await;
    plugin.get_device_plugin_options(Empty {}).await.expect("the agent keeps serving");
}

#[tokio::test]
async fn a_stopped_agent_removes_its_socket_and_keeps_its_documents() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    agent.stop().await;
    assert!(!world.socket().exists());
    assert!(world.config.places.cdi_dir.join("windlass.dev-gpu.json").exists());
    until_gpu_counts(&kubelet, (8, 0)).await;
}

#[tokio::test]
async fn the_agent_registers_only_once() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    // Three checks take longer than the agent waits for a first stream.
    agent.until_reconciled(3).await;
    assert_eq!(registrations(&kubelet), 1);
}
