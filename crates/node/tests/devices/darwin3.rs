//! Darwin3 boards, in the three ways in which nodes reach them.

use windlass_config::DeviceProfile;
use windlass_testkit::{
    Node, pod_with as pod, until_allocatable, until_counts, until_registrations,
};

use crate::devices::world::{device, node};

/// Resource in manifests for darwin3-device-plugin.
const DARWIN3: &str = "zj.com/darwin3";

/// The pod of that plugin's own example.
const POD: &str = "darwin3-test-pod";

fn files(names: &[&str]) -> Node {
    let world = node("", "sources: [{profile: darwin3-files}]");
    for name in names {
        world.write(&format!("/etc/darwin3/{name}"), "");
    }
    world
}

#[tokio::test]
async fn a_manifest_of_the_other_plugin_gets_its_board_in_both_variables() {
    let world = files(&["g1", "g2"]);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, DARWIN3, 2).await;
    let admission = kubelet.admit(pod(POD, DARWIN3, 1)).await.expect("admitted");
    let one = &admission.allocation("main", DARWIN3).expect("allocated").run_options;
    assert_eq!(one.envs["darwin3"], "g1");
    assert_eq!(one.envs["Darwin3"], "g1");
    assert!(one.devices.is_empty() && one.mounts.is_empty(), "only a name is granted: {one:?}");
    kubelet.delete_pod(&format!("{POD}-uid")).await;
    let admission = kubelet.admit(pod("both", DARWIN3, 2)).await.expect("admitted");
    let both = &admission.allocation("main", DARWIN3).expect("allocated").run_options;
    assert_eq!(both.envs["Darwin3"], "g1,g2");
}

#[tokio::test]
async fn boards_are_added_and_vanish_and_recover_with_their_files() {
    let world = files(&["g1"]);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, DARWIN3, (1, 1)).await;
    world.write("/etc/darwin3/g2", "");
    until_counts(&kubelet, DARWIN3, (2, 2)).await;
    std::fs::remove_file(world.host_path("/etc/darwin3/g1")).expect("removed");
    until_counts(&kubelet, DARWIN3, (2, 1)).await;
    let state = agent.until_health("darwin3-g1", "Unhealthy").await;
    assert!(device(&state.inventory, "darwin3-g1").health.has_vanished());
    let rejection = kubelet.admit(pod("p", DARWIN3, 2)).await.expect_err("one remains");
    assert!(rejection.message.contains("Requested: 2, Available: 1"), "{rejection}");
    world.write("/etc/darwin3/g1", "");
    until_counts(&kubelet, DARWIN3, (2, 2)).await;
}

#[tokio::test]
async fn a_folder_that_is_created_later_is_found() {
    let world = files(&[]);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    agent.until(|state| state.inventory.is_complete()).await;
    world.write("/etc/darwin3/g1", "");
    until_counts(&kubelet, DARWIN3, (1, 1)).await;
}

#[tokio::test]
async fn a_restart_of_the_kubelet_or_of_the_agent_releases_no_board() {
    let world = files(&["g1", "g2"]);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, DARWIN3, 2).await;
    let admission = kubelet.admit(pod(POD, DARWIN3, 1)).await.expect("admitted");
    let uid = format!("{POD}-uid");
    kubelet.start_container(&uid, "main").await.expect("started");
    let allocated = admission.allocation("main", DARWIN3).expect("allocated").ids();
    kubelet.restart().await.expect("restarted");
    until_registrations(&kubelet, 2).await;
    until_counts(&kubelet, DARWIN3, (2, 2)).await;
    drop(agent);
    until_counts(&kubelet, DARWIN3, (2, 0)).await;
    let _agent = world.start_agent();
    until_counts(&kubelet, DARWIN3, (2, 2)).await;
    let node = kubelet.status();
    let devices = &node.pods[&uid].containers["main"].devices[DARWIN3];
    assert!(devices.values().flatten().eq(&allocated), "{devices:?}");
    let rejection = kubelet.admit(pod("greedy", DARWIN3, 2)).await.expect_err("one is held");
    assert!(rejection.message.contains("Available: 1"), "{rejection}");
}

#[tokio::test]
async fn a_file_may_have_the_address_of_its_board() {
    let entry =
        "{profile: darwin3-files, give: {env: {Darwin3: \"{name}\", BOARD: \"{host}:6000\"}}}";
    let world = node("", &format!("sources: [{entry}]"));
    world.write("/etc/darwin3/g1", "endpoint: 10.0.0.21\nserial: D3-7\nnuma: 1\n");
    world.write("/etc/darwin3/g2", "- no\n- board: [");
    let state = world.scan_host().await;
    let [g1, g2] = ["darwin3-g1", "darwin3-g2"].map(|id| device(&state.inventory, id));
    assert_eq!(g1.extras.env["BOARD"], "10.0.0.21:6000");
    assert_eq!(g1.place.numa_node, Some(1));
    assert_eq!(g2.extras.env.keys().collect::<Vec<_>>(), ["Darwin3"], "it has no address");
}

/// A machine with the simulated devices of a profile.
fn simulated_board(profile: &str) -> Node {
    let profile: DeviceProfile = profile.parse().expect("a shipped profile");
    let (_, devices) = profile.text.split_once("\nsimulated:\n").expect("it simulates something");
    node(devices, &format!("sources: [{{profile: {}}}]", profile.name))
}

#[tokio::test]
async fn a_chip_on_its_board_is_one_device_and_unhealthy_without_its_registers() {
    let world = simulated_board("darwin3-board-axidma");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, DARWIN3, (1, 1)).await;
    let id = "darwin3-board-axidma-all";
    let state = agent.until_health(id, "Healthy").await;
    let chip = device(&state.inventory, id);
    let nodes: Vec<_> = chip.nodes.iter().filter_map(|node| node.path.to_str()).collect();
    assert_eq!(nodes, ["/dev/axidma", "/dev/axi-regs"]);
    world.inject("unplug:darwin3-axi-regs");
    until_counts(&kubelet, DARWIN3, (1, 0)).await;
    agent.until_health(id, "Unhealthy: device node missing, /dev/axi-regs is not there").await;
}

#[tokio::test]
async fn a_chip_that_lacks_channels_is_unhealthy_and_names_them() {
    let world = simulated_board("darwin3-board");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, DARWIN3, (1, 1)).await;
    // Darwin3's runtime does not use this device node.
    std::fs::remove_file(world.host_path("/dev/dma_proxy_tx2")).expect("removed");
    for node in ["rx1", "tx4"] {
        let path = world.host_path(&format!("/dev/dma_proxy_{node}"));
        std::fs::remove_file(path).expect("removed");
    }
    until_counts(&kubelet, DARWIN3, (1, 0)).await;
    let missing = "device node missing, /dev/dma_proxy_tx4, /dev/dma_proxy_rx1 are not there";
    agent.until_health("darwin3-board-all", &format!("Unhealthy: {missing}")).await;
    for node in ["rx1", "tx4"] {
        world.write(&format!("/dev/dma_proxy_{node}"), "");
    }
    until_counts(&kubelet, DARWIN3, (1, 1)).await;
}

#[tokio::test]
async fn a_board_that_several_gateways_reach_is_not_allocated_without_a_lease() {
    let mut world = node("", "sources: [{profile: darwin3-files, lease: true}]");
    world.write("/etc/darwin3/g1", "");
    world.config.cluster.node_name = Some("gw1".to_owned());
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, DARWIN3, (1, 0)).await;
    let state = agent.until_health("darwin3-g1", "Healthy").await;
    let obstacle = state.device_offers()["darwin3-g1"].obstacle.clone();
    assert_eq!(obstacle.as_deref(), Some("lease: not held yet"), "there is no API server");
}
