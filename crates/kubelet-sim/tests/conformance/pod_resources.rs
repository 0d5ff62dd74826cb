//! The pod resources API: `List`, `Get`, `GetAllocatableResources` and the rate limit.

use tonic::{Code, transport::Channel};
use windlass_kubelet_api::{
    podresources::{
        AllocatableResourcesRequest, ContainerDevices, GetPodResourcesRequest,
        ListPodResourcesRequest, PodResources,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::SocketPath,
};
use windlass_kubelet_sim::{ClaimId, Container, Pod, PodClaim};

use super::{
    dra::{DRIVER, driver::Driver, pod_of},
    plugin::Plugin,
    support::{GPU, Node, device, device_on_nodes, devices},
};

async fn client(node: &Node) -> PodResourcesListerClient<Channel> {
    let path =
        SocketPath::new(node.kubelet.config().pod_resources_socket()).expect("a short socket path");
    PodResourcesListerClient::new(path.dial().await.expect("dialled"))
}

async fn list(node: &Node) -> Vec<PodResources> {
    let request = ListPodResourcesRequest {};
    client(node).await.list(request).await.expect("listed").into_inner().pod_resources
}

/// Ids of the devices, each with its NUMA node.
fn ids_and_nodes(devices: &[ContainerDevices]) -> Vec<(&str, Option<i64>)> {
    let node =
        |device: &ContainerDevices| device.topology.as_ref().map(|topology| topology.nodes[0].id);
    devices.iter().map(|device| (&*device.device_ids[0], node(device))).collect()
}

#[tokio::test]
async fn list_has_an_entry_per_device_and_node_and_omits_finished_init_containers() {
    let node = Node::start();
    let devices = vec![device_on_nodes("both", &[0, 1]), device("plain", "Healthy")];
    let plugin = Plugin::registered(&node.kubelet, GPU, devices).await;
    node.wait_for_counts(GPU, 2, 2).await;
    let pod = Pod::new("pod")
        .init_container(Container::new("init").limit(GPU, 2))
        .sidecar(Container::new("side").limit(GPU, 1))
        .container(Container::new("app").limit(GPU, 1));
    node.kubelet.admit(pod).await.expect("admitted");
    plugin.end_streams(Ok(()));
    node.wait_for_counts(GPU, 2, 0).await;

    let pods = list(&node).await;
    assert_eq!((&*pods[0].name, &*pods[0].namespace), ("pod", "default"));
    let containers = &pods[0].containers;
    assert_eq!(containers.iter().map(|c| &*c.name).collect::<Vec<_>>(), ["side", "app"]);
    assert_eq!(ids_and_nodes(&containers[0].devices), [("both", Some(0)), ("both", Some(1))]);
    assert_eq!(ids_and_nodes(&containers[1].devices), [("plain", None)]);

    node.kubelet.finish_pod("pod-uid").await;
    assert_eq!(list(&node).await, []);
}

#[tokio::test]
async fn get_allocatable_resources_omits_unhealthy_devices_and_those_with_an_empty_topology() {
    let node = Node::start();
    let devices = vec![
        device_on_nodes("a", &[1]),
        device_on_nodes("empty", &[]),
        device("plain", "Healthy"),
        device("unhealthy", "Unhealthy"),
    ];
    let _plugin = Plugin::registered(&node.kubelet, GPU, devices).await;
    node.wait_for_counts(GPU, 4, 3).await;
    node.admit("pod", GPU, 1).await;
    let request = AllocatableResourcesRequest {};
    let response = client(&node).await.get_allocatable_resources(request).await.expect("answered");
    assert_eq!(ids_and_nodes(&response.into_inner().devices), [("a", Some(1)), ("plain", None)]);
}

#[tokio::test]
async fn get_finds_active_pods_only() {
    let node = Node::start();
    node.kubelet.admit(Pod::new("pod")).await.expect("admitted");
    let mut client = client(&node).await;
    let request = |name: &str| GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
    };
    let response = client.get(request("pod")).await.expect("found").into_inner();
    assert_eq!(response.pod_resources.expect("a pod").name, "pod");
    let status = client.get(request("gone")).await.expect_err("missing");
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.message(), "pod gone in namespace default not found");
}

#[tokio::test]
async fn calls_beyond_the_burst_are_rejected() {
    // The bucket is never refilled, so the test does not depend on the duration of the calls.
    let node = Node::start_with(|config| config.pod_resources_qps = 0);
    let mut client = client(&node).await;
    let mut rejections = Vec::new();
    for _ in 0..20 {
        if let Err(status) = client.list(ListPodResourcesRequest {}).await {
            rejections.push(status);
        }
    }
    assert_eq!(rejections.len(), 10);
    assert_eq!(rejections[0].code(), Code::ResourceExhausted);
    assert_eq!(rejections[0].message(), "rejected by rate limit");
}

#[tokio::test]
async fn list_is_the_same_after_a_restart() {
    let node = Node::start();
    let mut devices = devices(1);
    devices.push(device_on_nodes("n", &[1]));
    let _plugin = Plugin::registered(&node.kubelet, GPU, devices).await;
    node.wait_for_counts(GPU, 2, 2).await;
    node.admit("pod", GPU, 2).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let before = list(&node).await;
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(list(&node).await, before);
}

#[tokio::test]
async fn list_accumulates_the_cdi_names_of_a_claims_devices() {
    let node = Node::start();
    let driver = Driver::registered(&node, DRIVER).await;
    driver.script().devices = 2;
    let extended_claim = PodClaim::new("extended", ClaimId::new("extended")).driver(DRIVER);
    let pod = pod_of("pod", "claim", &[DRIVER])
        .container(Container::new("idle"))
        .claim(extended_claim.request_used_by("request-0", "c").for_extended_resources());
    node.kubelet.admit(pod).await.expect("admitted");
    assert_eq!(list(&node).await[0].containers[0].dynamic_resources, [], "not prepared yet");
    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!(run_options.cdi_devices.len(), 3, "two devices of one claim, one of the other");
    let health = &node.kubelet.status().pods["pod-uid"].containers["c"].claim_health;
    assert_eq!(health.keys().collect::<Vec<_>>(), ["claim:devices"]);

    let pods = list(&node).await;
    let [app, idle] = &pods[0].containers[..] else { panic!("two containers") };
    assert_eq!(idle.dynamic_resources, []);
    let claims = &app.dynamic_resources;
    let names = claims.iter().map(|claim| (&*claim.claim_namespace, &*claim.claim_name));
    assert!(names.eq([("default", "claim"), ("default", "extended")]));
    let second = &claims[0].claim_resources[1];
    assert_eq!((&*second.driver_name, &*second.pool_name), (DRIVER, "pool"));
    assert_eq!((&*second.device_name, &second.share_id), ("device-1", &None));
    let names: Vec<&str> = second.cdi_devices.iter().map(|cdi| &*cdi.name).collect();
    assert_eq!(names, [0, 1].map(|number| format!("{DRIVER}/claim=claim-uid-{number}")));
}
