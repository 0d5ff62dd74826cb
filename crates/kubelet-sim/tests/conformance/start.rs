//! Starts of containers: `PreStartContainer`, container restarts, and failures.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::DevicePluginOptions;
use windlass_kubelet_sim::{KubeletState, StartError};

use super::{
    plugin::{AllocateBehaviour, Call, Plugin, PreStartBehaviour},
    support::{GPU, Node, SHORT_TIMEOUT, devices, pod},
};

/// A node with an admitted pod. Its plugin requires `PreStartContainer`.
async fn node_with_pod(size: u64) -> (Node, Plugin) {
    let node = Node::start_with(|config| config.pre_start_timeout = SHORT_TIMEOUT);
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.set_devices(devices(2));
    plugin.script().options =
        Ok(DevicePluginOptions { pre_start_required: true, ..Default::default() });
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    node.kubelet.admit(pod("pod", GPU, size)).await.expect("admitted");
    plugin.take_calls();
    (node, plugin)
}

/// Expects that the container's start fails with this text.
async fn expect_start_error(node: &Node, expected: &str) {
    let error = node.kubelet.start_container("pod-uid", "c").await.expect_err("not started");
    assert_eq!(error, StartError::CreateContainerConfig(expected.to_owned()));
}

#[tokio::test]
async fn every_start_calls_pre_start_with_the_same_devices_and_no_allocate() {
    let (node, plugin) = node_with_pod(2).await;
    for _ in 0..2 {
        let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
        assert_eq!(run_options.envs["VISIBLE"], "d0,d1");
        assert!(node.kubelet.status().pods["pod-uid"].containers["c"].is_running);
        assert_eq!(plugin.take_calls(), [Call::PreStart(vec!["d0".to_owned(), "d1".to_owned()])]);
        node.kubelet.stop_container("pod-uid", "c").await;
    }
}

#[tokio::test]
async fn a_request_for_no_devices_calls_no_pre_start() {
    let (node, plugin) = node_with_pod(0).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(plugin.calls(), []);
}

#[tokio::test]
async fn an_error_a_timeout_and_a_lost_plugin_fail_the_start() {
    let (node, plugin) = node_with_pod(1).await;
    let check = async |cause: &str| {
        let prefix = "device plugin PreStartContainer rpc failed with err: ";
        expect_start_error(&node, &format!("{prefix}{cause}")).await;
    };
    plugin.script().pre_start = PreStartBehaviour::Fail(Status::internal("reset failed"));
    check("rpc error: code = Internal desc = reset failed").await;
    plugin.script().pre_start = PreStartBehaviour::Hang;
    check("rpc error: code = DeadlineExceeded desc = context deadline exceeded").await;
    plugin.end_streams(Ok(()));
    node.wait_for_counts(GPU, 2, 0).await;
    check(&format!("endpoint &{{{GPU}}} has been stopped")).await;

    plugin.set_devices(devices(2));
    plugin.script().pre_start = PreStartBehaviour::Succeed;
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
}

#[tokio::test]
async fn after_a_kubelet_restart_the_call_is_skipped_until_the_plugin_registers() {
    let (node, plugin) = node_with_pod(1).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    node.kubelet.restart().await.expect("restarted");
    plugin.take_calls();
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(plugin.calls(), []);
}

#[tokio::test]
async fn a_pod_admitted_before_its_plugin_gets_devices_when_it_starts() {
    let node = Node::start();
    node.kubelet.admit(pod("pod", GPU, 1)).await.expect("admitted without devices");
    let _plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(run_options.envs["VISIBLE"], "d0");
}

#[tokio::test]
async fn containers_of_pods_that_were_rejected_or_have_ended_do_not_start() {
    let (node, plugin) = node_with_pod(1).await;
    let not_admitted = |uid: &str| StartError::NotAdmitted(uid.to_owned());
    let start = |uid| node.kubelet.start_container(uid, "c");
    node.expect_rejection("big", GPU, 9).await;
    assert_eq!(start("big-uid").await, Err(not_admitted("big-uid")));
    node.kubelet.finish_pod("pod-uid").await;
    assert_eq!(start("pod-uid").await, Err(not_admitted("pod-uid")));
    assert!(!node.kubelet.status().pods["pod-uid"].containers["c"].is_running);
    assert_eq!(plugin.calls(), []);
}

#[tokio::test]
async fn a_device_that_leaves_the_list_during_the_starts_allocate_panics_the_kubelet() {
    let node = Node::start();
    node.kubelet.admit(pod("pod", GPU, 1)).await.expect("admitted without devices");
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    plugin.script().allocate = AllocateBehaviour::DropDevices;
    let error = node.kubelet.start_container("pod-uid", "c").await.expect_err("a panic");
    assert_eq!(error, StartError::Stopped("pod-uid".to_owned()));
    assert!(matches!(node.kubelet.status().kubelet, KubeletState::Panicked(_)));
}

#[tokio::test]
async fn an_unknown_container_does_not_start() {
    let node = Node::start();
    let error = node.kubelet.start_container("nobody", "c").await.expect_err("unknown");
    assert_eq!(error.to_string(), "pod nobody has no container c on this node");
}
