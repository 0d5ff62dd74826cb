//! Claims that are prepared and released.

use windlass_config::DeviceListStrategy;
use windlass_core::cdi;
use windlass_kubelet_api::dra::v1beta1::{
    self, NodePrepareResourcesRequest, dra_plugin_client::DraPluginClient,
};

use crate::dra::world::{Allocated, FIRST_GPU, World, gpus};

#[tokio::test]
async fn a_claim_is_prepared_and_released_through_the_sockets() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[Allocated { request: "gpu/large", gpu: 1 }]);
    let devices = kubelet.prepare("c").await.expect("prepared");
    let id = gpus(&agent.state.borrow())[1].id.clone();
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!(device.request_names, ["gpu"]);
    assert_eq!(device.pool_name, "n1/nvidia");
    assert_eq!(device.device_name, id.as_str().to_lowercase());
    let names = [format!("windlass.dev/gpu={id}"), "windlass.dev/claim=c-0".to_owned()];
    assert_eq!(device.cdi_device_ids, names);

    let document = world.document("c").expect("it has one");
    let spec: cdi::Spec = serde_json::from_value(document).expect("the specification's fields");
    assert_eq!(cdi::check(&spec), []);
    let [entry] = spec.devices.as_slice() else { panic!("{spec:?}") };
    let env = [
        format!("WINDLASS_SIMULATED={}", "dgx-h100"),
        format!("WINDLASS_CLAIM_C__GPU={id}"),
        format!("WINDLASS_WINDLASS_DEV_GPU={id}"),
    ];
    assert_eq!(entry.container_edits.env, env);

    kubelet.unprepare("c").await.expect("released");
    assert_eq!(world.document("c"), None);
    kubelet.unprepare("c").await.expect("an unknown claim counts as released");
    let record = std::fs::read_to_string(world.record()).expect("there");
    assert!(record.contains(r#""claims": {}"#), "{record}");
    agent.stop().await;
}

#[tokio::test]
async fn the_same_claim_has_the_same_answer_without_the_api_server() {
    let mut world = World::new();
    let (agent, mut kubelet) = world.start_ready().await;
    let devices_of_requests = [FIRST_GPU, Allocated { request: "b", gpu: 5 }];
    world.claim(&agent, "c", &devices_of_requests);
    let first = kubelet.prepare("c").await.expect("prepared");
    world.api.go_offline().await;
    assert_eq!(kubelet.prepare("c").await.expect("prepared"), first);
    kubelet.unprepare("c").await.expect("released");
    agent.stop().await;
}

#[tokio::test]
async fn claims_of_one_call_are_distinguished_and_results_of_other_drivers_are_ignored() {
    let (world, agent, mut kubelet) = World::start().await;
    let mut both = world.claim(&agent, "both", &[FIRST_GPU]);
    let results = both["status"]["allocation"]["devices"]["results"].as_array_mut();
    let results = results.expect("a list");
    let mut foreign = results[0].clone();
    foreign["driver"] = "other.dev".into();
    results.push(foreign);
    world.put(&both);
    let answer = kubelet.prepare_all(&[("both", "both"), ("none", "none")]).await;
    assert_eq!(answer.claims["both"].devices.len(), 1);
    assert_eq!(answer.claims["none"].error, "claim ns/none does not exist");
    agent.stop().await;
}

#[tokio::test]
async fn the_earlier_api_version_is_served_too() {
    let (world, agent, kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    let [namespace, name, uid] = ["ns", "c", "c"].map(ToOwned::to_owned);
    let claims = vec![v1beta1::Claim { namespace, uid, name }];
    let mut calls = DraPluginClient::new(kubelet.channel());
    let request = NodePrepareResourcesRequest { claims };
    let answer = calls.node_prepare_resources(request).await.expect("answered").into_inner();
    assert_eq!(answer.claims["c"].devices.len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn claims_use_documents_even_if_the_device_plugin_uses_variables() {
    let mut world = World::new();
    world.config.policy.delivery.strategies = [DeviceListStrategy::Envvar].into();
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    let devices = kubelet.prepare("c").await.expect("prepared");
    assert_eq!(devices[0].cdi_device_ids.len(), 2);
    assert!(world.config.places.cdi_dir.join("windlass.dev-gpu.json").exists());
    let text = world.document("c").expect("it has one").to_string();
    assert!(!text.contains("NVIDIA_VISIBLE_DEVICES"), "{text}");
    agent.stop().await;
}
