//! Refused starts, and starts after an earlier agent.

use std::{
    fs,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use windlass_config::{ResourceRule, Resources, Selector, Sharing, Unmatched};
use windlass_core::device::DeviceKind;
use windlass_kubelet_api::checkpoint::{self, Checkpoint, PodDevices};
use windlass_kubelet_sim::Event;
use windlass_node::{Reservation, StandbyMode, StartError};
use windlass_resources::NodeState;
use windlass_testkit::{GPU, RunningAgent, TIMEOUT, until, until_allocatable};

use crate::agent::world::{gpu_node, pod, until_gpu_counts};

#[tokio::test]
async fn a_second_agent_is_refused_and_the_first_unharmed() {
    let world = gpu_node("dgx-h100");
    let (kubelet, _agent) = world.start_ready(8).await;
    let error = world.try_start_agent().expect_err("refused");
    assert!(matches!(error, StartError::KubeletInUse(_)), "{error}");
    assert!(error.to_string().contains("stop it first"), "{error}");
    kubelet.admit(pod("p", 8)).await.expect("the first agent serves");
}

#[tokio::test]
async fn a_standby_agent_is_ready_and_waits_until_the_first_ends() {
    let mut world = gpu_node("dgx-h100");
    let (kubelet, first) = world.start_ready(8).await;
    // The first agent has no probe socket.
    let socket = world.folder.join("probes.sock");
    world.config.probe_socket = Some(socket.clone());
    let mut waiting = Box::pin(Reservation::wait(&world.config, StandbyMode::On));
    let ready = tokio::select! {
        result = &mut waiting => panic!("the first one serves: {result:?}"),
        page = page(&socket, "/readyz") => page,
    };
    assert!(ready.starts_with("HTTP/1.1 200 OK") && ready.contains("standing by"), "{ready}");
    kubelet.admit(pod("p", 4)).await.expect("the first agent serves");
    drop(first);
    let reservation = waiting.await.expect("the first agent has ended");
    let is_list = |event: &Event| matches!(event, Event::ListReceived { .. });
    let before = kubelet.events().count(is_list);
    let _second = RunningAgent::start_reserved(&world.config, reservation).expect("it starts");
    // Until the kubelet has the new list, it may still count the old one.
    let has_new_list = |events: &[Event]| events.iter().filter(|it| is_list(it)).count() > before;
    kubelet.events().wait_for(has_new_list, TIMEOUT).await.expect("the second's list");
    until_allocatable(&kubelet, GPU, 8).await;
    kubelet.admit(pod("q", 4)).await.expect("the second agent serves");
    let ready = page(&socket, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 OK") && !ready.contains("standing by"), "{ready}");
}

#[tokio::test]
async fn an_agent_without_a_kubelets_folder_is_not_ready_and_waits_without_creating_it() {
    let mut world = gpu_node("t4-edge");
    let (folder, socket) = (world.folder.join("later"), world.folder.join("probes.sock"));
    world.config.places.kubelet_dir.clone_from(&folder);
    world.config.probe_socket = Some(socket.clone());
    let error = world.try_start_agent().expect_err("refused");
    assert!(error.to_string().contains("--kubelet-dir"), "{error}");
    let mut waiting = Box::pin(Reservation::wait(&world.config, StandbyMode::Off));
    let (ready, healthy) = tokio::select! {
        result = &mut waiting => panic!("there is no kubelet: {result:?}"),
        pages = async { (page(&socket, "/readyz").await, page(&socket, "/healthz").await) } => pages,
    };
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(ready.contains("not ok: the kubelet has no folder"), "{ready}");
    assert!(healthy.starts_with("HTTP/1.1 200 OK"), "a restart would not help: {healthy}");
    assert!(!folder.exists(), "the agent creates no folder of a kubelet");
    let kubelet = world.start_kubelet();
    let reservation = waiting.await.expect("a kubelet");
    let _agent = RunningAgent::start_reserved(&world.config, reservation).expect("it starts");
    until_allocatable(&kubelet, GPU, 1).await;
}

#[tokio::test]
async fn a_standby_agent_is_ready_without_a_kubelet_and_its_pages_say_so() {
    let mut world = gpu_node("t4-edge");
    let socket = world.folder.join("probes.sock");
    world.config.places.kubelet_dir = world.folder.join("later");
    world.config.probe_socket = Some(socket.clone());
    let waiting = Reservation::wait(&world.config, StandbyMode::On);
    let requests = async {
        for (path, status, expected) in [
            ("/readyz", 200, "standing by"),
            ("/healthz", 200, "standing by"),
            ("/metrics", 200, "windlass_standing_by 1\n"),
            ("/metrics", 200, "windlass_build_info{version="),
            ("/devices", 503, "standing by"),
            ("/nowhere", 404, "no page /nowhere"),
        ] {
            let page = page(&socket, path).await;
            assert!(page.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {page}");
            assert!(page.contains(expected), "{path}: {page}");
        }
    };
    tokio::select! {
        result = waiting => panic!("there is no kubelet: {result:?}"),
        () = requests => {}
    }
}

/// Requests a page until the server answers.
async fn page(socket: &Path, path: &str) -> String {
    let mut stream = until("the server listens", async || UnixStream::connect(socket).await).await;
    let (mut text, request) = (String::new(), format!("GET {path} HTTP/1.1\r\n\r\n"));
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream.read_to_string(&mut text).await.expect("answered");
    text
}

#[tokio::test]
async fn an_unwritable_folder_withholds_devices_with_the_reason() {
    let mut world = gpu_node("t4-edge");
    // Even root cannot create folders in /proc.
    world.config.places.cdi_dir = "/proc/windlass".into();
    let agent = world.start_agent();
    let has_offers = |state: &std::sync::Arc<NodeState>| !state.device_offers().is_empty();
    let state = agent.until(has_offers).await;
    let offer = state.device_offers().into_values().next().expect("one GPU");
    let obstacle = offer.obstacle.expect("withheld");
    assert!(obstacle.contains("cannot write CDI document /proc/windlass"), "{obstacle}");
}

#[tokio::test]
async fn an_unwritable_document_withholds_only_its_devices() {
    let mut world = gpu_node("dgx-h100");
    let devices = Selector::all(DeviceKind::Nic);
    let nics = ResourceRule::new("a.com/nic".parse().expect("valid"), devices, Sharing::Exclusive);
    world.config.policy.resources = Resources::Rules(vec![nics]);
    world.config.policy.unmatched = Unmatched::Default;
    // A folder blocks the path of the document.
    fs::create_dir_all(world.config.places.cdi_dir.join("windlass.dev-nic.json")).expect("created");
    let agent = world.start_agent();
    let is_whole = |state: &std::sync::Arc<NodeState>| state.resources().len() == 2;
    let resources = agent.until(is_whole).await.resources();
    let counts: Vec<_> = resources.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counts, [("a.com/nic", (8, 0)), (GPU, (8, 8))]);
}

#[tokio::test]
async fn a_socket_path_that_is_too_long_is_refused_with_the_path() {
    let mut world = gpu_node("t4-edge");
    world.config.places.kubelet_dir = world.folder.join("x".repeat(80));
    let error = world.try_start_agent().expect_err("refused");
    let StartError::Socket(source) = error else { panic!("another error: {error}") };
    let text = source.to_string();
    assert!(text.contains(&"x".repeat(80)) && text.contains("107"), "{text}");
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let world = gpu_node("t4-edge");
    let folder = world.socket().parent().map(PathBuf::from).expect("a folder");
    fs::create_dir_all(&folder).expect("created");
    drop(UnixListener::bind(world.socket()).expect("bound"));
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let kubelet = world.start_kubelet();
    until_allocatable(&kubelet, GPU, 1).await;
}

#[tokio::test]
async fn a_vanished_device_of_a_pod_is_listed() {
    let world = gpu_node("t4-edge");
    let folder = world.socket().parent().map(PathBuf::from).expect("a folder");
    fs::create_dir_all(&folder).expect("created");
    let held = PodDevices {
        pod_uid: "u".to_owned(),
        container_name: "c".to_owned(),
        resource_name: GPU.to_owned(),
        device_ids: [(0, vec!["GPU-gone".to_owned()])].into(),
        allocate_response: Vec::new(),
    };
    let checkpoint_of_pod = Checkpoint { pods: Some(vec![held]), registered: None };
    fs::write(folder.join(checkpoint::FILE_NAME), checkpoint_of_pod.to_json()).expect("written");
    let _agent = world.start_agent();
    let kubelet = world.start_kubelet();
    let node = until_gpu_counts(&kubelet, (2, 1)).await;
    assert!(!node.resources[GPU].devices["GPU-gone"].is_healthy());
}

#[tokio::test]
async fn an_unreadable_record_does_not_stop_the_agent() {
    let world = gpu_node("t4-edge");
    let folder = world.socket().parent().map(PathBuf::from).expect("a folder");
    fs::create_dir_all(&folder).expect("created");
    fs::write(folder.join(checkpoint::FILE_NAME), "{\"Data\":").expect("written");
    let kubelet = world.start_kubelet();
    let _agent = world.start_agent();
    until_allocatable(&kubelet, GPU, 1).await;
}

#[tokio::test]
async fn a_resource_whose_socket_path_is_a_file_is_served_once_the_file_is_removed() {
    let world = gpu_node("t4-edge");
    let folder = world.socket().parent().map(PathBuf::from).expect("a folder");
    fs::create_dir_all(&folder).expect("created");
    fs::write(world.socket(), "precious").expect("written");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    assert_eq!(fs::read_to_string(world.socket()).expect("still there"), "precious");
    fs::remove_file(world.socket()).expect("removed");
    until_allocatable(&kubelet, GPU, 1).await;
}
