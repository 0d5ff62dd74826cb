//! Admission: devices of each pod, and the exact texts of rejections.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::{
    CdiDevice, ContainerAllocateResponse, DevicePluginOptions, Mount,
};
use windlass_kubelet_sim::{Condition, Container, Event, Pod, Reason};

use super::{
    plugin::{Allocate, Call, Method, Plugin},
    support::{DEADLINE, GPU, NIC, Node, SHORT, device, devices, ids, pod},
};

async fn node_with(count: usize) -> (Node, Plugin) {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(count)).await;
    node.counts(GPU, count, count).await;
    plugin.take_calls();
    (node, plugin)
}

fn env(name: &str, value: &str) -> ContainerAllocateResponse {
    let envs = [(name.to_owned(), value.to_owned())].into();
    ContainerAllocateResponse { envs, ..Default::default() }
}

/// Catalogue row 48.
#[tokio::test]
async fn a_request_is_one_allocate_with_one_container_and_all_ids() {
    let (node, plugin) = node_with(2).await;
    let admission = node.kubelet.admit(pod("pod", GPU, 2)).await.expect("admitted");
    let allotment = admission.allotment("c", GPU).expect("held");
    assert_eq!(allotment.ids(), ids("d0 d1"));
    assert_eq!(allotment.grant.envs["VISIBLE"], "d0,d1");
    assert_eq!(plugin.calls(), [Call::Allocate(vec![vec!["d0".to_owned(), "d1".to_owned()]])]);
}

/// Catalogue row 49.
#[tokio::test]
async fn too_few_free_devices_are_refused_without_a_call() {
    let (node, plugin) = node_with(3).await;
    node.admit("first", GPU, 2).await;
    plugin.take_calls();
    node.refuse(
        ("second", 2),
        "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
    )
    .await;
    assert_eq!(plugin.calls(), []);
}

/// Catalogue row 50.
#[tokio::test]
async fn a_resource_that_never_registered_is_admitted_without_devices() {
    let node = Node::start();
    assert_eq!(node.admit("pod", GPU, 2).await, ids(""));
    assert!(node.kubelet.node().pods["pod-uid"].is_admitted());
}

/// Catalogue row 51.
#[tokio::test]
async fn without_a_healthy_device_even_a_request_for_none_is_refused() {
    let (node, plugin) = node_with(1).await;
    plugin.show(vec![device("d0", "Unhealthy")]);
    node.counts(GPU, 1, 0).await;
    for size in [1, 0] {
        let cause = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
        node.refuse(("pod", size), cause).await;
    }
}

/// Catalogue row 53.
#[tokio::test]
async fn a_pod_cannot_change_its_mind() {
    let (node, _plugin) = node_with(2).await;
    node.admit("pod", GPU, 1).await;
    node.refuse(
        ("pod", 2),
        "pod \"pod-uid\" container \"c\" changed request for resource \"example.com/gpu\" from 1 to 2",
    )
    .await;
}

/// Catalogue row 56.
#[tokio::test]
async fn a_resource_that_is_held_but_no_longer_registered_cannot_be_allocated() {
    let node = Node::start_with(|config| config.grace_period = SHORT);
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.counts(GPU, 2, 2).await;
    node.admit("holder", GPU, 1).await;
    plugin.end_streams(Ok(()));
    node.counts(GPU, 0, 0).await;
    node.refuse(("late", 1), "cannot allocate unregistered device example.com/gpu").await;
}

/// Catalogue row 57.
#[tokio::test]
async fn an_error_of_allocate_is_the_pods_message_and_frees_the_devices() {
    let (node, plugin) = node_with(2).await;
    plugin.script().allocate = Allocate::Fail(Status::failed_precondition("MIG is off"));
    node.refuse(("pod", 2), "rpc error: code = FailedPrecondition desc = MIG is off").await;
    plugin.script().allocate = Allocate::Ids;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
}

/// Catalogue row 58.
#[tokio::test]
async fn an_answer_without_container_leaks_the_devices_until_a_pod_is_collected() {
    let (node, plugin) = node_with(3).await;
    node.admit("short-lived", GPU, 1).await;
    plugin.script().allocate = Allocate::Answer(Vec::new());
    node.refuse(("pod", 1), "no containers return in allocation response ").await;
    plugin.script().allocate = Allocate::Ids;
    assert_eq!(node.in_use(GPU), ids("d0 d1"));
    node.refuse(
        ("next", 2),
        "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
    )
    .await;
    node.kubelet.delete("short-lived-uid").await;
    assert_eq!(node.admit("last", GPU, 3).await, ids("d0 d1 d2"));
}

/// Catalogue row 59.
#[tokio::test]
async fn of_two_container_responses_the_first_is_used() {
    let (node, plugin) = node_with(1).await;
    plugin.script().allocate = Allocate::Answer(vec![env("E", "first"), env("E", "second")]);
    let admission = node.kubelet.admit(pod("pod", GPU, 1)).await.expect("admitted");
    assert_eq!(admission.allotment("c", GPU).expect("held").grant.envs["E"], "first");
}

/// Catalogue row 63, without the health check.
#[tokio::test]
async fn a_hanging_allocate_keeps_other_pods_waiting() {
    let (node, plugin) = node_with(2).await;
    plugin.script().ignores = Some(Method::Allocate);
    let innocent = async {
        let waiting = tokio::time::timeout(SHORT, node.kubelet.admit(Pod::new("innocent")));
        waiting.await.expect_err("it waits for its turn");
        node.kubelet.stop().await;
    };
    let (stuck, ()) = tokio::join!(biased; node.kubelet.admit(pod("stuck", GPU, 1)), innocent);
    assert_eq!(stuck.expect_err("stopped").reason, Reason::KubeletGone);
}

#[tokio::test]
async fn a_call_that_is_under_way_when_the_stream_ends_fails_with_the_connection() {
    let is_allocate = |call: &Call| matches!(call, Call::Allocate(_));
    check_closing(Method::Allocate, is_allocate, "").await;
    let is_preferred = |call: &Call| matches!(call, Call::Preferred { .. });
    let prefix = "device plugin GetPreferredAllocation rpc failed with err: ";
    check_closing(Method::Preferred, is_preferred, prefix).await;
}

async fn check_closing(ignored: Method, is_ignored: impl Fn(&Call) -> bool, prefix: &str) {
    let (node, plugin) = node_with(2).await;
    let options =
        DevicePluginOptions { get_preferred_allocation_available: true, ..Default::default() };
    plugin.script().options = Ok(options);
    plugin.register().await.expect("registered");
    plugin.script().ignores = Some(ignored);
    let ending = async {
        plugin.called(is_ignored).await;
        plugin.end_streams(Ok(()));
    };
    let closing = "rpc error: code = Canceled desc = grpc: the client connection is closing";
    let cause = format!("{prefix}{closing}");
    let both = async { tokio::join!(node.refuse(("pod", 1), &cause), ending) };
    tokio::time::timeout(DEADLINE, both).await.expect("the call does not outlive its connection");
    node.counts(GPU, 2, 0).await;
    assert_eq!(node.in_use(GPU), ids(""));
}

/// Catalogue row 64.
#[tokio::test]
async fn a_pod_that_the_node_rejects_after_allocate_is_freed_later_without_a_word() {
    let node = Node::start();
    node.admit("early", GPU, 2).await;
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(2)).await;
    node.counts(GPU, 2, 2).await;
    let rejection = node.reject("pod", GPU, 2).await;
    assert_eq!(rejection.reason, Reason::OutOf(GPU.to_owned()));
    assert_eq!(rejection.reason.to_string(), "OutOfexample.com/gpu");
    assert_eq!(
        rejection.message,
        "Pod was rejected: Node didn't have enough resource: example.com/gpu, requested: 2, used: 2, capacity: 2"
    );
    assert_eq!(node.in_use(GPU), ids("d0 d1"));
    node.kubelet.delete("early-uid").await;
    assert_eq!(node.admit("next", GPU, 2).await, ids("d0 d1"));
    assert!(plugin.calls().iter().filter(|call| matches!(call, Call::Allocate(_))).count() == 2);
}

/// Catalogue row 65.
#[tokio::test]
async fn when_the_second_resource_fails_the_first_one_stays_taken_until_collected() {
    let (node, gpus) = node_with(1).await;
    let nics = Plugin::registered(&node.kubelet, NIC, devices(1)).await;
    node.counts(NIC, 1, 1).await;
    nics.script().allocate = Allocate::Fail(Status::internal("no link"));
    let both = Pod::new("pod").container(Container::new("c").limit(GPU, 1).limit(NIC, 1));
    node.kubelet.admit(both).await.expect_err("rejected");
    assert_eq!((node.in_use(GPU), node.in_use(NIC)), (ids("d0"), ids("")));
    assert_eq!(gpus.calls().len(), 1);
    assert_eq!(node.admit("next", GPU, 1).await, ids("d0"), "the rejected pod was collected");
}

/// Catalogue row 66.
#[tokio::test]
async fn app_containers_reuse_an_init_containers_devices() {
    let (node, _plugin) = node_with(2).await;
    let of = |name: &str, size| Container::new(name).limit(GPU, size);
    let pod = Pod::new("pod").init(of("i", 2)).container(of("a", 1)).container(of("b", 1));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    let held = |name| admission.allotment(name, GPU).expect("held").ids();
    assert_eq!(held("i"), ids("d0 d1"));
    assert_eq!((held("a"), held("b")), (ids("d0"), ids("d1")));
}

/// Catalogue row 67.
#[tokio::test]
async fn sidecars_keep_what_they_take_from_an_init_container() {
    let (node, _plugin) = node_with(6).await;
    let of = |name: &str, size| Container::new(name).limit(GPU, size);
    let pod = Pod::new("pod")
        .init(of("i", 3))
        .sidecar(of("s1", 1))
        .sidecar(of("s2", 2))
        .container(of("a1", 1))
        .container(of("a2", 2));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    let held = |name| admission.allotment(name, GPU).expect("held").ids();
    assert_eq!((held("i"), held("s1"), held("s2")), (ids("d0 d1 d2"), ids("d0"), ids("d1 d2")));
    assert_eq!((held("a1"), held("a2")), (ids("d3"), ids("d4 d5")));
}

/// Catalogue rows 68, 69.
#[tokio::test]
async fn a_container_gets_one_grant_in_which_the_first_plugin_wins() {
    let (node, gpus) = node_with(1).await;
    let nics = Plugin::registered(&node.kubelet, NIC, devices(1)).await;
    node.counts(NIC, 1, 1).await;
    let answer = |host: &str, names: &[&str]| {
        let mount =
            Mount { container_path: "/m".to_owned(), host_path: host.to_owned(), read_only: true };
        let cdi = |name: &&str| CdiDevice { name: (*name).to_owned() };
        ContainerAllocateResponse {
            mounts: vec![mount],
            cdi_devices: names.iter().map(cdi).collect(),
            ..env("E", host)
        }
    };
    gpus.script().allocate = Allocate::Answer(vec![answer("/gpu", &["v/c=b", "v/c=a", "v/c=b"])]);
    nics.script().allocate = Allocate::Answer(vec![answer("/nic", &["v/c=a", "v/c=n"])]);
    let both = Pod::new("pod").container(Container::new("c").limit(GPU, 1).limit(NIC, 1));
    node.kubelet.admit(both).await.expect("admitted");
    let grant = node.kubelet.start_container("pod-uid", "c").await.expect("started");
    assert_eq!((&*grant.envs["E"], &*grant.mounts[0].host_path), ("/gpu", "/gpu"));
    assert_eq!(grant.cdi_devices, ["v/c=b", "v/c=a", "v/c=n"]);
}

/// Catalogue row 42, trap 3.
#[tokio::test]
async fn a_device_that_vanishes_during_allocate_is_the_kubelets_end() {
    let (node, plugin) = node_with(1).await;
    plugin.script().allocate = Allocate::Vanish;
    let rejection = node.reject("pod", GPU, 1).await;
    assert_eq!(rejection.reason, Reason::KubeletGone);
    assert!(rejection.message.contains("nil pointer dereference"), "{}", rejection.message);
    node.event(|event| matches!(event, Event::Panicked { .. })).await;
    assert!(matches!(node.kubelet.node().kubelet, Condition::Panicked(_)));

    plugin.script().allocate = Allocate::Ids;
    node.kubelet.restart().await.expect("restarted");
    assert_eq!(node.kubelet.node().kubelet, Condition::Running);
}

/// Catalogue row 89.
#[tokio::test]
async fn a_checkpoint_that_cannot_be_written_rejects_the_pod() {
    let (node, _plugin) = node_with(1).await;
    let file = node.kubelet.config().plugin_dir().join("kubelet_internal_checkpoint");
    std::fs::remove_file(&file).expect("it was written");
    std::fs::create_dir(&file).expect("in its place");
    let rejection = node.reject("pod", GPU, 1).await;
    let beginning = "Pod was rejected: Allocate failed due to failed to write checkpoint file \"kubelet_internal_checkpoint\": ";
    assert!(rejection.message.starts_with(beginning), "{}", rejection.message);
}

#[tokio::test]
async fn calls_that_the_kubelet_never_makes_can_be_made_by_hand() {
    let (node, plugin) = node_with(1).await;
    let mut client = node.kubelet.plugin(GPU).await.expect("connected");
    let odd = windlass_kubelet_api::deviceplugin::ContainerAllocateRequest {
        devices_ids: vec!["unknown".to_owned(), "unknown".to_owned()],
    };
    let request = windlass_kubelet_api::deviceplugin::AllocateRequest {
        container_requests: vec![odd.clone(), odd],
    };
    let answer = tokio::time::timeout(DEADLINE, client.allocate(request)).await;
    let answer = answer.expect("in time").expect("answered").into_inner();
    assert_eq!(answer.container_responses.len(), 2);
    assert_eq!(plugin.calls().len(), 1);
}
