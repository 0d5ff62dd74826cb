//! Intel's GPUs: their discovery, virtual functions, and the name of the render node.

use windlass_machine::MachineProfile;
use windlass_testkit::{Node, pod_with as pod, until_allocatable};

use crate::devices::{
    golden,
    world::{device, node, node_of, start_with_http, until_measured, until_metric},
};

const GPU: &str = "gpu.intel.com/xe";

fn machine(config: &str) -> Node {
    node_of(&MachineProfile::named("flex-170").expect("a shipped profile"), config)
}

#[tokio::test]
async fn a_function_with_virtual_functions_is_not_offered_beside_them() {
    let state = machine("").scan_host().await;
    insta::assert_snapshot!("flex_170", golden::devices(&state, "intel"));
}

#[tokio::test]
async fn a_gpu_that_gets_virtual_functions_is_withheld() {
    let world = machine("");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, GPU, 5).await;
    world.inject("set:flex0:sriov_numvfs=3");
    let id = "intel-0000-3a-00-0";
    agent.until(|state| device(&state.inventory, id).withheld.is_some()).await;
    until_allocatable(&kubelet, GPU, 4).await;
    world.inject("set:flex0:sriov_numvfs=0");
    until_allocatable(&kubelet, GPU, 5).await;
}

#[tokio::test]
async fn a_gpu_that_is_unbound_off_the_bus_or_too_hot_is_unhealthy() {
    let world = machine("");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.devices.len() == 6).await;
    for (fault, id, expected) in [
        ("unbind:flex0", "intel-0000-3a-00-0", "Unhealthy: driver not bound, it has no driver"),
        ("set:flex1:power_state=error", "intel-0000-4b-00-0", "Unhealthy: lost"),
        (
            "set:flex2:hwmon/hwmon2/temp2_input=106000",
            "intel-0000-aa-00-0",
            "Unhealthy: out of bounds, 106 °C, limit 105 °C",
        ),
    ] {
        world.inject(fault);
        agent.until_health(id, expected).await;
    }
}

#[tokio::test]
async fn a_card_has_the_measurements_of_its_driver_and_a_virtual_function_has_none() {
    let mut world = machine("");
    let agent = start_with_http(&mut world);
    for (metric, expected) in [
        ("windlass_device_memory_bytes", "17179869184"),
        ("windlass_device_temperature_celsius", "42"),
        ("windlass_device_power_limit_watts", "150.0"),
        ("windlass_device_energy_joules_total", "86400.0"),
        ("windlass_device_clock_hertz", "600000000"),
    ] {
        let lines = until_measured(&agent, metric, 4).await;
        assert!(lines.iter().all(|line| line.ends_with(&format!(" {expected}"))), "{lines:?}");
    }
    world.inject("set:flex0:hwmon/hwmon0/temp2_input=55000");
    let is_warm = |lines: &[String]| lines.iter().any(|line| line.ends_with(" 55"));
    until_metric(&agent, "windlass_device_temperature_celsius", is_warm).await;
}

#[tokio::test]
async fn a_render_node_has_the_name_that_programs_expect() {
    let world = machine("{intel: {renderAs128: true}, deviceList: envvar}");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, GPU, 5).await;
    let state = agent.state.borrow().clone();
    let second = device(&state.inventory, "intel-0000-4b-00-0");
    let paths: Vec<_> =
        second.nodes.iter().map(|node| node.container_path().display().to_string()).collect();
    assert_eq!(paths, ["/dev/dri/card1", "/dev/dri/renderD128"]);
    let admission = kubelet.admit(pod("one", GPU, 1)).await.expect("admitted");
    let grant = &admission.allocation("main", GPU).expect("allocated").run_options;
    let paths: Vec<_> = grant.devices.iter().map(|node| node.container_path.as_str()).collect();
    assert!(paths.contains(&"/dev/dri/renderD128"), "{paths:?}");
    let rejection = kubelet.admit(pod("two", GPU, 2)).await.expect_err("there is one such name");
    assert!(rejection.to_string().contains("would both be /dev/dri/renderD128"), "{rejection}");
}

#[tokio::test]
async fn integrated_graphics_and_cards_are_distinguished() {
    let world = node(
        r#"
- name: igpu
  pci: {path: "pci0000:00/0000:00:02.0", id: "8086:a780", class: 0x030000}
  driver: i915
  children:
  - {folder: drm/card0, class: drm, number: "226:0", node: dri/card0}
  - {folder: drm/controlD64, class: drm, number: "226:64", node: dri/controlD64}
  - {folder: drm/renderD128, class: drm, number: "226:128", node: dri/renderD128}
- name: dg1
  pci: {path: "pci0000:00/0000:00:01.0/0000:03:00.0", id: "8086:4905", class: 0x038000}
  driver: i915
  children:
  - folder: drm/card1
    class: drm
    number: "226:1"
    node: dri/card1
    files: {lmem_total_bytes: "4294967296"}
  - {folder: drm/renderD129, class: drm, number: "226:129", node: dri/renderD129}
- name: passed
  pci: {path: "pci0000:00/0000:00:03.0/0000:04:00.0", id: "8086:56a0", class: 0x030000}
  driver: vfio-pci
- name: in-a-virtual-machine
  pci: {path: "pci0000:00/0000:00:05.0", id: "8086:56c0", class: 0x038000}
  driver: vfio-pci
"#,
        "",
    );
    insta::assert_snapshot!(
        "processor_and_card",
        golden::devices(&world.scan_host().await, "intel")
    );
}
