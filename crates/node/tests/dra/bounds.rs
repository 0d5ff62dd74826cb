//! More calls and claims than any kubelet sends, and invalid claims.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tonic::Code;
use tracing::Level;
use windlass_kubelet_api::dra::v1::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
    dra_plugin_client::DraPluginClient,
};
use windlass_testkit::{Caller, LogCapture};

use crate::dra::world::{Allocated, FIRST_GPU, World, claim, gpus, result};

const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";

/// Twice as many calls as a socket accepts at once.
const CALLS: usize = 4000;

/// One claim more than a call may have.
const CLAIMS: usize = 257;

/// Number of claims that do not exist.
const UNKNOWN_CLAIMS: usize = 50;

/// Nesting depth of unread parameters: `serde_json` follows 128 levels.
const DEEP: usize = 200;

async fn cancel_calls(socket: &Path, call: &str) {
    let mut caller = Caller::connect(socket).await;
    caller.send_cancelled_calls(call, CALLS).await;
    caller.call(call).await;
}

#[tokio::test]
async fn calls_that_are_cancelled_at_once_do_not_end_the_drivers_connections() {
    let (world, agent, _kubelet) = World::start().await;
    cancel_calls(&world.endpoint(), PREPARE).await;
    cancel_calls(&world.registration(), GET_INFO).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_call_for_more_claims_than_a_pod_has_is_refused() {
    let (_world, agent, kubelet) = World::start().await;
    let mut calls = DraPluginClient::new(kubelet.channel());
    let numbered = |number| {
        let [namespace, name, uid] = ["ns".to_owned(), format!("c{number}"), format!("u{number}")];
        Claim { namespace, name, uid }
    };
    let claims: Vec<_> = (0..CLAIMS).map(numbered).collect();
    let expected = (Code::InvalidArgument, "the call has 257 claims; at most 256 are allowed");
    let prepare = NodePrepareResourcesRequest { claims: claims.clone() };
    let status = calls.node_prepare_resources(prepare).await.expect_err("too many");
    assert_eq!((status.code(), status.message()), expected);
    let release = NodeUnprepareResourcesRequest { claims };
    let status = calls.node_unprepare_resources(release).await.expect_err("too many");
    assert_eq!((status.code(), status.message()), expected);
    let [namespace, name, uid] = ["ns", "c", "u"].map(|it| it.repeat(300_000));
    let endless = NodePrepareResourcesRequest { claims: vec![Claim { namespace, name, uid }] };
    let status = calls.node_prepare_resources(endless).await.expect_err("too long");
    assert!(status.message().contains("the limit is: 262144 bytes"), "{status:?}");
    agent.stop().await;
}

#[tokio::test]
async fn unknown_claims_are_released_without_a_log_line_for_each() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "known", &[FIRST_GPU]);
    kubelet.prepare("known").await.expect("prepared");
    let log = LogCapture::start(Level::INFO);
    kubelet.prepare("known").await.expect("prepared as before");
    for number in 0..UNKNOWN_CLAIMS {
        kubelet.unprepare(&format!("c{number}")).await.expect("no claim to release");
    }
    kubelet.unprepare("known").await.expect("released");
    let claim_lines = log.lines().into_iter().filter(|line| line.contains("claim="));
    let claim_lines: Vec<_> = claim_lines.collect();
    assert!(matches!(&*claim_lines, [one] if one.contains("claim released")), "{claim_lines:#?}");
    agent.stop().await;
}

/// A claim with parameters for another driver, which this driver reads past.
fn nested(name: &str, allocated: &[Value]) -> Value {
    let nested_value = (0..DEEP).fold(json!({}), |inner, _| json!({"a": inner}));
    let mut object = claim(name, allocated);
    object["status"]["allocation"]["devices"]["config"] = json!([{
        "source": "FromClaim", "requests": [],
        "opaque": {"driver": "example.com", "parameters": nested_value},
    }]);
    object
}

#[tokio::test]
async fn an_unreadable_claim_is_refused_as_such_and_keeps_the_connection() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "good", &[FIRST_GPU]);
    kubelet.prepare("good").await.expect("prepared");
    // A new connection would read this file.
    let kubeconfig = world.config.cluster.kubeconfig.as_ref().expect("there is one");
    fs::remove_file(kubeconfig).expect("it was there");
    let gpu = gpus(&agent.state.borrow())[1].clone();
    world.put(&nested("nested", &[result("a", &gpu)]));
    let error = kubelet.prepare("nested").await.expect_err("unreadable");
    let expected = "cannot read claim ns/nested: the API server's answer cannot be read: ";
    assert!(error.contains(expected) && error.contains("recursion limit"), "{error}");
    world.claim(&agent, "next", &[Allocated { request: "a", gpu: 2 }]);
    kubelet.prepare("next").await.expect("prepared by the same connection");
    agent.stop().await;
}
