//! Valid and invalid requests, and their answers.

use std::fs;

use tokio::io::AsyncWriteExt as _;
use tonic::Code;
use windlass_config::{DeviceListStrategy, ResourceRule, Resources, Selector, Sharing};
use windlass_core::{device::DeviceKind, resource::ResourceName};
use windlass_kubelet_api::{
    deviceplugin::{
        AllocateResponse, ContainerPreferredAllocationRequest, Empty, PreStartContainerRequest,
        PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
    },
    socket::SocketPath,
};
use windlass_testkit::{GPU, pod_with, until_allocatable, until_exists};

use crate::agent::world::{allocation, client, gpu_id, gpu_node, pod, until_gpu_counts};

type Client = DevicePluginClient<tonic::transport::Channel>;

async fn allocate(plugin: &mut Client, ids: &[String]) -> Result<AllocateResponse, tonic::Status> {
    plugin.allocate(allocation(&[ids])).await.map(tonic::Response::into_inner)
}

async fn ids(plugin: &mut Client) -> Vec<String> {
    let mut lists = plugin.list_and_watch(Empty {}).await.expect("open").into_inner();
    let list = lists.message().await.expect("open").expect("a list");
    list.devices.into_iter().map(|device| device.id).collect()
}

#[tokio::test]
async fn unallocatable_devices_are_refused_by_name() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let known = ids(&mut plugin).await[0].clone();
    let unknown = "GPU-nobody".to_owned();
    for (ids, code, expected) in [
        (vec![unknown.clone()], Code::InvalidArgument, "nvidia.com/gpu has no device GPU-nobody"),
        (vec![known.clone(), known.clone()], Code::InvalidArgument, "more than once"),
        (vec![], Code::InvalidArgument, "names no devices of nvidia.com/gpu"),
    ] {
        let status = allocate(&mut plugin, &ids).await.expect_err(expected);
        assert_eq!(status.code(), code);
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let request = PreStartContainerRequest { devices_ids: vec![unknown] };
    let status = plugin.pre_start_container(request).await.expect_err("unknown");
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_device_that_failed_meanwhile_is_refused_with_its_failure() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let id = gpu_id(&agent, 0);
    world.inject("xid:79@0");
    until_gpu_counts(&kubelet, (8, 7)).await;
    let status = allocate(&mut plugin, std::slice::from_ref(&id)).await.expect_err("unhealthy");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let expected = format!("nvidia.com/gpu: {id} cannot be allocated: XID 79");
    assert!(status.message().starts_with(&expected), "{}", status.message());
}

#[tokio::test]
async fn a_device_node_that_is_missing_is_named() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let id = gpu_id(&agent, 4);
    fs::remove_file(world.config.places.host_root.join("dev/nvidia4")).expect("removed");
    let status = allocate(&mut plugin, &[id]).await.expect_err("no node");
    assert!(status.message().contains("device node /dev/nvidia4"), "{}", status.message());
}

#[tokio::test]
async fn the_same_request_gets_the_same_bytes() {
    use prost::Message as _;
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let known = ids(&mut plugin).await;
    let two = allocation(&[&known[..2], &known[2..3]]);
    let first = plugin.allocate(two.clone()).await.expect("allocated").into_inner();
    assert_eq!(first.container_responses.len(), 2, "one answer per container, in order");
    for _ in 0..20 {
        let again = plugin.allocate(two.clone()).await.expect("allocated").into_inner();
        assert_eq!(again.encode_to_vec(), first.encode_to_vec());
    }
}

#[tokio::test]
async fn every_granted_name_is_in_an_existing_document() {
    let world = gpu_node("mig-a100");
    let (kubelet, _agent) = world.start_ready(2).await;
    for (resource, node) in [(GPU, "/dev/nvidia"), ("nvidia.com/mig-1g.5gb", "/dev/nvidia-caps/")] {
        let admission = kubelet.admit(pod_with(resource, resource, 1)).await.expect("admitted");
        let grant = &admission.allocation("main", resource).expect("allocated").run_options;
        let text =
            fs::read(world.config.places.cdi_dir.join("windlass.dev-gpu.json")).expect("written");
        let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let name = grant.cdi_devices[0].strip_prefix("windlass.dev/gpu=").expect("qualified");
        let devices = document["devices"].as_array().expect("devices");
        let device = devices.iter().find(|device| device["name"] == name).expect("in the document");
        assert!(device.to_string().contains(node), "{device}");
        assert_eq!(
            grant.envs["WINDLASS_SIMULATED"], "mig-a100",
            "the variable names the simulation"
        );
    }
}

#[tokio::test]
async fn the_environment_is_the_alternative_to_documents() {
    let mut world = gpu_node("dgx-h100");
    world.config.policy.delivery.strategies = [DeviceListStrategy::Envvar].into();
    let (kubelet, _agent) = world.start_ready(8).await;
    let admission = kubelet.admit(pod("p", 2)).await.expect("admitted");
    let allocation = admission.allocation("main", GPU).expect("allocated");
    let visible: std::collections::BTreeSet<_> =
        allocation.run_options.envs["NVIDIA_VISIBLE_DEVICES"]
            .split(',')
            .map(str::to_owned)
            .collect();
    assert_eq!(visible, allocation.ids());
    assert!(allocation.run_options.cdi_devices.is_empty() && !world.config.places.cdi_dir.exists());
}

#[tokio::test]
async fn ids_are_unique_over_resources() {
    let world = gpu_node("mig-a100");
    let (kubelet, _agent) = world.start_ready(2).await;
    until_allocatable(&kubelet, "nvidia.com/mig-1g.5gb", 8).await;
    let node = kubelet.status();
    let all: Vec<_> = node.resources.values().flat_map(|one| one.devices.keys()).collect();
    let unique: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(all.len(), unique.len(), "the kubelet finds health by id alone");
}

#[tokio::test]
async fn devices_have_a_numa_node_if_the_machine_has_one() {
    for (profile, count, expected) in [("dgx-h100", 8, Some(vec![0_i64])), ("t4-edge", 1, None)] {
        let world = gpu_node(profile);
        let (kubelet, agent) = world.start_ready(count).await;
        let id = gpu_id(&agent, 0);
        let node = kubelet.status();
        assert_eq!(node.resources[GPU].devices[&id].numa_nodes, expected, "{profile}");
    }
}

#[tokio::test]
async fn a_preference_includes_the_required_devices_and_impossible_ones_are_refused() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let mut plugin = client(&kubelet, GPU).await;
    let gpu = |index| gpu_id(&agent, index);
    let all: Vec<_> = (0..8).map(gpu).collect();
    let request = |required: Vec<String>, size| {
        let container = ContainerPreferredAllocationRequest {
            available_device_i_ds: all.clone(),
            must_include_device_i_ds: required,
            allocation_size: size,
        };
        PreferredAllocationRequest { container_requests: vec![container] }
    };
    let answer =
        plugin.get_preferred_allocation(request(vec![gpu(5)], 4)).await.expect("an answer");
    let mut chosen = answer.into_inner().container_responses.remove(0).device_i_ds;
    chosen.sort();
    let mut second_node: Vec<_> = (4..8).map(gpu).collect();
    second_node.sort();
    assert_eq!(chosen, second_node, "the four of the NUMA node that GPU 5 is on");
    for (required, size) in [(vec![], 9), (vec![], 0), (vec![], -1), (all.clone(), 2)] {
        let status =
            plugin.get_preferred_allocation(request(required, size)).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn garbage_and_oversized_requests_affect_no_other_call() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff"[..],
    ] {
        let mut stream = tokio::net::UnixStream::connect(world.socket()).await.expect("connected");
        // The agent may close the connection before everything is written.
        let _ = stream.write_all(garbage).await;
    }
    let channel = SocketPath::new(world.socket()).expect("short").dial().await.expect("dialled");
    let mut plugin = DevicePluginClient::new(channel);
    let oversized = vec!["x".repeat(1 << 20); 5];
    let status = allocate(&mut plugin, &oversized).await.expect_err("over 4 MiB");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    kubelet.admit(pod("p", 8)).await.expect("the agent keeps serving");
}

#[tokio::test]
async fn requests_are_answered_while_the_driver_hangs() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    for gpu in 1..8 {
        world.inject(&format!("hang@{gpu}"));
    }
    kubelet.admit(pod("p", 1)).await.expect("no request waits for the driver");
    until_gpu_counts(&kubelet, (8, 1)).await;
    let mut plugin = client(&kubelet, GPU).await;
    let status = allocate(&mut plugin, &[gpu_id(&agent, 3)]).await.expect_err("unresponsive");
    assert!(status.message().contains("unresponsive"), "{}", status.message());
    for gpu in 1..8 {
        world.inject(&format!("recover@{gpu}"));
    }
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn a_removed_document_is_reported_and_written_again() {
    let world = gpu_node("t4-edge");
    let (kubelet, _agent) = world.start_ready(1).await;
    let document = world.config.places.cdi_dir.join("windlass.dev-gpu.json");
    fs::remove_file(&document).expect("removed");
    let rejection = kubelet.admit(pod("early", 1)).await.expect_err("no document");
    assert!(rejection.message.contains("windlass.dev-gpu.json was removed"), "{rejection}");
    kubelet.delete_pod("early-uid").await;
    until_exists(&document).await;
    kubelet.admit(pod("late", 1)).await.expect("admitted");
}

#[tokio::test]
async fn network_interfaces_are_offered_if_a_rule_names_them() {
    let nics: ResourceName = "a.com/nic".parse().expect("valid");
    // Each device has its own node, and both need the node of the connection manager.
    for (strategy, cdi_names, nodes) in
        [(DeviceListStrategy::CdiCri, 2, 0), (DeviceListStrategy::Envvar, 0, 3)]
    {
        let mut world = gpu_node("dgx-h100");
        let devices = Selector::all(DeviceKind::Nic);
        let rule = ResourceRule::new(nics.clone(), devices, Sharing::Exclusive);
        world.config.policy.resources = Resources::Rules(vec![rule]);
        world.config.policy.delivery.strategies = [strategy].into();
        let kubelet = world.start_kubelet();
        let _agent = world.start_agent();
        until_allocatable(&kubelet, nics.as_str(), 8).await;
        let pod = pod_with("p", nics.as_str(), 2);
        let admission = kubelet.admit(pod).await.expect("admitted");
        let grant = &admission.allocation("main", nics.as_str()).expect("allocated").run_options;
        assert_eq!(grant.cdi_devices.len(), cdi_names);
        assert_eq!(grant.devices.len(), nodes, "names or nodes");
        assert!(!grant.envs.contains_key("NVIDIA_VISIBLE_DEVICES"), "a NIC is no GPU");
    }
}
