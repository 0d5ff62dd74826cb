//! AMD's GPUs: found full and in partitions, partitioned again, unbound, and given to containers.

use windlass_machine::{MachineProfile, profile::PartitionNames};
use windlass_resources::NodeState;
use windlass_testkit::{Node, pod_with as pod, until_allocatable};

use crate::devices::{
    golden,
    world::{device, node_of, start_with_http, until_measured},
};

const GPU: &str = "amd.com/gpu";

fn machine(profile: &str, config: &str) -> Node {
    node_of(&MachineProfile::named(profile).expect("a shipped profile"), config)
}

/// The ids of a source's present devices, in order.
fn ids(state: &NodeState) -> Vec<String> {
    let devices = state.inventory.devices.iter();
    let present =
        devices.filter(|device| device.source.as_str() == "amd" && !device.health.has_vanished());
    present.map(|device| device.id.to_string()).collect()
}

#[tokio::test]
async fn whole_gpus_have_their_location_their_links_and_their_nodes() {
    let state = machine("mi300x", "").scan_host().await;
    let text = golden::devices(&state, "amd");
    let first = text.split_inclusive('\n').take(21).collect::<String>();
    insta::assert_snapshot!("mi300x_first", first);
    insta::assert_snapshot!("mi300x", golden::overview(&state, "amd"));
}

#[tokio::test]
async fn partitions_are_offered_in_place_of_their_gpus_with_each_spelling_of_the_driver() {
    for (names, spelling) in
        [(PartitionNames::Dot, "amdgpu_xcp."), (PartitionNames::Underscore, "amdgpu_xcp_")]
    {
        let mut profile = MachineProfile::named("mi300x-cpx").expect("a shipped profile");
        profile.amd.as_mut().expect("AMD's GPUs").partitions = names;
        let world = node_of(&profile, "");
        let platform = std::fs::read_dir(world.host_path("/sys/devices/platform")).expect("there");
        let mut platform = platform.map(|entry| entry.expect("an entry").file_name());
        assert!(platform.any(|name| name.to_string_lossy().starts_with(spelling)));
        let state = world.scan_host().await;
        assert_eq!(state.resources()[&GPU.parse().expect("valid")], (64, 64), "{spelling}");
        assert_eq!(ids(&state).len(), 8 + 64);
    }
}

#[tokio::test]
async fn a_partition_has_the_location_and_a_share_of_its_gpu() {
    let state = machine("mi300x-cpx", "amd: {naming: mixed}").scan_host().await;
    assert_eq!(state.resources()[&"amd.com/cpx_nps4".parse().expect("valid")], (64, 64));
    let text = golden::devices(&state, "amd");
    let first = text.split_inclusive('\n').take(61).collect::<String>();
    insta::assert_snapshot!("mi300x_cpx_first", first);
}

#[tokio::test]
async fn a_partitioned_gpu_is_offered_in_parts_and_never_also_in_full() {
    let world = machine("mi300x", "");
    let partitioned = machine("mi300x-cpx", "").machine.model().expect("a model").devices;
    let full = world.machine.model().expect("a model").devices;
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, GPU, 8).await;
    world.machine.update(|model| model.devices = partitioned).expect("changed");
    until_allocatable(&kubelet, GPU, 64).await;
    let state = agent.until(|state| ids(state).len() == 72).await;
    let first = ids(&state).into_iter().find(|id| id.ends_with("cpx-nps4-0")).expect("a partition");
    assert!(device(&state.inventory, &first).parent.is_some());
    world.machine.update(|model| model.devices = full).expect("changed");
    // Device nodes are removed before the scan that finds the partitions gone; eight may be listed at any moment.
    let is_unpartitioned = |state: &std::sync::Arc<windlass_resources::NodeState>| {
        let healthy = state.inventory.devices.iter().filter(|device| device.health.is_healthy());
        healthy.filter(|device| device.parent.is_some()).count() == 0
    };
    agent.until(is_unpartitioned).await;
    until_allocatable(&kubelet, GPU, 8).await;
    assert!(is_unpartitioned(&agent.state.borrow()), "no partition is healthy beside its GPU");
}

#[tokio::test]
async fn a_gpu_with_one_listed_part_so_far_is_not_offered_whole() {
    let world = machine("mi300x-cpx", "");
    let is_first = |name: &str| !name.starts_with("amd0.");
    world.machine.update(|model| model.devices.retain(|it| is_first(&it.name))).expect("changed");
    let state = world.scan_host().await;
    let first = state.inventory.devices.iter().find(|device| !device.health.is_healthy());
    let first = first.expect("one is not ready");
    assert!(first.parent.is_none() && first.health.to_string().contains("it is being partitioned"));
    assert_eq!(state.resources()[&GPU.parse().expect("valid")].1, 56);
}

/// Makes the compute driver hide its GPUs, as it does where a container may not open their nodes.
fn hide_all(world: &Node) {
    // A kernel file that no user may read, not even root.
    const UNREADABLE: &str = "/proc/sys/vm/compact_memory";
    let nodes = world.host_path("/sys/class/kfd/kfd/topology/nodes");
    for node in std::fs::read_dir(nodes).expect("a topology") {
        let properties = node.expect("an entry").path().join("properties");
        let text = std::fs::read_to_string(&properties).expect("readable");
        // The driver shows processors, which have no render node, to everyone.
        if text.lines().any(|line| line.starts_with("drm_render_minor ") && !line.ends_with(" 0")) {
            std::fs::remove_file(&properties).expect("removed");
            std::os::unix::fs::symlink(UNREADABLE, &properties).expect("linked");
        }
    }
}

#[tokio::test]
async fn full_gpus_that_the_compute_driver_hides_are_found_by_the_graphics_driver() {
    let world = machine("mi300x", "");
    let visible = world.scan_host().await;
    hide_all(&world);
    let state = world.scan_host().await;
    assert_eq!(state.resources()[&GPU.parse().expect("valid")], (8, 8));
    for id in ids(&visible) {
        let [before, current] = [&visible, &state].map(|state| device(&state.inventory, &id));
        assert_eq!(before.nodes, current.nodes);
        assert!(
            current.capacity.len() == 1 && current.place.xgmi.is_empty(),
            "{:?}",
            current.capacity
        );
    }
}

#[tokio::test]
async fn a_partitioned_gpu_that_the_compute_driver_hides_reports_that() {
    let world = machine("mi300x-cpx", "");
    hide_all(&world);
    let state = world.scan_host().await;
    let gpu = device(&state.inventory, &ids(&state)[0]);
    let health = gpu.health.to_string();
    assert!(health.contains("hides it from this process: run the agent privileged"), "{health}");
}

#[tokio::test]
async fn a_gpu_without_its_driver_keeps_its_id_and_recovers() {
    let world = machine("mi300x", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, GPU, 8).await;
    let id = ids(&agent.state.borrow())[0].clone();
    world.inject("unbind:0000:05:00.0");
    let state = agent.until_health(&id, "Unhealthy: driver not bound").await;
    assert_eq!(ids(&state).len(), 8, "the number from its driver is remembered");
    until_allocatable(&kubelet, GPU, 7).await;
    world.inject("bind:0000:05:00.0=amdgpu");
    agent.until_health(&id, "Healthy").await;
    until_allocatable(&kubelet, GPU, 8).await;
}

#[tokio::test]
async fn uncorrected_ecc_errors_and_excess_temperature_make_a_gpu_unhealthy() {
    let world = machine("mi300x", "");
    let agent = world.start_agent();
    let state = agent.until(|state| ids(state).len() == 8).await;
    let ids = ids(&state);
    let (first, second) = (&ids[0], &ids[1]);
    world.write("/sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count", "ue: 3\nce: 9\nde: 0\n");
    let expected = "Unhealthy: uncorrected ECC errors, 3 in block umc";
    agent.until_health(first, expected).await;
    let monitor = "/sys/bus/pci/devices/0000:26:00.0/hwmon/hwmon7";
    world.write(&format!("{monitor}/temp2_label"), "junction\n");
    world.write(&format!("{monitor}/temp2_crit"), "100000\n");
    world.write(&format!("{monitor}/temp2_input"), "104000\n");
    let expected = "Unhealthy: out of bounds, junction 104 °C, limit 100 °C";
    agent.until_health(second, expected).await;
}

#[tokio::test]
async fn whole_gpus_have_the_kernels_measurements_and_their_partitions_have_none() {
    let mut world = machine("mi300x-cpx", "");
    let agent = start_with_http(&mut world);
    let first = r#"index="0""#;
    for (metric, expected) in [
        ("windlass_device_memory_bytes", "206141652992"),
        ("windlass_device_utilization_ratio", "0.0"),
        ("windlass_device_temperature_celsius", "41"),
        ("windlass_device_memory_temperature_celsius", "33"),
        ("windlass_device_power_watts", "142.0"),
        ("windlass_device_power_limit_watts", "750.0"),
        ("windlass_device_clock_hertz", "132000000"),
        ("windlass_device_memory_clock_hertz", "900000000"),
        ("windlass_device_pcie_replays_total", "0"),
    ] {
        let lines = until_measured(&agent, metric, 8).await;
        let value = lines.iter().find(|line| line.contains(first)).expect(metric);
        assert!(value.ends_with(&format!(" {expected}")), "{value}");
        assert!(!lines.iter().any(|line| line.contains("parent=")), "{lines:?}");
    }
}

#[tokio::test]
async fn a_hanging_sensor_affects_only_the_measurements_of_its_gpu() {
    let mut world = machine("mi300x", "");
    let file = "/sys/bus/pci/devices/0000:05:00.0/gpu_busy_percent";
    world.block_reads(file);
    let agent = start_with_http(&mut world);
    let lines = until_measured(&agent, "windlass_device_power_watts", 7).await;
    let hanging = ids(&agent.state.borrow())[0].clone();
    assert!(!lines.iter().any(|line| line.contains(&hanging)), "{lines:?}");
    agent.until_health(&hanging, "Healthy").await;
    world.unblock_reads(file, "50");
    let lines = until_measured(&agent, "windlass_device_utilization_ratio", 8).await;
    let line = lines.iter().find(|line| line.contains(&hanging)).expect("it answers");
    assert!(line.ends_with(" 0.5"), "{line}");
}

#[tokio::test]
async fn a_gpu_that_does_not_answer_affects_no_other() {
    let world = machine("mi300x", "");
    let file = "/sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count";
    world.block_reads(file);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, GPU, 7).await;
    let hanging = ids(&agent.state.borrow())[0].clone();
    let state = agent.until_health(&hanging, "Unhealthy: not ready, it does not answer").await;
    assert_eq!(device(&state.inventory, &hanging).nodes.len(), 3);
    world.unblock_reads(file, "ue: 0\n");
    until_allocatable(&kubelet, GPU, 8).await;
}

#[tokio::test]
async fn a_pod_with_two_gpus_gets_the_compute_node_once_and_both_cards() {
    for config in ["", "deviceList: envvar"] {
        let world = machine("mi300x", config);
        let kubelet = world.start_kubelet();
        let _agent = world.start_agent();
        until_allocatable(&kubelet, GPU, 8).await;
        let admission = kubelet.admit(pod("p", GPU, 2)).await.expect("admitted");
        let grant = &admission.allocation("main", GPU).expect("allocated").run_options;
        let nodes = match config {
            "" => nodes_by_cdi(&world, &grant.cdi_devices),
            _ => grant.devices.iter().map(|node| node.container_path.clone()).collect(),
        };
        let count = |prefix: &str| nodes.iter().filter(|node| node.starts_with(prefix)).count();
        let counts = (count("/dev/kfd"), count("/dev/dri/card"), count("/dev/dri/renderD"));
        assert_eq!(counts, (1, 2, 2), "{config:?}: {nodes:?}");
    }
}

/// The nodes that documents give a container for these names, as a runtime merges them.
fn nodes_by_cdi(world: &Node, names: &[String]) -> Vec<String> {
    let document = world.config.places.cdi_dir.join("windlass.dev-amd.json");
    let text = std::fs::read_to_string(document).expect("a document");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let devices = document["devices"].as_array().expect("devices");
    let granted = devices.iter().filter(|device| {
        let name = format!("windlass.dev/amd={}", device["name"].as_str().expect("a name"));
        names.contains(&name)
    });
    let nodes =
        granted.flat_map(|it| it["containerEdits"]["deviceNodes"].as_array().expect("nodes"));
    let mut nodes: Vec<_> =
        nodes.map(|node| node["path"].as_str().expect("a path").to_owned()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[tokio::test]
async fn names_by_path_are_links_in_the_container_if_a_hook_can_create_them() {
    let world = machine("mi300x", "hooks: {program: /usr/bin/nvidia-cdi-hook}");
    world.write("/usr/bin/nvidia-cdi-hook", "");
    let agent = world.start_agent();
    // The document is on disk before the state is published.
    let resource = GPU.parse().expect("valid");
    agent.until(|state| state.resources().get(&resource) == Some(&(8, 8))).await;
    let document = world.config.places.cdi_dir.join("windlass.dev-amd.json");
    let written = std::fs::read_to_string(document).expect("a document");
    for link in ["../card8::/dev/dri/by-path/pci-0000:26:00.0-card", "renderD136::/dev/dri/by-path"]
    {
        assert!(written.contains(link), "{link} is not in {written}");
    }
}
