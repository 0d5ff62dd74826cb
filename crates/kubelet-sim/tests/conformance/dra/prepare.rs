//! Claims are prepared before containers start, and released after the last pod.

use std::time::Duration;

use tonic::Status;
use windlass_kubelet_sim::{
    ClaimCall, ClaimId, Container, Event, Pod, PodClaim, PodPhase, Service, StartError, SyncError,
};

use super::{
    super::support::{Node, SHORT},
    DRIVER,
    driver::{Answer, Call, Driver},
    pod, pod_of,
};

fn prepared(uids: &[&str]) -> Call {
    Call::Prepare(Service::V1, uids.iter().map(|&uid| uid.to_owned()).collect())
}

fn released(uids: &[&str]) -> Call {
    Call::Unprepare(uids.iter().map(|&uid| uid.to_owned()).collect())
}

async fn admitted(node: &Node, pod: Pod) {
    node.kubelet.admit(pod).await.expect("admitted");
}

/// Text of the pod's event, without the common prefix.
async fn failure(node: &Node, uid: &str) -> String {
    let error = node.kubelet.sync_pod(uid).await.expect_err("not prepared");
    let SyncError::Prepare(message) = error else { panic!("another error: {error}") };
    let told =
        Event::FailedPrepareDynamicResources { pod: uid.to_owned(), message: message.clone() };
    node.event(|event| *event == told).await;
    let cause =
        message.strip_prefix("Failed to prepare dynamic resources: prepare dynamic resources: ");
    cause.expect("as the kubelet says it").to_owned()
}

#[tokio::test]
async fn a_container_gets_what_its_claim_was_prepared_to() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    admitted(&node, pod("pod", "claim")).await;
    assert_eq!(driver.take_calls(), [], "admission prepares nothing");

    let grant = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(grant.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    node.kubelet.start_container("pod-uid", "c").await.expect("started again");
    assert_eq!(driver.take_calls(), [prepared(&["claim-uid"])]);
    let claim = &node.kubelet.node().claims["default/claim"];
    assert!(claim.is_prepared && claim.pods.contains("pod-uid"));
    assert_eq!(claim.devices[DRIVER][0].name, "device-0");

    node.kubelet.finish("pod-uid").await;
    assert_eq!(driver.take_calls(), [released(&["claim-uid"])]);
    assert_eq!(node.kubelet.node().pods["pod-uid"].phase, PodPhase::Succeeded);
    assert!(node.kubelet.node().claims.is_empty());
    node.kubelet.delete("pod-uid").await;
    assert_eq!(driver.take_calls(), [], "it ended before");
}

#[tokio::test]
async fn each_driver_is_called_once_with_all_claims_of_the_pod() {
    let node = Node::start();
    let gpus = Driver::registered(&node, DRIVER).await;
    let nics = Driver::registered(&node, "nic.example.com").await;
    let both = pod_of("pod", "both", &[DRIVER, "nic.example.com"]);
    let more = PodClaim::new("more", ClaimId::new("gpus")).driver(DRIVER);
    admitted(&node, both.claim(more.request_used_by("request-0", "c"))).await;
    gpus.script().devices = 2;

    let grant = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(
        grant.cdi_devices,
        [
            "gpu.example.com/claim=both-uid-0",
            "gpu.example.com/claim=both-uid-1",
            "nic.example.com/claim=both-uid-0",
            "gpu.example.com/claim=gpus-uid-0",
        ]
    );
    assert_eq!(gpus.take_calls(), [prepared(&["both-uid", "gpus-uid"])]);
    assert_eq!(nics.take_calls(), [prepared(&["both-uid"])]);
    let called = |event: &Event| matches!(event, Event::DriverCalled { call: ClaimCall::Prepare, claims, .. } if claims.len() == 2);
    assert_eq!(node.kubelet.calls().count(called), 1);
}

#[tokio::test]
async fn a_claim_of_two_pods_is_prepared_once_and_released_once() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    for name in ["a", "b"] {
        admitted(&node, pod(name, "shared")).await;
        node.kubelet.start_container(&format!("{name}-uid"), "c").await.expect("started");
    }
    assert_eq!(driver.take_calls(), [prepared(&["shared-uid"])]);
    node.kubelet.delete("a-uid").await;
    assert_eq!(driver.take_calls(), []);
    node.kubelet.delete("b-uid").await;
    assert_eq!(driver.take_calls(), [released(&["shared-uid"])]);
}

#[tokio::test]
async fn whatever_is_wrong_with_the_answer_is_in_the_pods_event() {
    let node = Node::start_with(|config| config.dra.call = SHORT);
    let driver = Driver::registered(&node, DRIVER).await;
    admitted(&node, pod("pod", "claim")).await;
    for (answer, expected) in [
        (
            Answer::Status(Status::internal("broken")),
            "NodePrepareResources: rpc error: code = Internal desc = broken",
        ),
        (
            Answer::Error("no such device"),
            "NodePrepareResources failed for ResourceClaim claim: no such device",
        ),
        (Answer::Nothing, "NodePrepareResources skipped 1 ResourceClaims"),
        (Answer::TooMuch, "NodePrepareResources returned result for unknown claim UID stranger"),
        (
            Answer::Never,
            "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline \
             exceeded",
        ),
    ] {
        driver.script().prepare = answer;
        assert_eq!(failure(&node, "pod-uid").await, expected);
    }
    driver.script().prepare = Answer::Well;
    let started = node.kubelet.start_container("pod-uid", "c").await;
    let grant = started.expect("the next attempt succeeded");
    // The devices of the answer with a claim too many were kept as well.
    assert_eq!(grant.cdi_devices, ["gpu.example.com/claim=claim-uid-0"; 2]);
}

#[tokio::test]
async fn a_driver_that_is_not_registered_fails_the_pod_and_leaves_no_trace() {
    let node = Node::start();
    admitted(&node, pod("pod", "claim")).await;
    assert_eq!(failure(&node, "pod-uid").await, "DRA driver gpu.example.com is not registered");
    let error = node.kubelet.start_container("pod-uid", "c").await.expect_err("not started");
    assert!(matches!(error, StartError::PrepareClaims(_)), "{error}");
    assert!(node.kubelet.node().claims.is_empty());
    node.kubelet.delete("pod-uid").await;
    assert!(node.kubelet.node().pods.is_empty());
}

#[tokio::test]
async fn a_claim_that_is_not_released_keeps_its_pod_from_ending() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    admitted(&node, pod("pod", "claim")).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    driver.script().unprepare = Answer::Error("busy");
    node.kubelet.finish("pod-uid").await;
    let message = "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim \
                   claim: busy";
    let error = node.kubelet.sync_pod("pod-uid").await.expect_err("still busy");
    assert_eq!(error, SyncError::Unprepare(message.to_owned()));
    assert!(node.kubelet.node().pods["pod-uid"].is_admitted());

    driver.script().unprepare = Answer::Well;
    node.kubelet.sync_pod("pod-uid").await.expect("released");
    assert_eq!(node.kubelet.node().pods["pod-uid"].phase, PodPhase::Succeeded);
    assert!(node.kubelet.node().claims.is_empty());
}

#[tokio::test]
async fn a_deleted_pods_claim_is_released_later_if_need_be_and_blocks_its_name_until_then() {
    let node = Node::start_with(|config| config.dra.reconcile_period = Duration::from_secs(3600));
    let driver = Driver::registered(&node, DRIVER).await;
    admitted(&node, pod("old", "claim")).await;
    node.kubelet.start_container("old-uid", "c").await.expect("started");
    driver.script().unprepare = Answer::Status(Status::unavailable("later"));
    node.kubelet.delete("old-uid").await;

    let mut next = pod("next", "claim");
    next.claims[0].id.uid = "another".to_owned();
    admitted(&node, next).await;
    assert_eq!(
        failure(&node, "next-uid").await,
        "old ResourceClaim with same name claim and different UID claim-uid still exists (previous \
         pod force-deleted?!)"
    );
    driver.script().unprepare = Answer::Well;
    node.kubelet.reconcile_claims().await;
    node.kubelet.start_container("next-uid", "c").await.expect("started");
    assert_eq!(
        driver.take_calls(),
        [
            prepared(&["claim-uid"]),
            released(&["claim-uid"]),
            released(&["claim-uid"]),
            prepared(&["another"])
        ]
    );
}

#[tokio::test]
async fn the_end_of_a_pod_gives_up_its_preparation_and_releases_it() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    driver.script().prepare = Answer::Never;
    admitted(&node, pod("pod", "claim")).await;
    let end = async {
        node.event(|event| matches!(event, Event::DriverCalled { .. })).await;
        node.kubelet.delete("pod-uid").await;
    };
    let (failed, ()) = tokio::join!(failure(&node, "pod-uid"), end);
    let canceled = "NodePrepareResources: rpc error: code = Canceled desc = context canceled";
    assert_eq!(failed, canceled);
    assert_eq!(driver.take_calls().last(), Some(&released(&["claim-uid"])));
}

#[tokio::test]
async fn a_driver_of_before_1_34_is_called_in_its_version() {
    let node = Node::start();
    let driver = Driver::serve(&node.kubelet, DRIVER);
    driver.script().info.supported_versions = vec!["v1beta1.DRAPlugin".to_owned()];
    driver.is_registered(&node).await;
    admitted(&node, pod("pod", "claim")).await;
    let grant = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(grant.cdi_devices, ["gpu.example.com/claim=claim-uid-0"]);
    node.kubelet.finish("pod-uid").await;
    let calls = driver.take_calls();
    assert_eq!(calls[0], Call::Prepare(Service::V1Beta1, vec!["claim-uid".to_owned()]));
    assert_eq!(calls[1], released(&["claim-uid"]));
}

#[tokio::test]
async fn the_newest_instance_is_called_and_the_older_one_when_that_is_gone() {
    let node = Node::start();
    let old = Driver::registered(&node, DRIVER).await;
    let new = Driver::serve_instance(&node.kubelet, DRIVER, Some("b"));
    new.is_registered(&node).await;
    admitted(&node, pod("pod", "claim")).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!((old.take_calls().len(), new.take_calls().len()), (0, 1));
    // A killed driver leaves its socket.
    drop(new);
    node.wait(|status| !status.drivers[DRIVER][1].is_connected).await;
    node.kubelet.finish("pod-uid").await;
    assert_eq!(old.take_calls(), [released(&["claim-uid"])]);
    let unused = Pod::new("plain").container(Container::new("c"));
    admitted(&node, unused).await;
    node.kubelet.start_container("plain-uid", "c").await.expect("a pod without claims");
}
