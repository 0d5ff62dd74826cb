//! Preparation of claims before containers start, and their release after the last pod.

use std::time::Duration;

use tonic::Status;
use windlass_kubelet_sim::{
    ClaimCall, ClaimId, Container, DraService, Event, Pod, PodClaim, PodPhase, StartError,
    SyncError,
};

use super::{
    super::support::{Node, SHORT_TIMEOUT},
    DRIVER,
    driver::{AnswerKind, Call, Driver},
    pod, pod_of,
};

fn prepare_call(uids: &[&str]) -> Call {
    Call::Prepare(DraService::V1, uids.iter().map(|&uid| uid.to_owned()).collect())
}

fn unprepare_call(uids: &[&str]) -> Call {
    Call::Unprepare(uids.iter().map(|&uid| uid.to_owned()).collect())
}

async fn admit(node: &Node, pod: Pod) {
    node.kubelet.admit(pod).await.expect("admitted");
}

/// Expects that the preparation fails. Returns the text of the pod's event, without the common prefix.
async fn prepare_error(node: &Node, uid: &str) -> String {
    let error = node.kubelet.sync_pod(uid).await.expect_err("not prepared");
    let SyncError::Prepare(message) = error else { panic!("another error: {error}") };
    let expected =
        Event::FailedPrepareDynamicResources { pod: uid.to_owned(), message: message.clone() };
    node.wait_for_event(|event| *event == expected).await;
    let cause =
        message.strip_prefix("Failed to prepare dynamic resources: prepare dynamic resources: ");
    cause.expect("the kubelet's prefix").to_owned()
}

#[tokio::test]
async fn a_container_gets_the_prepared_devices_of_its_claim() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    admit(&node, pod("pod", "claim")).await;
    assert_eq!(driver.take_calls(), [], "admission prepares nothing");

    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    node.kubelet.start_container("pod-uid", "c").await.expect("started again");
    assert_eq!(driver.take_calls(), [prepare_call(&["claim-uid"])]);
    let claim = &node.kubelet.status().claims["default/claim"];
    assert!(claim.is_prepared && claim.pods.contains("pod-uid"));
    assert_eq!(claim.devices[DRIVER][0].name, "device-0");

    node.kubelet.finish_pod("pod-uid").await;
    assert_eq!(driver.take_calls(), [unprepare_call(&["claim-uid"])]);
    assert_eq!(node.kubelet.status().pods["pod-uid"].phase, PodPhase::Succeeded);
    assert!(node.kubelet.status().claims.is_empty());
    node.kubelet.delete_pod("pod-uid").await;
    assert_eq!(driver.take_calls(), [], "the claim is released already");
}

#[tokio::test]
async fn each_driver_is_called_once_with_all_claims_of_the_pod() {
    let node = Node::start();
    let gpus = Driver::registered(&node, DRIVER).await;
    let nics = Driver::registered(&node, "nic.example.com").await;
    let pod = pod_of("pod", "both", &[DRIVER, "nic.example.com"]);
    let second_claim = PodClaim::new("more", ClaimId::new("gpus")).driver(DRIVER);
    admit(&node, pod.claim(second_claim.request_used_by("request-0", "c"))).await;
    gpus.script().devices = 2;

    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(
        run_options.cdi_devices,
        [
            "gpu.example.com/claim=both-uid-0",
            "gpu.example.com/claim=both-uid-1",
            "nic.example.com/claim=both-uid-0",
            "gpu.example.com/claim=gpus-uid-0",
        ]
    );
    assert_eq!(gpus.take_calls(), [prepare_call(&["both-uid", "gpus-uid"])]);
    assert_eq!(nics.take_calls(), [prepare_call(&["both-uid"])]);
    let is_call_for_two_claims = |event: &Event| {
        matches!(
            event,
            Event::DriverCalled { call: ClaimCall::Prepare, claims, .. } if claims.len() == 2
        )
    };
    assert_eq!(node.kubelet.events().count(is_call_for_two_claims), 1);
}

#[tokio::test]
async fn a_claim_of_two_pods_is_prepared_once_and_released_once() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    for name in ["a", "b"] {
        admit(&node, pod(name, "shared")).await;
        node.kubelet.start_container(&format!("{name}-uid"), "c").await.expect("started");
    }
    assert_eq!(driver.take_calls(), [prepare_call(&["shared-uid"])]);
    node.kubelet.delete_pod("a-uid").await;
    assert_eq!(driver.take_calls(), []);
    node.kubelet.delete_pod("b-uid").await;
    assert_eq!(driver.take_calls(), [unprepare_call(&["shared-uid"])]);
}

#[tokio::test]
async fn the_pods_event_has_the_defect_of_the_drivers_answer() {
    let node = Node::start_with(|config| config.dra.call_timeout = SHORT_TIMEOUT);
    let driver = Driver::registered(&node, DRIVER).await;
    admit(&node, pod("pod", "claim")).await;
    for (answer, expected) in [
        (
            AnswerKind::Status(Status::internal("broken")),
            "NodePrepareResources: rpc error: code = Internal desc = broken",
        ),
        (
            AnswerKind::Error("no such device"),
            "NodePrepareResources failed for ResourceClaim claim: no such device",
        ),
        (AnswerKind::NoClaims, "NodePrepareResources skipped 1 ResourceClaims"),
        (
            AnswerKind::ExtraClaim,
            "NodePrepareResources returned result for unknown claim UID stranger",
        ),
        (
            AnswerKind::Hang,
            "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline \
             exceeded",
        ),
    ] {
        driver.script().prepare = answer;
        assert_eq!(prepare_error(&node, "pod-uid").await, expected);
    }
    driver.script().prepare = AnswerKind::Correct;
    let outcome = node.kubelet.start_container("pod-uid", "c").await;
    let run_options = outcome.expect("the next attempt succeeded");
    // The devices in the answer with an extra claim were stored too, so the device is listed twice.
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"; 2]);
}

#[tokio::test]
async fn an_unregistered_driver_fails_the_start_and_leaves_no_claim() {
    let node = Node::start();
    admit(&node, pod("pod", "claim")).await;
    assert_eq!(
        prepare_error(&node, "pod-uid").await,
        "DRA driver gpu.example.com is not registered"
    );
    let error = node.kubelet.start_container("pod-uid", "c").await.expect_err("not started");
    assert!(matches!(error, StartError::PrepareClaims(_)), "{error}");
    assert!(node.kubelet.status().claims.is_empty());
    node.kubelet.delete_pod("pod-uid").await;
    assert!(node.kubelet.status().pods.is_empty());
}

#[tokio::test]
async fn a_pod_does_not_end_before_its_claim_is_released() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    admit(&node, pod("pod", "claim")).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    driver.script().unprepare = AnswerKind::Error("busy");
    node.kubelet.finish_pod("pod-uid").await;
    let message = "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim \
                   claim: busy";
    let error = node.kubelet.sync_pod("pod-uid").await.expect_err("still busy");
    assert_eq!(error, SyncError::Unprepare(message.to_owned()));
    assert!(node.kubelet.status().pods["pod-uid"].is_admitted());

    driver.script().unprepare = AnswerKind::Correct;
    node.kubelet.sync_pod("pod-uid").await.expect("released");
    assert_eq!(node.kubelet.status().pods["pod-uid"].phase, PodPhase::Succeeded);
    assert!(node.kubelet.status().claims.is_empty());
}

#[tokio::test]
async fn a_deleted_pods_unreleased_claim_blocks_its_name_until_a_later_release() {
    let node = Node::start_with(|config| config.dra.reconcile_period = Duration::from_secs(3600));
    let driver = Driver::registered(&node, DRIVER).await;
    admit(&node, pod("old", "claim")).await;
    node.kubelet.start_container("old-uid", "c").await.expect("started");
    driver.script().unprepare = AnswerKind::Status(Status::unavailable("later"));
    node.kubelet.delete_pod("old-uid").await;

    let mut next = pod("next", "claim");
    next.claims[0].id.uid = "another".to_owned();
    admit(&node, next).await;
    assert_eq!(
        prepare_error(&node, "next-uid").await,
        "old ResourceClaim with same name claim and different UID claim-uid still exists (previous \
         pod force-deleted?!)"
    );
    driver.script().unprepare = AnswerKind::Correct;
    node.kubelet.reconcile_claims().await;
    node.kubelet.start_container("next-uid", "c").await.expect("started");
    assert_eq!(
        driver.take_calls(),
        [
            prepare_call(&["claim-uid"]),
            unprepare_call(&["claim-uid"]),
            unprepare_call(&["claim-uid"]),
            prepare_call(&["another"])
        ]
    );
}

#[tokio::test]
async fn the_deletion_of_a_pod_cancels_its_preparation_and_releases_its_claim() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    driver.script().prepare = AnswerKind::Hang;
    admit(&node, pod("pod", "claim")).await;
    let delete = async {
        node.wait_for_event(|event| matches!(event, Event::DriverCalled { .. })).await;
        node.kubelet.delete_pod("pod-uid").await;
    };
    let (message, ()) = tokio::join!(prepare_error(&node, "pod-uid"), delete);
    let expected = "NodePrepareResources: rpc error: code = Canceled desc = context canceled";
    assert_eq!(message, expected);
    assert_eq!(driver.take_calls().last(), Some(&unprepare_call(&["claim-uid"])));
}

#[tokio::test]
async fn a_driver_with_v1beta1_only_is_called_in_v1beta1() {
    let node = Node::start();
    let driver = Driver::serve(&node.kubelet, DRIVER);
    driver.script().info.supported_versions = vec!["v1beta1.DRAPlugin".to_owned()];
    driver.wait_until_registered(&node).await;
    admit(&node, pod("pod", "claim")).await;
    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(run_options.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    node.kubelet.finish_pod("pod-uid").await;
    let calls = driver.take_calls();
    assert_eq!(calls[0], Call::Prepare(DraService::V1Beta1, vec!["claim-uid".to_owned()]));
    assert_eq!(calls[1], unprepare_call(&["claim-uid"]));
}

#[tokio::test]
async fn the_newest_connected_instance_is_called() {
    let node = Node::start();
    let old = Driver::registered(&node, DRIVER).await;
    let new = Driver::serve_instance(&node.kubelet, DRIVER, Some("b"));
    new.wait_until_registered(&node).await;
    admit(&node, pod("pod", "claim")).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!((old.take_calls().len(), new.take_calls().len()), (0, 1));
    // A killed driver leaves its socket.
    drop(new);
    node.wait(|status| !status.drivers[DRIVER][1].is_connected).await;
    node.kubelet.finish_pod("pod-uid").await;
    assert_eq!(old.take_calls(), [unprepare_call(&["claim-uid"])]);
    let plain_pod = Pod::new("plain").container(Container::new("c"));
    admit(&node, plain_pod).await;
    node.kubelet.start_container("plain-uid", "c").await.expect("a pod without claims");
}
