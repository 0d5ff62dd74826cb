//! Restarts: deleted files, restored state, surviving pods.

use std::os::unix::fs::symlink;

use windlass_kubelet_api::checkpoint::{Checkpoint, FILE};
use windlass_kubelet_sim::{Condition, Event, Pod, PodPhase, Reason, Registration};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, device, devices, ids, pod},
};

/// Checkpoint of a live kubelet 1.36.2.
const GOLDEN: &str = include_str!("../../../kubelet-api/tests/kubelet-checkpoint-golden.json");

async fn node_with_pod() -> (Node, Plugin) {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.counts(GPU, 2, 2).await;
    node.admit("pod", GPU, 1).await;
    plugin.take_calls();
    (node, plugin)
}

fn phase(node: &Node, uid: &str) -> PodPhase {
    node.kubelet.node().pods[uid].phase.clone()
}

fn rejected(node: &Node, cause: &str) {
    let PodPhase::Failed { reason, message } = phase(node, "pod-uid") else {
        panic!("{:?}", phase(node, "pod-uid"));
    };
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        format!("Pod was rejected: Allocate failed due to {cause}, which is unexpected")
    );
}

/// Catalogue row 83.
#[tokio::test]
async fn a_restart_wipes_all_sockets_and_a_plugin_that_comes_back_has_its_counts_back() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let socket = node.kubelet.config().plugin_dir().join(&plugin.endpoint);
    node.kubelet.restart().await.expect("restarted");
    assert!(!socket.exists());
    plugin.streams(0).await;
    assert_eq!(node.kubelet.node().counts(GPU), Some((0, 0)));
    let registration = node.kubelet.node().registrations[GPU].clone();
    assert_eq!(registration, Registration::Stopped { endpoint: None });

    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.counts(GPU, 2, 2).await;
    assert_eq!(node.in_use(GPU), ids("d0"));
}

#[tokio::test]
async fn a_restart_that_fails_keeps_the_pods_for_one_that_succeeds() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let socket = node.kubelet.config().registration_socket();
    std::fs::remove_file(&socket).expect("it was bound");
    std::fs::create_dir(&socket).expect("in its place");
    for _ in 0..2 {
        node.kubelet.restart().await.expect_err("a folder is in the way");
        assert_eq!(node.kubelet.node().kubelet, Condition::Stopped);
    }
    let gone = node.kubelet.admit(pod("late", GPU, 1)).await.expect_err("nobody is there");
    assert_eq!(gone.reason, Reason::KubeletGone);

    std::fs::remove_dir(&socket).expect("out of the way");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert_eq!(node.in_use(GPU), ids("d0"));
}

#[tokio::test]
async fn a_stop_that_is_given_up_is_completed_by_the_next_call() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    for _ in 0..3 {
        tokio::select! {
            biased;
            () = node.kubelet.stop() => panic!("its tasks end later"),
            () = std::future::ready(()) => {}
        }
    }
    node.kubelet.stop().await;
    assert_eq!(node.kubelet.node().kubelet, Condition::Stopped);
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
}

#[tokio::test]
async fn stops_restarts_and_changes_at_the_same_time_lose_nothing() {
    let (node, _plugin) = node_with_pod().await;
    let kubelet = &node.kubelet;
    kubelet.start_container("pod-uid", "c").await.expect("started");
    kubelet.admit(Pod::new("other")).await.expect("admitted");
    let (first, (), (), second, ()) = tokio::join!(
        kubelet.restart(),
        kubelet.stop(),
        kubelet.delete("other-uid"),
        kubelet.restart(),
        kubelet.stop(),
    );
    first.and(second).expect("both restarted");
    assert_eq!(kubelet.node().kubelet, Condition::Stopped, "the last one counts");
    kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert!(!kubelet.node().pods.contains_key("other-uid"));
    let events = |wanted: Event| kubelet.calls().count(move |event| *event == wanted);
    assert_eq!((events(Event::Started), events(Event::Stopped)), (4, 3));
}

/// Catalogue row 54.
#[tokio::test]
async fn a_running_container_is_left_alone_by_a_restart() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);
    assert_eq!(node.in_use(GPU), ids("d0"));
}

/// Catalogue rows 55, 91.
#[tokio::test]
async fn after_a_reboot_pods_that_come_before_their_plugin_are_rejected() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    node.kubelet.reboot().await.expect("rebooted");
    rejected(
        &node,
        "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
    );
}

/// Catalogue row 52.
#[tokio::test]
async fn a_pod_that_lost_its_device_is_not_admitted_again() {
    let (node, plugin) = node_with_pod().await;
    plugin.show(vec![device("d0", "Unhealthy"), device("d1", "Healthy")]);
    node.counts(GPU, 2, 1).await;
    let again = node.kubelet.admit(pod("pod", GPU, 1)).await;
    again.expect_err("its device is sick");
    rejected(
        &node,
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
    );
}

/// Catalogue row 92.
#[tokio::test]
async fn a_pod_that_succeeded_is_not_admitted_again_and_its_devices_are_free() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.finish("pod-uid").await;
    node.kubelet.reboot().await.expect("rebooted");
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Succeeded);
    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.counts(GPU, 2, 2).await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

/// Catalogue row 90.
#[tokio::test]
async fn a_pod_deleted_while_the_kubelet_was_down_is_freed_at_the_first_collection() {
    let (node, mut plugin) = node_with_pod().await;
    node.kubelet.stop().await;
    node.kubelet.delete("pod-uid").await;
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.in_use(GPU), ids("d0"), "nothing was collected yet");
    plugin.rebind(&node.kubelet);
    plugin.register().await.expect("registered");
    node.counts(GPU, 2, 2).await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

/// Catalogue row 93.
#[tokio::test]
async fn files_and_folders_survive_a_start_and_links_to_sockets_do_not() {
    let node = Node::start();
    let dir = node.kubelet.config().plugin_dir();
    let deep = Plugin::serve(&node.kubelet, GPU, "sub/deep.sock");
    let flat = Plugin::serve(&node.kubelet, GPU, "flat.sock");
    std::fs::write(dir.join("file"), "precious").expect("written");
    symlink(dir.join("sub/deep.sock"), dir.join("link")).expect("linked");
    node.kubelet.restart().await.expect("restarted");
    let left = |name: &str| std::fs::symlink_metadata(dir.join(name)).is_ok();
    assert!(left("file") && left("sub/deep.sock") && left("kubelet.sock"));
    assert!(!left("flat.sock") && !left("link"));
    drop((deep, flat));
}

/// Catalogue row 87.
#[tokio::test]
async fn a_live_kubelets_checkpoint_is_taken_over() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(&plugins).expect("a folder");
    std::fs::write(plugins.join(FILE), GOLDEN).expect("written");
    let node = Node::start_in(dir, |_| ());
    let gpus = &node.kubelet.node().resources["nvidia.com/gpu"];
    assert_eq!((gpus.capacity, gpus.in_use.len()), (0, 4));
    let ignored = |event: &Event| matches!(event, Event::CheckpointIgnored { .. });
    assert_eq!(node.kubelet.calls().count(ignored), 0);
}

/// Catalogue row 88.
#[tokio::test]
async fn one_changed_byte_empties_the_state_and_the_kubelet_starts() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(&plugins).expect("a folder");
    std::fs::write(plugins.join(FILE), GOLDEN.replacen("0003", "0009", 1)).expect("written");
    let node = Node::start_in(dir, |_| ());
    assert!(node.kubelet.node().resources.is_empty());
    let is_corrupt = |event: &Event| matches!(event, Event::CheckpointIgnored { message } if message.contains("checksum 3711385807"));
    assert_eq!(node.kubelet.calls().count(is_corrupt), 1);
}

#[tokio::test]
async fn a_lost_checkpoint_leaves_the_nodes_counts_and_an_empty_folder_does_not() {
    let (node, _plugin) = node_with_pod().await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let folder = node.kubelet.config().plugin_dir();
    node.kubelet.stop().await;
    std::fs::remove_file(folder.join(FILE)).expect("it was written");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.node().counts(GPU), Some((2, 2)));
    assert_eq!(phase(&node, "pod-uid"), PodPhase::Admitted);

    node.kubelet.stop().await;
    std::fs::remove_dir_all(&folder).expect("with all sockets");
    std::fs::create_dir(&folder).expect("empty");
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.node().counts(GPU), Some((0, 0)));
}

#[tokio::test]
async fn the_checkpoint_is_written_on_lists_and_allocations_and_not_when_a_pod_goes() {
    let (node, plugin) = node_with_pod().await;
    let written = || node.kubelet.calls().count(|event| *event == Event::CheckpointWritten);
    assert_eq!(written(), 2, "one list, one allocation");
    node.kubelet.delete("pod-uid").await;
    assert_eq!(written(), 2);
    let read = || {
        let json = std::fs::read_to_string(node.kubelet.config().plugin_dir().join(FILE));
        Checkpoint::parse(&json.expect("written")).expect("intact")
    };
    let entry = &read().pods.expect("one holder")[0];
    assert_eq!((&*entry.pod_uid, &*entry.resource_name), ("pod-uid", GPU));
    plugin.show(devices(1));
    node.counts(GPU, 1, 1).await;
    assert!(read().pods.is_some(), "only a collection forgets the pod");
}

/// Catalogue row 85, from the plugin's view.
#[tokio::test]
async fn the_registration_socket_can_be_replaced_under_a_plugins_eyes() {
    let (node, plugin) = node_with_pod().await;
    node.kubelet.replace_registration_socket(2).expect("replaced");
    plugin.register().await.expect("registered on the newest");
    assert_eq!(plugin.calls()[0], Call::Options);
    node.kubelet.delete_sockets().expect("deleted");
    assert!(!node.kubelet.config().registration_socket().exists());
}
