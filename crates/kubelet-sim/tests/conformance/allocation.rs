//! Admission: allocated devices, run options, and the exact texts of rejections.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::{
    CdiDevice, ContainerAllocateResponse, DevicePluginOptions, Mount,
};
use windlass_kubelet_sim::{Container, Event, KubeletState, Pod, RejectionReason};

use super::{
    plugin::{AllocateBehaviour, Call, Method, Plugin},
    support::{DEADLINE, GPU, NIC, Node, SHORT_TIMEOUT, device, devices, ids, pod},
};

/// A node, and a plugin with this number of healthy devices.
async fn node_with(count: usize) -> (Node, Plugin) {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(count)).await;
    node.wait_for_counts(GPU, count, count).await;
    plugin.take_calls();
    (node, plugin)
}

/// A container response with one environment variable.
fn env(name: &str, value: &str) -> ContainerAllocateResponse {
    let envs = [(name.to_owned(), value.to_owned())].into();
    ContainerAllocateResponse { envs, ..Default::default() }
}

#[tokio::test]
async fn a_request_makes_one_allocate_call_with_one_container_and_all_ids() {
    let (node, plugin) = node_with(2).await;
    let admission = node.kubelet.admit(pod("pod", GPU, 2)).await.expect("admitted");
    let allocation = admission.allocation("c", GPU).expect("allocated");
    assert_eq!(allocation.ids(), ids("d0 d1"));
    assert_eq!(allocation.run_options.envs["VISIBLE"], "d0,d1");
    assert_eq!(plugin.calls(), [Call::Allocate(vec![vec!["d0".to_owned(), "d1".to_owned()]])]);
}

#[tokio::test]
async fn a_request_for_too_many_devices_is_rejected_without_a_call() {
    let (node, plugin) = node_with(3).await;
    node.admit("first", GPU, 2).await;
    plugin.take_calls();
    node.expect_allocation_error(
        ("second", 2),
        "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
    )
    .await;
    assert_eq!(plugin.calls(), []);
}

#[tokio::test]
async fn a_pod_with_an_unregistered_resource_is_admitted_without_devices() {
    let node = Node::start();
    assert_eq!(node.admit("pod", GPU, 2).await, ids(""));
    assert!(node.kubelet.status().pods["pod-uid"].is_admitted());
}

#[tokio::test]
async fn without_a_healthy_device_even_a_request_for_no_devices_is_rejected() {
    let (node, plugin) = node_with(1).await;
    plugin.set_devices(vec![device("d0", "Unhealthy")]);
    node.wait_for_counts(GPU, 1, 0).await;
    for size in [1, 0] {
        let cause = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
        node.expect_allocation_error(("pod", size), cause).await;
    }
}

#[tokio::test]
async fn a_pod_admitted_again_with_another_quantity_is_rejected() {
    let (node, _plugin) = node_with(2).await;
    node.admit("pod", GPU, 1).await;
    node.expect_allocation_error(
        ("pod", 2),
        "pod \"pod-uid\" container \"c\" changed request for resource \"example.com/gpu\" from 1 to 2",
    )
    .await;
}

#[tokio::test]
async fn an_expired_resource_that_a_pod_still_holds_cannot_be_allocated() {
    let node = Node::start_with(|config| config.grace_period = SHORT_TIMEOUT);
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.wait_for_counts(GPU, 2, 2).await;
    node.admit("holder", GPU, 1).await;
    plugin.end_streams(Ok(()));
    node.wait_for_counts(GPU, 0, 0).await;
    node.expect_allocation_error(
        ("late", 1),
        "cannot allocate unregistered device example.com/gpu",
    )
    .await;
}

#[tokio::test]
async fn an_error_of_allocate_is_the_pods_message_and_frees_the_devices() {
    let (node, plugin) = node_with(2).await;
    plugin.script().allocate = AllocateBehaviour::Fail(Status::failed_precondition("MIG is off"));
    node.expect_allocation_error(
        ("pod", 2),
        "rpc error: code = FailedPrecondition desc = MIG is off",
    )
    .await;
    plugin.script().allocate = AllocateBehaviour::Ids;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

#[tokio::test]
async fn an_empty_allocate_answer_leaks_devices_until_the_next_release() {
    let (node, plugin) = node_with(3).await;
    node.admit("short-lived", GPU, 1).await;
    plugin.script().allocate = AllocateBehaviour::Answer(Vec::new());
    node.expect_allocation_error(("pod", 1), "no containers return in allocation response ").await;
    plugin.script().allocate = AllocateBehaviour::Ids;
    assert_eq!(node.in_use(GPU), ids("d0 d1"));
    node.expect_allocation_error(
        ("next", 2),
        "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
    )
    .await;
    node.kubelet.delete_pod("short-lived-uid").await;
    assert_eq!(node.admit("last", GPU, 3).await, ids("d0 d1 d2"));
}

#[tokio::test]
async fn of_two_container_responses_the_first_is_used() {
    let (node, plugin) = node_with(1).await;
    plugin.script().allocate =
        AllocateBehaviour::Answer(vec![env("E", "first"), env("E", "second")]);
    let admission = node.kubelet.admit(pod("pod", GPU, 1)).await.expect("admitted");
    assert_eq!(admission.allocation("c", GPU).expect("allocated").run_options.envs["E"], "first");
}

#[tokio::test]
async fn a_hanging_allocate_blocks_the_admission_of_other_pods() {
    let (node, plugin) = node_with(2).await;
    plugin.script().hanging_method = Some(Method::Allocate);
    let other = async {
        let admission = tokio::time::timeout(SHORT_TIMEOUT, node.kubelet.admit(Pod::new("other")));
        admission.await.expect_err("the first admission blocks it");
        node.kubelet.stop().await;
    };
    let (outcome, ()) = tokio::join!(biased; node.kubelet.admit(pod("stuck", GPU, 1)), other);
    assert_eq!(outcome.expect_err("stopped").reason, RejectionReason::KubeletEnded);
}

#[tokio::test]
async fn the_end_of_the_stream_fails_a_call_in_progress() {
    let is_allocate = |call: &Call| matches!(call, Call::Allocate(_));
    check_closing(Method::Allocate, is_allocate, "").await;
    let is_preferred = |call: &Call| matches!(call, Call::Preferred { .. });
    let prefix = "device plugin GetPreferredAllocation rpc failed with err: ";
    check_closing(Method::Preferred, is_preferred, prefix).await;
}

/// Ends the stream during an unanswered call of `method`. Expects that the call fails at once.
async fn check_closing(method: Method, is_call: impl Fn(&Call) -> bool, prefix: &str) {
    let (node, plugin) = node_with(2).await;
    let options =
        DevicePluginOptions { get_preferred_allocation_available: true, ..Default::default() };
    plugin.script().options = Ok(options);
    plugin.register().await.expect("registered");
    plugin.script().hanging_method = Some(method);
    let end_streams = async {
        plugin.wait_for_call(is_call).await;
        plugin.end_streams(Ok(()));
    };
    let error = "rpc error: code = Canceled desc = grpc: the client connection is closing";
    let cause = format!("{prefix}{error}");
    let calls =
        async { tokio::join!(node.expect_allocation_error(("pod", 1), &cause), end_streams) };
    tokio::time::timeout(DEADLINE, calls).await.expect("the call ends with its connection");
    node.wait_for_counts(GPU, 2, 0).await;
    assert_eq!(node.in_use(GPU), ids(""));
}

#[tokio::test]
async fn a_pod_that_does_not_fit_the_node_is_rejected_after_allocate_and_freed_later() {
    let node = Node::start();
    node.admit("early", GPU, 2).await;
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.wait_for_counts(GPU, 2, 2).await;
    let rejection = node.expect_rejection("pod", GPU, 2).await;
    assert_eq!(rejection.reason, RejectionReason::OutOf(GPU.to_owned()));
    assert_eq!(rejection.reason.to_string(), "OutOfexample.com/gpu");
    assert_eq!(
        rejection.message,
        "Pod was rejected: Node didn't have enough resource: example.com/gpu, requested: 2, used: 2, capacity: 2"
    );
    assert_eq!(node.in_use(GPU), ids("d0 d1"));
    node.kubelet.delete_pod("early-uid").await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
    assert!(plugin.calls().iter().filter(|call| matches!(call, Call::Allocate(_))).count() == 2);
}

#[tokio::test]
async fn if_the_second_resource_fails_the_first_one_stays_allocated_until_garbage_collection() {
    let (node, gpus) = node_with(1).await;
    let nics = Plugin::registered(&node.kubelet, NIC, devices(1)).await;
    node.wait_for_counts(NIC, 1, 1).await;
    nics.script().allocate = AllocateBehaviour::Fail(Status::internal("no link"));
    let pod = Pod::new("pod").container(Container::new("c").limit(GPU, 1).limit(NIC, 1));
    node.kubelet.admit(pod).await.expect_err("rejected");
    assert_eq!((node.in_use(GPU), node.in_use(NIC)), (ids("d0"), ids("")));
    assert_eq!(gpus.calls().len(), 1);
    assert_eq!(node.admit("next", GPU, 1).await, ids("d0"), "the rejected pod's device is free");
}

#[tokio::test]
async fn app_containers_reuse_an_init_containers_devices() {
    let (node, _plugin) = node_with(2).await;
    let container = |name: &str, size| Container::new(name).limit(GPU, size);
    let pod = Pod::new("pod")
        .init_container(container("i", 2))
        .container(container("a", 1))
        .container(container("b", 1));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    let device_ids = |name| admission.allocation(name, GPU).expect("allocated").ids();
    assert_eq!(device_ids("i"), ids("d0 d1"));
    assert_eq!((device_ids("a"), device_ids("b")), (ids("d0"), ids("d1")));
}

#[tokio::test]
async fn devices_that_sidecars_reuse_are_not_reused_by_app_containers() {
    let (node, _plugin) = node_with(6).await;
    let container = |name: &str, size| Container::new(name).limit(GPU, size);
    let pod = Pod::new("pod")
        .init_container(container("i", 3))
        .sidecar(container("s1", 1))
        .sidecar(container("s2", 2))
        .container(container("a1", 1))
        .container(container("a2", 2));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    let device_ids = |name| admission.allocation(name, GPU).expect("allocated").ids();
    let inits = (device_ids("i"), device_ids("s1"), device_ids("s2"));
    assert_eq!(inits, (ids("d0 d1 d2"), ids("d0"), ids("d1 d2")));
    assert_eq!((device_ids("a1"), device_ids("a2")), (ids("d3"), ids("d4 d5")));
}

#[tokio::test]
async fn a_container_gets_one_grant_in_which_the_first_plugin_wins() {
    let (node, gpus) = node_with(1).await;
    let nics = Plugin::registered(&node.kubelet, NIC, devices(1)).await;
    node.wait_for_counts(NIC, 1, 1).await;
    let response = |host: &str, names: &[&str]| {
        let mount =
            Mount { container_path: "/m".to_owned(), host_path: host.to_owned(), read_only: true };
        let cdi = |name: &&str| CdiDevice { name: (*name).to_owned() };
        ContainerAllocateResponse {
            mounts: vec![mount],
            cdi_devices: names.iter().map(cdi).collect(),
            ..env("E", host)
        }
    };
    gpus.script().allocate =
        AllocateBehaviour::Answer(vec![response("/gpu", &["v/c=b", "v/c=a", "v/c=b"])]);
    nics.script().allocate = AllocateBehaviour::Answer(vec![response("/nic", &["v/c=a", "v/c=n"])]);
    let pod = Pod::new("pod").container(Container::new("c").limit(GPU, 1).limit(NIC, 1));
    node.kubelet.admit(pod).await.expect("admitted");
    let run_options = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!((&*run_options.envs["E"], &*run_options.mounts[0].host_path), ("/gpu", "/gpu"));
    assert_eq!(run_options.cdi_devices, ["v/c=b", "v/c=a", "v/c=n"]);
}

#[tokio::test]
async fn a_device_that_leaves_the_list_during_allocate_panics_the_kubelet() {
    let (node, plugin) = node_with(1).await;
    plugin.script().allocate = AllocateBehaviour::DropDevices;
    let rejection = node.expect_rejection("pod", GPU, 1).await;
    assert_eq!(rejection.reason, RejectionReason::KubeletEnded);
    assert!(rejection.message.contains("nil pointer dereference"), "{}", rejection.message);
    node.wait_for_event(|event| matches!(event, Event::Panicked { .. })).await;
    assert!(matches!(node.kubelet.status().kubelet, KubeletState::Panicked(_)));

    plugin.script().allocate = AllocateBehaviour::Ids;
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.status().kubelet, KubeletState::Running);
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_written_rejects_the_pod() {
    let (node, _plugin) = node_with(1).await;
    let file = node.kubelet.config().plugin_dir().join("kubelet_internal_checkpoint");
    std::fs::remove_file(&file).expect("the checkpoint exists");
    std::fs::create_dir(&file).expect("a folder in its place");
    let rejection = node.expect_rejection("pod", GPU, 1).await;
    let prefix = "Pod was rejected: Allocate failed due to failed to write checkpoint file \
                  \"kubelet_internal_checkpoint\": ";
    assert!(rejection.message.starts_with(prefix), "{}", rejection.message);
}

#[tokio::test]
async fn a_test_can_make_calls_that_a_kubelet_does_not_make() {
    let (node, plugin) = node_with(1).await;
    let mut client = node.kubelet.plugin_client(GPU).await.expect("connected");
    let container = windlass_kubelet_api::deviceplugin::ContainerAllocateRequest {
        devices_ids: vec!["unknown".to_owned(), "unknown".to_owned()],
    };
    let request = windlass_kubelet_api::deviceplugin::AllocateRequest {
        container_requests: vec![container.clone(), container],
    };
    let response = tokio::time::timeout(DEADLINE, client.allocate(request)).await;
    let response = response.expect("in time").expect("answered").into_inner();
    assert_eq!(response.container_responses.len(), 2);
    assert_eq!(plugin.calls().len(), 1);
}
