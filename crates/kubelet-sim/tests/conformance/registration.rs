//! `Register`: checks, error texts, and the effect of a second registration on the first.

use tonic::{Code, Status};
use windlass_kubelet_api::{
    deviceplugin::{
        self as wire, DevicePluginOptions, RegisterRequest, registration_client::RegistrationClient,
    },
    socket::SocketPath,
};
use windlass_kubelet_sim::{
    Config, Event, Faults, Kubelet, KubeletError, PluginStatus, RegistrationFault, Release,
};

use super::{
    plugin::{AllocateBehaviour, Call, Method, Plugin, register},
    support::{DEADLINE, GPU, NIC, Node, SHORT_TIMEOUT, device, devices},
};

fn check_refused(outcome: Result<(), Status>, expected: &str) {
    let status = outcome.expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::Unknown, expected));
}

#[tokio::test]
async fn a_valid_registration_succeeds_after_the_call_for_options() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.register().await.expect("registered");
    assert_eq!(plugin.calls().first(), Some(&Call::Options));
    let plugins = &node.kubelet.status().plugins;
    assert!(matches!(plugins[GPU], PluginStatus::Connected { .. }), "{plugins:?}");
}

#[tokio::test]
async fn another_version_is_refused_without_dialling() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    for version in ["v1beta2", "", "v1alpha"] {
        let request = RegisterRequest { version: version.to_owned(), ..plugin.request() };
        check_refused(
            plugin.register_as(request).await,
            &format!(
                "requested API version \"{version}\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
            ),
        );
    }
    assert!(plugin.calls().is_empty());
}

#[tokio::test]
async fn names_that_are_no_extended_resources_are_refused() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let too_long = format!("{}/x", "a".repeat(245));
    let invalid = ["gpu", "a.kubernetes.io/x", "requests.a/x", "A.com/x", "a.com/x/y", &too_long];
    for name in invalid {
        let request = RegisterRequest { resource_name: name.to_owned(), ..plugin.request() };
        let expected = format!("the ResourceName \"{name}\" is invalid");
        check_refused(plugin.register_as(request).await, &expected);
    }
    let resource_name = format!("{}/x", "a".repeat(244));
    let request = RegisterRequest { resource_name, ..plugin.request() };
    plugin.register_as(request).await.expect("a valid name");
}

#[tokio::test]
async fn registration_of_a_missing_socket_fails_after_the_dial_timeout() {
    let node = Node::start_with(|config| config.dial_timeout = SHORT_TIMEOUT);
    let started = tokio::time::Instant::now();
    for endpoint in ["missing.sock", ""] {
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: GPU.to_owned(),
            options: None,
        };
        let socket = node.kubelet.config().registration_socket();
        let expected = "failed to dial device plugin: context deadline exceeded";
        check_refused(register(&socket, request).await, expected);
    }
    assert!(started.elapsed() >= SHORT_TIMEOUT * 2);
}

#[tokio::test]
async fn an_endpoint_may_be_in_a_subfolder_or_outside_of_the_plugin_folder() {
    let node = Node::start();
    for (socket, endpoint) in
        [("sub/x.sock", "sub/x.sock"), ("abs.sock", "/abs.sock"), ("../up.sock", "../up.sock")]
    {
        let plugin = Plugin::serve(&node.kubelet, GPU, socket);
        let request = RegisterRequest { endpoint: endpoint.to_owned(), ..plugin.request() };
        plugin.register_as(request).await.expect("registered");
    }
}

#[tokio::test]
async fn registration_of_the_kubelets_own_socket_fails() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let request = RegisterRequest { endpoint: "kubelet.sock".to_owned(), ..plugin.request() };
    check_refused(
        plugin.register_as(request).await,
        "failed to get device plugin options: rpc error: code = Unimplemented desc = unknown service v1beta1.DevicePlugin",
    );
}

#[tokio::test]
async fn a_failed_call_for_options_leaves_no_list_and_no_resource() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.script().options = Err(Status::internal("broken"));
    check_refused(
        plugin.register().await,
        "failed to get device plugin options: rpc error: code = Internal desc = broken",
    );
    assert_eq!(plugin.calls(), [Call::Options]);
    let status = node.kubelet.status();
    assert!(status.resources.is_empty() && status.plugins.is_empty());
}

#[tokio::test]
async fn the_options_in_the_register_request_are_ignored() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.set_devices(devices(2));
    let options =
        DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let request = RegisterRequest { options: Some(options), ..plugin.request() };
    plugin.register_as(request).await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    node.admit("pod", GPU, 1).await;
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    let calls = plugin.calls();
    assert!(!calls.iter().any(|call| matches!(call, Call::Preferred { .. } | Call::PreStart(_))));
}

#[tokio::test]
async fn a_registered_resource_is_absent_until_its_first_list() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    plugin.register().await.expect("registered");
    plugin.wait_for_streams(1).await;
    assert_eq!(node.kubelet.status().counts(GPU), None);
    plugin.set_devices(devices(1));
    node.wait_for_counts(GPU, 1, 1).await;
}

#[tokio::test]
async fn a_plugin_that_registers_twice_has_two_open_streams() {
    let node = Node::start();
    let plugin = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    plugin.register().await.expect("again");
    plugin.wait_for_streams(2).await;
    plugin.set_devices(devices(3));
    let has_two_new_lists = |events: &[Event]| {
        let is_new_list = |event: &&Event| {
            matches!(
                event,
                Event::ListReceived { devices, .. } if devices.len() == 3
            )
        };
        events.iter().filter(is_new_list).count() == 2
    };
    node.kubelet
        .events()
        .wait_for(has_two_new_lists, DEADLINE)
        .await
        .expect("both streams are read");
}

/// Two plugins of one resource: the first with one device, the second, registered later, with two.
async fn two_plugins(node: &Node) -> [Plugin; 2] {
    let first = Plugin::serve(&node.kubelet, GPU, "one.sock");
    first.set_devices(devices(1));
    first.register().await.expect("registered");
    node.wait_for_counts(GPU, 1, 1).await;
    let second = Plugin::serve(&node.kubelet, GPU, "two.sock");
    second.set_devices(devices(2));
    second.register().await.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;
    [first, second]
}

#[tokio::test]
async fn up_to_1_36_the_end_of_the_old_stream_disconnects_the_new_plugin() {
    let node = Node::start();
    let [first, second] = two_plugins(&node).await;
    first.end_streams(Ok(()));
    node.wait_for_counts(GPU, 2, 0).await;
    second.wait_for_streams(0).await;
    second.set_devices(devices(5));
    assert_eq!(node.kubelet.status().counts(GPU), Some((2, 0)));
}

#[tokio::test]
async fn from_1_37_the_end_of_the_old_stream_changes_nothing() {
    let node = Node::start_with(|config| config.release = Release::From1_37);
    let [first, second] = two_plugins(&node).await;
    first.end_streams(Ok(()));
    node.wait_for_event(|event| matches!(event, Event::StreamEnded { .. })).await;
    assert_eq!(node.kubelet.status().counts(GPU), Some((2, 2)));
    second.set_devices(devices(5));
    node.wait_for_counts(GPU, 5, 5).await;
}

#[tokio::test]
async fn a_new_plugins_list_replaces_the_old_ones() {
    let node = Node::start();
    let _first = Plugin::registered(&node.kubelet, GPU, devices(3)).await;
    node.wait_for_counts(GPU, 3, 3).await;
    let other = Plugin::serve(&node.kubelet, GPU, "other.sock");
    other.set_devices(vec![device("x", "Healthy")]);
    other.register().await.expect("registered");
    node.wait_for_counts(GPU, 1, 1).await;
    assert!(node.kubelet.status().resources[GPU].devices.contains_key("x"));
}

#[tokio::test]
async fn after_a_failed_second_registration_the_end_of_the_stream_changes_nothing() {
    let node = Node::start_with(|config| config.dial_timeout = SHORT_TIMEOUT);
    let first = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    let request = RegisterRequest { endpoint: "missing.sock".to_owned(), ..first.request() };
    first.register_as(request).await.expect_err("no such socket");
    first.script().allocate = AllocateBehaviour::Fail(Status::unavailable("dead"));
    first.end_streams(Err(Status::unavailable("dying")));
    node.wait_for_event(|event| matches!(event, Event::StreamEnded { .. })).await;
    assert_eq!(node.kubelet.status().counts(GPU), Some((1, 1)));
    node.expect_allocation_error(("pod", 1), "rpc error: code = Unavailable desc = dead").await;
}

#[tokio::test]
async fn a_fault_can_refuse_registrations_or_leave_them_unanswered() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let registration = RegistrationFault::Refuse("not today".to_owned());
    node.kubelet.set_faults(Faults { registration, ..Faults::default() });
    check_refused(plugin.register().await, "not today");

    let hang = RegistrationFault::Hang;
    node.kubelet.set_faults(Faults { registration: hang, ..Faults::default() });
    tokio::time::timeout(SHORT_TIMEOUT, plugin.register()).await.expect_err("no answer");

    node.kubelet.set_faults(Faults::default());
    plugin.register().await.expect("registered");
}

#[tokio::test]
async fn a_cancelled_register_call_registers_nothing() {
    let node = Node::start();
    let socket = node.kubelet.config().registration_socket();
    let request = RegisterRequest {
        version: wire::VERSION.to_owned(),
        endpoint: "late.sock".to_owned(),
        resource_name: GPU.to_owned(),
        options: None,
    };
    tokio::time::timeout(SHORT_TIMEOUT, register(&socket, request)).await.expect_err("cancelled");
    let is_cancelled = |event: &Event| {
        matches!(
            event,
            Event::RegistrationRefused { message, .. }
                if message == "failed to dial device plugin: context canceled"
        )
    };
    node.wait_for_event(is_cancelled).await;
    // The kubelet no longer dials the socket.
    let late = Plugin::serve(&node.kubelet, GPU, "late.sock");
    late.set_devices(devices(1));
    let status = node.kubelet.status();
    assert!(status.plugins.is_empty() && status.resources.is_empty(), "{status:?}");
    let is_registration = |event: &Event| matches!(event, Event::Registered { .. });
    assert_eq!(node.kubelet.events().count(is_registration), 0);
    assert_eq!(late.calls(), []);
}

/// The old stream ends between `Register` and the connection to the new plugin.
#[tokio::test]
async fn a_plugin_dialled_while_the_old_stream_ends_stays_registered() {
    let node = Node::start();
    let first = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    let socket = node.kubelet.config().registration_socket();
    let request = RegisterRequest { endpoint: "two.sock".to_owned(), ..first.request() };
    let end_first_stream = async {
        // These registrations begin later. By their end, the kubelet has begun to dial `two.sock`.
        for _ in 0..3 {
            Plugin::serve(&node.kubelet, NIC, "nic.sock").register().await.expect("registered");
        }
        first.end_streams(Ok(()));
        node.wait_for_counts(GPU, 1, 0).await;
        let second = Plugin::serve(&node.kubelet, GPU, "two.sock");
        second.set_devices(devices(2));
        second
    };
    let (outcome, second) = tokio::join!(biased; register(&socket, request), end_first_stream);
    outcome.expect("registered");
    node.wait_for_counts(GPU, 2, 2).await;

    second.end_streams(Ok(()));
    let is_second_end = |event: &Event| {
        let Event::StreamEnded { endpoint, .. } = event else { return false };
        endpoint.ends_with("two.sock")
    };
    node.wait_for_event(is_second_end).await;
    assert_eq!(node.kubelet.status().counts(GPU), Some((2, 2)));
}

/// The old stream ends after the connection to the new plugin, before its options.
#[tokio::test]
async fn a_plugin_asked_for_options_while_the_old_stream_ends_is_dropped() {
    let node = Node::start();
    let first = Plugin::registered(&node.kubelet, GPU, devices(1)).await;
    node.wait_for_counts(GPU, 1, 1).await;
    let second = Plugin::serve(&node.kubelet, GPU, "two.sock");
    second.script().hanging_method = Some(Method::Options);
    let end_first_stream = async {
        second.wait_for_call(|call| *call == Call::Options).await;
        first.end_streams(Ok(()));
    };
    let calls = async { tokio::join!(second.register(), end_first_stream) };
    let (outcome, ()) = tokio::time::timeout(DEADLINE, calls).await.expect("Register is answered");
    check_refused(
        outcome,
        "failed to get device plugin options: rpc error: code = Canceled desc = grpc: the client connection is closing",
    );
    node.wait_for_counts(GPU, 1, 0).await;
}

#[tokio::test]
async fn an_invalid_or_very_long_deadline_does_not_fail_the_call() {
    let node = Node::start();
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let socket =
        SocketPath::new(node.kubelet.config().registration_socket()).expect("a short socket path");
    let mut client = RegistrationClient::new(socket.dial().await.expect("dialled"));
    for timeout in ["18446744073709551615S", "99999999H"] {
        let mut request = tonic::Request::new(plugin.request());
        request.metadata_mut().insert("grpc-timeout", timeout.parse().expect("ASCII"));
        client.register(request).await.expect("registered");
    }
}

#[tokio::test]
async fn a_second_kubelet_on_the_same_root_is_refused() {
    let node = Node::start();
    let error = Kubelet::start(Config::new(node.dir.path())).expect_err("the root is locked");
    let KubeletError::Directory(cause) = error else { panic!("{error}") };
    assert!(cause.to_string().starts_with("another embedded kubelet runs on"), "{cause}");
    let Node { kubelet, dir } = node;
    kubelet.shutdown().await;
    Kubelet::start(Config::new(dir.path())).expect("the root is unlocked");
}
