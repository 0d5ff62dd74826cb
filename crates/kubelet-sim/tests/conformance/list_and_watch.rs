//! `ListAndWatch`: node counts from lists, and the effect of a stream's end.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::Empty;
use windlass_kubelet_sim::{Event, Faults, Health, StreamFault};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, SHORT_TIMEOUT, device, devices},
};

#[tokio::test]
async fn lists_determine_capacity_and_allocatable() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    let (healthy, unhealthy) = ("Healthy", "Unhealthy");
    for (list, capacity, allocatable) in [
        (vec![("a", healthy), ("b", healthy), ("c", unhealthy)], 3, 2),
        (vec![("a", healthy), ("b", healthy)], 2, 2),
        (vec![("a", healthy), ("b", unhealthy), ("c", healthy)], 3, 2),
        (vec![("a", "healthy"), ("b", ""), ("c", healthy)], 3, 1),
        (vec![("a", healthy), ("a", unhealthy), ("b", healthy)], 3, 2),
        (vec![], 0, 0),
    ] {
        plugin.set_devices(list.iter().map(|(id, health)| device(id, health)).collect());
        node.wait_for_counts(GPU, capacity, allocatable).await;
    }
}

#[tokio::test]
async fn the_end_of_a_stream_keeps_capacity_and_the_kubelet_does_not_reconnect() {
    for result in [Ok(()), Err(Status::internal("broken"))] {
        let node = Node::start();
        let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
        node.wait_for_counts(GPU, 2, 2).await;
        node.admit("pod", GPU, 1).await;
        plugin.end_streams(result);
        node.wait_for_counts(GPU, 2, 0).await;
        let calls = plugin.calls();
        assert_eq!(calls[..2], [Call::Options, Call::ListAndWatch]);
        assert_eq!(calls.iter().filter(|call| **call == Call::ListAndWatch).count(), 1);
        let health = &node.kubelet.status().pods["pod-uid"].containers["c"].health[GPU]["d0"];
        assert_eq!(*health, Health::Healthy, "a lost plugin changes no pod's status");
        let cause = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        node.expect_allocation_error(("late", 1), &cause).await;
    }
}

#[tokio::test]
async fn a_plugin_that_registers_within_the_grace_period_restores_its_counts() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.wait_for_counts(GPU, 2, 2).await;
    node.kubelet.close_plugin_connection(GPU).await;
    node.wait_for_counts(GPU, 2, 0).await;
    plugin.wait_for_streams(0).await;
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
}

#[tokio::test]
async fn after_the_grace_period_a_lost_plugins_resource_has_capacity_0() {
    let node = Node::start_with(|config| config.grace_period = SHORT_TIMEOUT);
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.wait_for_counts(GPU, 2, 2).await;
    plugin.end_streams(Ok(()));
    node.wait_for_counts(GPU, 0, 0).await;
    node.wait_for_event(|event| matches!(event, Event::ResourceExpired { .. })).await;
    let file = node.kubelet.config().plugin_dir().join("kubelet_internal_checkpoint");
    let json = std::fs::read_to_string(file).expect("written");
    assert!(json.contains(r#""RegisteredDevices":{}"#), "{json}");
    plugin.set_devices(devices(2));
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
}

#[tokio::test]
async fn a_stream_that_fails_at_once_leaves_a_resource_with_capacity_0() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.end_streams(Err(Status::internal("broken")));
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 0, 0).await;
}

#[tokio::test]
async fn the_status_of_a_pod_follows_its_devices_health() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    node.admit("pod", GPU, 1).await;
    for (list, expected) in [
        (vec![device("d0", "Unhealthy")], Health::Unhealthy),
        (vec![device("d0", "Healthy")], Health::Healthy),
        (vec![device("d0", "Unhealthy")], Health::Unhealthy),
        (vec![], Health::Healthy),
    ] {
        plugin.set_devices(list);
        node.wait(|node| {
            let pod = &node.pods["pod-uid"];
            pod.is_admitted() && pod.containers["c"].health[GPU]["d0"] == expected
        })
        .await;
    }
    let syncs = node.kubelet.events().count(|event| matches!(event, Event::PodsSynced { .. }));
    assert_eq!(syncs, 3, "no sync when the device leaves the list");
}

#[tokio::test]
async fn a_fault_can_leave_streams_unread() {
    let node = Node::start();
    let streams = StreamFault::NeverRead;
    node.kubelet.set_faults(Faults { streams, ..Faults::default() });
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    plugin.wait_for_streams(1).await;
    // The plugin sends the answer to this call after all its earlier messages.
    let mut client = node.kubelet.plugin_client(GPU).await.expect("connected");
    client.get_device_plugin_options(Empty {}).await.expect("answered");
    assert_eq!(node.kubelet.status().counts(GPU), None);
    node.kubelet.set_faults(Faults::default());
    node.wait_for_counts(GPU, 1, 1).await;
}
