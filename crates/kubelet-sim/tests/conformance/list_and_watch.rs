//! Lists become counts; the end of a stream makes devices unhealthy, not gone.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::Empty;
use windlass_kubelet_sim::{Event, Health, Misbehaviour, StreamFault};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, SHORT, device, devices},
};

/// Catalogue rows 27, 28, 32, 33, 34.
#[tokio::test]
async fn lists_are_counted_as_the_kubelet_counts_them() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    let (good, bad) = ("Healthy", "Unhealthy");
    for (list, capacity, allocatable) in [
        (vec![("a", good), ("b", good), ("c", bad)], 3, 2),
        (vec![("a", good), ("b", good)], 2, 2),
        (vec![("a", good), ("b", bad), ("c", good)], 3, 2),
        (vec![("a", "healthy"), ("b", ""), ("c", good)], 3, 1),
        (vec![("a", good), ("a", bad), ("b", good)], 3, 2),
        (vec![], 0, 0),
    ] {
        plugin.show(list.iter().map(|(id, health)| device(id, health)).collect());
        node.counts(GPU, capacity, allocatable).await;
    }
}

/// Catalogue rows 35, 43.
#[tokio::test]
async fn the_end_of_a_stream_keeps_capacity_and_is_never_retried() {
    for how in [Ok(()), Err(Status::internal("broken"))] {
        let node = Node::start();
        let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
        node.counts(GPU, 2, 2).await;
        node.admit("pod", GPU, 1).await;
        plugin.end_streams(how);
        node.counts(GPU, 2, 0).await;
        let calls = plugin.calls();
        assert_eq!(calls[..2], [Call::Options, Call::ListAndWatch]);
        assert_eq!(calls.iter().filter(|call| **call == Call::ListAndWatch).count(), 1);
        let health = &node.kubelet.node().pods["pod-uid"].containers["c"].health[GPU]["d0"];
        assert_eq!(*health, Health::Healthy, "a dead plugin changes no pod's status");
        let cause = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
        node.refuse(("late", 1), &cause).await;
    }
}

/// Catalogue row 36.
#[tokio::test]
async fn a_plugin_that_comes_back_in_time_is_restored() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.counts(GPU, 2, 2).await;
    node.kubelet.cancel_stream(GPU).await;
    node.counts(GPU, 2, 0).await;
    plugin.streams(0).await;
    plugin.register().await.expect("registered");
    node.counts(GPU, 2, 2).await;
}

/// Catalogue row 36.
#[tokio::test]
async fn a_plugin_that_stays_away_leaves_nothing_but_its_name_on_the_node() {
    let node = Node::start_with(|config| config.grace_period = SHORT);
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.counts(GPU, 2, 2).await;
    plugin.end_streams(Ok(()));
    node.counts(GPU, 0, 0).await;
    node.event(|event| matches!(event, Event::ResourceExpired { .. })).await;
    let file = node.kubelet.config().plugin_dir().join("kubelet_internal_checkpoint");
    let json = std::fs::read_to_string(file).expect("written");
    assert!(json.contains(r#""RegisteredDevices":{}"#), "{json}");
    plugin.show(devices(2));
    plugin.register().await.expect("registered");
    node.counts(GPU, 2, 2).await;
}

/// Catalogue row 37.
#[tokio::test]
async fn a_stream_that_fails_at_once_leaves_an_empty_resource() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.end_streams(Err(Status::internal("broken")));
    plugin.register().await.expect("registered");
    node.counts(GPU, 0, 0).await;
}

/// Catalogue rows 41, 42.
#[tokio::test]
async fn the_status_of_a_pod_follows_its_devices_health() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.counts(GPU, 1, 1).await;
    node.admit("pod", GPU, 1).await;
    for (list, expected) in [
        (vec![device("d0", "Unhealthy")], Health::Unhealthy),
        (vec![device("d0", "Healthy")], Health::Healthy),
        (vec![device("d0", "Unhealthy")], Health::Unhealthy),
        (vec![], Health::Healthy),
    ] {
        plugin.show(list);
        node.wait(|node| {
            let pod = &node.pods["pod-uid"];
            pod.is_admitted() && pod.containers["c"].health[GPU]["d0"] == expected
        })
        .await;
    }
    let syncs = node.kubelet.calls().count(|event| matches!(event, Event::PodsSynced { .. }));
    assert_eq!(syncs, 3, "no sync when the device goes");
}

#[tokio::test]
async fn a_stream_can_be_left_unread() {
    let node = Node::start();
    let streams = StreamFault::NeverRead;
    node.kubelet.misbehave(Misbehaviour { streams, ..Misbehaviour::default() });
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    plugin.streams(1).await;
    // The answer to this call follows all earlier messages of the plugin.
    let mut client = node.kubelet.plugin(GPU).await.expect("connected");
    client.get_device_plugin_options(Empty {}).await.expect("answered");
    assert_eq!(node.kubelet.node().counts(GPU), None);
    node.kubelet.misbehave(Misbehaviour::default());
    node.counts(GPU, 1, 1).await;
}
