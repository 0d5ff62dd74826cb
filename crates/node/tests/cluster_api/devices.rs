//! The node's GPUs on its Node: written as an annotation, changed with their health, removed when switched off.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use serde_json::json;
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{LabelOutput, LabelPolicy, Policy};
use windlass_core::annotation::{NodeDevices, PodKind};
use windlass_machine::MachineProfile;
use windlass_testkit::{Node, health_policy, until};

fn policy(devices: bool) -> Policy {
    let labels = LabelPolicy { devices, output: LabelOutput::Node, ..LabelPolicy::default() };
    Policy { labels, health: health_policy(Duration::from_millis(300)), ..Policy::default() }
}

/// Waits until the devices in the Node's annotation, or their absence, meet a condition.
async fn until_annotation(
    api: &ApiServer,
    condition: impl Fn(Option<&NodeDevices>) -> bool,
) -> NodeObject {
    until("the annotation meets the condition", async || {
        let node = api.objects().get::<NodeObject>("", "n1").expect("a Node");
        let text =
            node.metadata.annotations.as_ref().and_then(|all| all.get(NodeDevices::ANNOTATION));
        let devices = text.map(|text| NodeDevices::from_annotation(text).expect("readable"));
        if condition(devices.as_ref()) { Ok(node) } else { Err(devices) }
    })
    .await
}

#[tokio::test]
async fn the_nodes_gpus_are_annotated_with_their_health_until_switched_off() {
    let api = ApiServer::start();
    let object = json!({"metadata": {"name": "n1", "annotations": {"of": "others"}}});
    api.objects().put::<NodeObject>(&serde_json::from_value(object).expect("a Node"));
    let node = Node::from_profile("dgx-h100", policy(true)).with_cluster("n1", &api.kubeconfig());
    let agent = node.start_agent();
    let all_healthy = |devices: Option<&NodeDevices>| {
        devices.is_some_and(|it| {
            it.devices.len() == 8 && it.devices.iter().all(|gpu| gpu.obstacle.is_none())
        })
    };
    let object = until_annotation(&api, all_healthy).await;
    let text = &object.metadata.annotations.expect("annotations")[NodeDevices::ANNOTATION];
    let first = &NodeDevices::from_annotation(text).expect("readable").devices[0];
    let state = agent.state.borrow().clone();
    assert_eq!(first.id, state.inventory.devices[0].id);
    assert_eq!((first.model.as_str(), first.memory_mib), ("NVIDIA H100 80GB HBM3", 81_559));

    node.inject("lost@3");
    let object = until_annotation(&api, |devices| {
        devices.is_some_and(|it| it.devices[3].obstacle.as_deref() == Some("lost"))
    })
    .await;
    assert!(object.metadata.labels.is_some_and(|all| all.contains_key("nvidia.com/gpu.count")));
    node.inject("recover@3");
    until_annotation(&api, all_healthy).await;
    agent.set_policy(policy(false));
    let object = until_annotation(&api, |devices| devices.is_none()).await;
    assert_eq!(object.metadata.annotations.expect("annotations")["of"], "others");
    agent.stop().await;
}

#[tokio::test]
async fn gpus_of_two_vendors_are_annotated_with_the_pods_that_may_use_them() {
    let api = ApiServer::start();
    let object = json!({"metadata": {"name": "n1"}});
    api.objects().put::<NodeObject>(&serde_json::from_value(object).expect("a Node"));
    let profile = |name| MachineProfile::named(name).expect("a shipped profile");
    let MachineProfile { driver, cards, gpus, .. } = profile("t4-edge");
    let machine = MachineProfile { driver, cards, gpus, ..profile("mi300x") };
    let mut policy = policy(true);
    policy.shares.source = "amd".parse().expect("a source");
    policy.shares.memory = Some("windlass.dev/gpu-memory".parse().expect("a name"));
    let node = Node::new(&machine, policy).with_cluster("n1", &api.kubeconfig());
    let agent = node.start_agent();
    let object =
        until_annotation(&api, |devices| devices.is_some_and(|it| it.devices.len() == 9)).await;
    let text = &object.metadata.annotations.expect("annotations")[NodeDevices::ANNOTATION];
    let listed = NodeDevices::from_annotation(text).expect("readable").devices;
    let only_for: Vec<_> = listed.iter().map(|gpu| gpu.only_for.expect("some pods")).collect();
    assert_eq!((only_for[0], listed[0].model.as_str()), (PodKind::Whole, "Tesla T4"));
    assert_eq!(only_for[1..], [PodKind::Shares; 8]);
    agent.stop().await;
}
