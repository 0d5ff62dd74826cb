//! Kubelet restarts: deleted files, restored state, pods that are admitted again.

use std::os::unix::fs::symlink;

use windlass_kubelet_api::checkpoint::{Checkpoint, FILE_NAME};
use windlass_kubelet_sim::{Event, KubeletState, PluginStatus, Pod, PodPhase, RejectionReason};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, device, devices, ids, pod},
};

/// Checkpoint of a real kubelet 1.36.2.
const GOLDEN: &str = include_str!("../../../kubelet-api/tests/kubelet-checkpoint-golden.json");

/// A node with an admitted pod that holds `d0`, one of two devices.
async fn node_with_pod() -> (Node, Plugin) {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.wait_for_counts(GPU, 2, 2).await;
    node.admit("pod", GPU, 1).await;
    plugin.take_calls();
    (node, plugin)
}

fn phase(node: &Node, uid: &str) -> PodPhase {
    node.kubelet.status().pods[uid].phase.clone()
}

/// Expects that the pod failed with this text.
fn check_rejected(node: &Node, cause: &str) {
    let PodPhase::Failed { reason, message } = phase(node, "pod-uid") else {
        panic!("{:?}", phase(node, "pod-uid"));
    };
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        format!("Pod was rejected: Allocate failed due to {cause}, which is unexpected")
    );
}

#[tokio::test]
async fn a_restart_deletes_all_sockets_and_a_new_registration_restores_the_counts() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let socket = node.kubelet.config().plugin_dir().join(&plugin.endpoint);
    node.kubelet.restart().await.expect("restarted");
    assert!(!socket.exists());
    plugin.wait_for_streams(0).await;
    assert_eq!(node.kubelet.status().counts(GPU), Some((0, 0)));
    let plugin_status = node.kubelet.status().plugins[GPU].clone();
    assert_eq!(plugin_status, PluginStatus::Stopped { endpoint: None });

    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    assert_eq!(node.in_use(GPU), ids("d0"));
}

#[tokio::test]
async fn a_failed_restart_keeps_the_pods_for_the_next_restart() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let socket = node.kubelet.config().registration_socket();
    std::fs::remove_file(&socket).expect("the socket exists");
    std::fs::create_dir(&socket).expect("a folder in its place");
    for _ in 0..2 {
        node.kubelet.restart().await.expect_err("a folder has the socket's path");
        assert_eq!(node.kubelet.status().kubelet, KubeletState::Stopped);
    }
    let rejection = node.kubelet.admit(pod("late", GPU, 1)).await.expect_err("a stopped kubelet");
    assert_eq!(rejection.reason, RejectionReason::KubeletEnded);

    std::fs::remove_dir(&socket).expect("the folder is empty");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert_eq!(node.in_use(GPU), ids("d0"));
}

#[tokio::test]
async fn the_next_call_completes_a_cancelled_stop() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    for _ in 0..3 {
        tokio::select! {
            biased;
            () = node.kubelet.stop() => panic!("the tasks end later"),
            () = std::future::ready(()) => {}
        }
    }
    node.kubelet.stop().await;
    assert_eq!(node.kubelet.status().kubelet, KubeletState::Stopped);
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
}

#[tokio::test]
async fn concurrent_stops_restarts_and_deletions_lose_no_effect() {
    let (node, _plugin) = node_with_pod().await;
    let kubelet = &node.kubelet;
    kubelet.start_container("pod-uid", "c").await.expect("started");
    kubelet.admit(Pod::new("other")).await.expect("admitted");
    let (first, (), (), second, ()) = tokio::join!(
        kubelet.restart(),
        kubelet.stop(),
        kubelet.delete_pod("other-uid"),
        kubelet.restart(),
        kubelet.stop(),
    );
    first.and(second).expect("both restarted");
    assert_eq!(kubelet.status().kubelet, KubeletState::Stopped, "the last call is a stop");
    kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert!(!kubelet.status().pods.contains_key("other-uid"));
    let count = |expected: Event| kubelet.events().count(move |event| *event == expected);
    assert_eq!((count(Event::Started), count(Event::Stopped)), (4, 3));
}

#[tokio::test]
async fn a_pod_with_a_running_container_keeps_its_devices_in_a_restart() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert_eq!(node.in_use(GPU), ids("d0"));
}

#[tokio::test]
async fn after_a_reboot_a_pod_admitted_before_its_plugin_registers_is_rejected() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    node.kubelet.reboot().await.expect("rebooted");
    check_rejected(
        &node,
        "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
    );
}

#[tokio::test]
async fn a_pod_that_lost_its_device_is_not_admitted_again() {
    let (node, plugin) = node_with_pod().await;
    plugin.set_devices(vec![device("d0", "Unhealthy"), device("d1", "Healthy")]);
    node.wait_for_counts(GPU, 2, 1).await;
    let outcome = node.kubelet.admit(pod("pod", GPU, 1)).await;
    outcome.expect_err("the pod's device is unhealthy");
    check_rejected(
        &node,
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
    );
}

#[tokio::test]
async fn a_pod_that_succeeded_is_not_admitted_again_and_its_devices_are_free() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.finish_pod("pod-uid").await;
    node.kubelet.reboot().await.expect("rebooted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Succeeded);
    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

#[tokio::test]
async fn garbage_collection_frees_the_devices_of_a_pod_deleted_while_the_kubelet_was_stopped() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.stop().await;
    node.kubelet.delete_pod("pod-uid").await;
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.in_use(GPU), ids("d0"), "no garbage collection yet");
    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

#[tokio::test]
async fn a_start_deletes_sockets_and_links_to_sockets_and_no_other_files() {
    let node = Node::start();
    let dir = node.kubelet.config().plugin_dir();
    let deep = Plugin::serve(&node.kubelet, GPU, "sub/deep.sock");
    let flat = Plugin::serve(&node.kubelet, GPU, "flat.sock");
    std::fs::write(dir.join("file"), "content").expect("written");
    symlink(dir.join("sub/deep.sock"), dir.join("link")).expect("linked");
    node.kubelet.restart().await.expect("restarted");
    let exists = |name: &str| std::fs::symlink_metadata(dir.join(name)).is_ok();
    assert!(exists("file") && exists("sub/deep.sock") && exists("kubelet.sock"));
    assert!(!exists("flat.sock") && !exists("link"));
    drop((deep, flat));
}

#[tokio::test]
async fn a_real_kubelets_checkpoint_is_restored() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(&plugins).expect("a folder");
    std::fs::write(plugins.join(FILE_NAME), GOLDEN).expect("written");
    let node = Node::start_in(dir, |_| ());
    let gpus = &node.kubelet.status().resources["nvidia.com/gpu"];
    assert_eq!((gpus.capacity, gpus.in_use.len()), (0, 4));
    let is_ignored = |event: &Event| matches!(event, Event::CheckpointIgnored { .. });
    assert_eq!(node.kubelet.events().count(is_ignored), 0);
}

#[tokio::test]
async fn a_kubelet_with_a_corrupt_checkpoint_starts_with_an_empty_state() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(&plugins).expect("a folder");
    std::fs::write(plugins.join(FILE_NAME), GOLDEN.replacen("0003", "0009", 1)).expect("written");
    let node = Node::start_in(dir, |_| ());
    assert!(node.kubelet.status().resources.is_empty());
    let is_corrupt = |event: &Event| {
        matches!(
            event,
            Event::CheckpointIgnored { message } if message.contains("checksum 3711385807")
        )
    };
    assert_eq!(node.kubelet.events().count(is_corrupt), 1);
}

#[tokio::test]
async fn a_lost_checkpoint_keeps_the_nodes_counts_and_an_empty_folder_resets_them() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let folder = node.kubelet.config().plugin_dir();
    node.kubelet.stop().await;
    std::fs::remove_file(folder.join(FILE_NAME)).expect("the checkpoint exists");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.status().counts(GPU), Some((2, 2)));
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);

    node.kubelet.stop().await;
    std::fs::remove_dir_all(&folder).expect("the folder exists");
    std::fs::create_dir(&folder).expect("an empty folder");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.status().counts(GPU), Some((0, 0)));
}

#[tokio::test]
async fn lists_and_allocations_write_the_checkpoint_and_the_deletion_of_a_pod_does_not() {
    let (node, plugin) = node_with_pod().await;
    let write_count = || node.kubelet.events().count(|event| *event == Event::CheckpointWritten);
    assert_eq!(write_count(), 2, "one list, one allocation");
    node.kubelet.delete_pod("pod-uid").await;
    assert_eq!(write_count(), 2);
    let read_checkpoint = || {
        let json = std::fs::read_to_string(node.kubelet.config().plugin_dir().join(FILE_NAME));
        Checkpoint::parse(&json.expect("written")).expect("intact")
    };
    let entry = &read_checkpoint().pods.expect("one holder")[0];
    assert_eq!((&*entry.pod_uid, &*entry.resource_name), ("pod-uid", GPU));
    plugin.set_devices(devices(1));
    node.wait_for_counts(GPU, 1, 1).await;
    assert!(read_checkpoint().pods.is_some(), "only a garbage collection removes the pod");
}

#[tokio::test]
async fn the_registration_socket_can_be_replaced_without_a_restart() {
    let (node, plugin) = node_with_pod().await;
    node.kubelet.replace_registration_socket(2).expect("replaced");
    plugin.register().await.expect("registered on the newest socket");
    assert_eq!(plugin.calls()[0], Call::Options);
    node.kubelet.delete_sockets().expect("deleted");
    assert!(!node.kubelet.config().registration_socket().exists());
}
