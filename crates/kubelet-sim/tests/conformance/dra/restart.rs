//! Kubelet restarts and crashes at each step of a claim's preparation and release.

use std::time::Duration;

use windlass_kubelet_api::dra::checkpoint::{Checkpoint, FILE_NAME};
use windlass_kubelet_sim::{
    ClaimFault, Config, DraService, Event, Faults, Kubelet, KubeletError, KubeletState, SyncError,
};

use super::{
    super::support::{DEADLINE, Node},
    DRIVER,
    driver::{AnswerKind, Call, Driver},
    pod,
};

fn prepare_call() -> Call {
    Call::Prepare(DraService::V1, vec!["claim-uid".to_owned()])
}

fn unprepare_call() -> Call {
    Call::Unprepare(vec!["claim-uid".to_owned()])
}

/// A node whose kubelet reconciles claims only when a test calls `reconcile_claims`.
fn node() -> Node {
    Node::start_with(|config| config.dra.reconcile_period = Duration::from_secs(3600))
}

/// A node with a running pod, and the driver that prepared its claim.
async fn node_with_running_pod() -> (Node, Driver) {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    driver.take_calls();
    (node, driver)
}

fn checkpoint(node: &Node) -> Checkpoint {
    let json = std::fs::read_to_string(node.dir.path().join(FILE_NAME)).expect("written");
    Checkpoint::parse(&json).expect("intact")
}

/// Crashes the kubelet at this point of the pod's sync, then restarts it.
async fn crash_and_restart(node: &Node, fault: ClaimFault, uid: &str) {
    node.kubelet.set_faults(Faults { claims: fault, ..Faults::default() });
    let error = node.kubelet.sync_pod(uid).await.expect_err("a crash");
    assert_eq!(error, SyncError::Stopped(uid.to_owned()));
    assert!(matches!(node.kubelet.status().kubelet, KubeletState::Panicked(_)));
    node.kubelet.set_faults(Faults::default());
    restart(node).await;
}

/// Restarts, and waits until the driver is registered again.
async fn restart(node: &Node) {
    node.kubelet.restart().await.expect("restarted");
    node.wait(|status| {
        let mut drivers = status.drivers.values().flatten();
        drivers.any(|driver| driver.is_connected)
    })
    .await;
}

#[tokio::test]
async fn a_running_pod_keeps_its_claim_and_is_not_prepared_again() {
    let (node, driver) = node_with_running_pod().await;
    restart(&node).await;
    let claim = node.kubelet.status().claims["default/claim"].clone();
    assert!(!claim.is_prepared, "the checkpoint does not record this");
    let run_options =
        node.kubelet.start_container("pod-uid", "c").await.expect("a container restart");
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    assert_eq!(driver.take_calls(), []);
    node.kubelet.finish_pod("pod-uid").await;
    assert_eq!(driver.take_calls(), [unprepare_call()]);
}

#[tokio::test]
async fn after_a_restart_a_second_pod_prepares_the_claim_again_and_its_devices_are_listed_twice() {
    let (node, driver) = node_with_running_pod().await;
    restart(&node).await;
    node.kubelet.admit(pod("second", "claim")).await.expect("admitted");
    let run_options = node.kubelet.start_container("second-uid", "c").await.expect("started");
    assert_eq!(driver.take_calls(), [prepare_call()]);
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"; 2]);
}

#[tokio::test]
async fn pods_are_prepared_again_after_a_reboot() {
    let (node, driver) = node_with_running_pod().await;
    node.kubelet.reboot().await.expect("rebooted");
    driver.wait_until_registered(&node).await;
    node.wait(|status| !status.drivers.is_empty()).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(driver.take_calls(), [prepare_call()]);
}

#[tokio::test]
async fn a_kubelet_that_crashed_before_the_call_calls_after_its_restart() {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    crash_and_restart(&node, ClaimFault::CrashBeforePrepare, "pod-uid").await;
    assert_eq!(driver.take_calls(), []);
    let claims = checkpoint(&node).claims.expect("the claim was written");
    assert_eq!(claims[0].drivers[DRIVER].devices, None);
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(driver.take_calls(), [prepare_call()]);
}

#[tokio::test]
async fn a_kubelet_that_crashed_before_it_recorded_the_answer_calls_again() {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    crash_and_restart(&node, ClaimFault::CrashBeforeRecord, "pod-uid").await;
    assert_eq!(driver.take_calls(), [prepare_call()]);
    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(driver.take_calls(), [prepare_call()]);
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    let claims = checkpoint(&node).claims.expect("one claim");
    assert_eq!(claims[0].drivers[DRIVER].devices.as_ref().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_kubelet_that_crashed_before_it_removed_a_claim_releases_it_again() {
    let (node, driver) = node_with_running_pod().await;
    driver.script().unprepare = AnswerKind::Error("not yet");
    node.kubelet.finish_pod("pod-uid").await;
    driver.script().unprepare = AnswerKind::Correct;
    driver.take_calls();
    crash_and_restart(&node, ClaimFault::CrashBeforeRemove, "pod-uid").await;
    assert_eq!(driver.take_calls(), [unprepare_call()]);
    assert_eq!(checkpoint(&node).claims.map(|claims| claims.len()), Some(1));
    node.kubelet.sync_pod("pod-uid").await.expect("released");
    assert_eq!(driver.take_calls(), [unprepare_call()]);
    assert_eq!(checkpoint(&node).claims, Some(Vec::new()));
}

#[tokio::test]
async fn reconciliation_releases_the_claim_of_a_pod_deleted_while_the_kubelet_was_stopped() {
    let (node, driver) = node_with_running_pod().await;
    node.kubelet.stop().await;
    node.kubelet.delete_pod("pod-uid").await;
    restart(&node).await;
    assert_eq!(driver.take_calls(), []);
    node.kubelet.reconcile_claims().await;
    assert_eq!(driver.take_calls(), [unprepare_call()]);
    assert!(node.kubelet.status().claims.is_empty());
}

#[tokio::test]
async fn the_kubelet_reconciles_claims_periodically() {
    let node = Node::start_with(|config| config.dra.reconcile_period = Duration::from_millis(20));
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    driver.script().unprepare = AnswerKind::Error("busy");
    node.kubelet.delete_pod("pod-uid").await;
    let is_failure = |event: &&Event| matches!(event, Event::UnprepareFailed { .. });
    let has_two_failures = |events: &[Event]| events.iter().filter(is_failure).count() >= 2;
    node.kubelet.events().wait_for(has_two_failures, DEADLINE).await.expect("a second attempt");
    driver.script().unprepare = AnswerKind::Correct;
    node.wait(|status| status.claims.is_empty()).await;
}

#[tokio::test]
async fn a_kubelet_does_not_start_with_a_corrupt_checkpoint_of_claims() {
    let (node, _driver) = node_with_running_pod().await;
    let path = node.dir.path().join(FILE_NAME);
    let intact = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, intact.replacen("claim-uid", "other-uid", 1)).expect("written");
    let error = node.kubelet.restart().await.expect_err("corrupt");
    assert!(matches!(error, KubeletError::Claims(_)), "{error}");
    std::fs::write(&path, intact).expect("written");
    restart(&node).await;
    assert_eq!(node.kubelet.status().claims.len(), 1);
}

#[tokio::test]
async fn the_first_start_writes_a_checkpoint_without_claims() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let kubelet = Kubelet::start(Config::new(dir.path())).expect("started");
    let json = std::fs::read_to_string(dir.path().join(FILE_NAME)).expect("written");
    assert_eq!(json, Checkpoint::default().to_json());
    kubelet.shutdown().await;
}
