//! Converted configurations of other plugins on simulated machines: the resources and their devices.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use windlass_config::to_yaml;
use windlass_machine::MachineProfile;
use windlass_migrate::{NvidiaPluginFlags, parse};
use windlass_resources::NodeState;
use windlass_testkit::{pod_with as pod, until_allocatable};

use crate::devices::world::{node, node_of};

/// Output of `windlass config convert` for a file.
fn converted(text: &str) -> String {
    let loaded = parse(Path::new("plugin.conf"), text, &NvidiaPluginFlags::default());
    to_yaml(&loaded.unwrap_or_else(|error| panic!("{error}")).config)
}

/// The allocatable devices of each resource.
async fn offered(profile: &str, text: &str) -> BTreeMap<String, Vec<String>> {
    let profile = MachineProfile::named(profile).expect("a shipped profile");
    offered_by(&node_of(&profile, &converted(text)).scan_host().await)
}

fn offered_by(state: &NodeState) -> BTreeMap<String, Vec<String>> {
    let mut offered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, offer) in state.device_offers() {
        if let (Some(resource), None) = (&offer.resource, &offer.obstacle) {
            offered.entry(resource.to_string()).or_default().push(id.to_string());
        }
    }
    offered
}

fn expected(resources: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let devices = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    resources.iter().map(|(name, ids)| ((*name).to_owned(), devices(ids))).collect()
}

#[tokio::test]
async fn the_pools_of_rdma_shared_dev_plugin_have_the_same_interfaces() {
    let text = r#"{"configList": [
        {"resourceName": "ib", "rdmaHcaMax": 8, "selectors": {"linkTypes": ["infiniband"]}},
        {"resourceName": "roce", "rdmaHcaMax": 8, "selectors": {
            "vendors": ["15b3"], "deviceIDs": ["101d", "101e"], "drivers": ["mlx5_core"],
            "ifNames": ["ens1f1np1", "ens1f0v0"]}},
        {"resourceName": "admin", "rdmaHcaMax": 8, "devices": ["eno3"]}
    ]}"#;
    let actual = offered("rdma", text).await;
    let pools = [
        ("rdma/ib", &["nic-0000-ca-00-0"][..]),
        ("rdma/roce", &["nic-0000-17-00-1", "nic-0000-17-00-2"]),
    ];
    assert_eq!(actual, expected(&pools), "an interface without RDMA is in no pool");
}

#[tokio::test]
async fn the_selectors_of_sriov_network_device_plugin_select_the_same_functions() {
    let text = r#"{"resourceList": [
        {"resourceName": "dpdk", "selectors": {"drivers": ["vfio-pci"], "pfNames": ["ens1f0np0#0-1"]}},
        {"resourceName": "vdpa", "selectors": {"vdpaType": "vhost"}},
        {"resourceName": "sf", "deviceType": "auxNetDevice", "selectors": {
            "auxTypes": ["sf"], "pfNames": ["ens1f0np0#80-90"], "rootDevices": ["0000:17:00.0"]}},
        {"resourceName": "rdma", "selectors": [
            {"rootDevices": ["0000:17:00.0#0,2-7"], "isRdma": true},
            {"pciAddresses": ["0000:CA:00.0"], "linkTypes": ["infiniband"]}
        ]},
        {"resourceName": "rest", "resourcePrefix": "lab.example", "selectors": {"vendors": ["15b3"]}}
    ]}"#;
    let actual = offered("rdma", text).await;
    let resources = [
        ("intel.com/dpdk", &["0000:17:00.3"][..]),
        ("intel.com/rdma", &["0000:17:00.2", "0000:ca:00.0"]),
        ("intel.com/sf", &["mlx5_core.sf.4"]),
        ("intel.com/vdpa", &["0000:17:00.4"]),
        ("lab.example/rest", &["0000:17:00.1"]),
    ];
    assert_eq!(
        actual,
        expected(&resources),
        "a physical function with virtual ones is in no resource"
    );
}

#[tokio::test]
async fn functions_are_selected_by_the_index_of_the_firmware() {
    let text = r#"{"resourceList": [
        {"resourceName": "onboard", "selectors": {"acpiIndexes": ["7"]}},
        {"resourceName": "other", "deviceType": "auxNetDevice", "selectors": {
            "auxTypes": ["sf"], "pfNames": ["ens1f0np0#0-4"]}}
    ]}"#;
    let profile = MachineProfile::named("rdma").expect("a shipped profile");
    let world = node_of(&profile, &converted(text));
    world.write("/sys/bus/pci/devices/0000:ca:00.0/acpi_index", "7\n");
    let actual = offered_by(&world.scan_host().await);
    let reason = "subfunction 88 is none of 0 to 4, though it is number 4 on its bus";
    assert_eq!(actual, expected(&[("intel.com/onboard", &["0000:ca:00.0"][..])]), "{reason}");
}

/// A camera of two nodes, a sound card of two, a modem with a disk in it, and a clock.
const NODES: &str = r#"
- name: camera
  folder: pci0000:00/0000:00:14.0/usb1/1-4
  bus: usb
  driver: usb
  uevent: {DEVTYPE: usb_device}
  files: {idVendor: "046d", idProduct: "0825", serial: C1, busnum: "1", devnum: "4"}
  children:
  - {folder: "1-4:1.0/video4linux/video0", class: video4linux, number: "81:0", node: video0}
  - {folder: "1-4:1.0/video4linux/video1", class: video4linux, number: "81:1", node: video1}
- name: sound
  folder: virtual/sound
  children:
  - {folder: controlC0, class: sound, number: "116:0", node: snd/controlC0}
  - {folder: pcmC0D0c, class: sound, number: "116:1", node: snd/pcmC0D0c}
- name: stick
  folder: pci0000:00/0000:00:14.0/usb1/1-5
  bus: usb
  driver: usb
  uevent: {DEVTYPE: usb_device}
  files: {idVendor: "12d1", idProduct: "14fe", busnum: "1", devnum: "5"}
  children:
  - {folder: "1-5:1.0/ttyUSB0", bus: usb-serial, driver: option}
  - {folder: "1-5:1.0/ttyUSB0/tty/ttyUSB0", class: tty, number: "188:0", node: ttyUSB0}
  - {folder: "1-5:1.1/host2/block/sda", class: block, number: "8:0", node: sda}
- name: clock
  folder: virtual/rtc
  children:
  - {folder: rtc0, class: rtc, number: "252:0", node: rtc0}
"#;

#[tokio::test]
async fn each_node_is_a_separate_resource_as_with_smarter_device_manager() {
    let text = "
- {devicematch: '^video[0-9]*$', nummaxdevices: 3}
- {devicematch: '^snd$', nummaxdevices: 1}
- {devicematch: '^rtc0$', nummaxdevices: 1}
- {devicematch: '^absent$', nummaxdevices: 1}
";
    let world = node(NODES, &converted(text));
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    for (resource, count) in [("video0", 3), ("video1", 3), ("snd", 1), ("rtc0", 1)] {
        until_allocatable(&kubelet, &format!("smarter-devices/{resource}"), count).await;
    }
    let admission = kubelet.admit(pod("p", "smarter-devices/video1", 1)).await.expect("admitted");
    let allocation = admission.allocation("main", "smarter-devices/video1").expect("allocated");
    assert_eq!(allocation.ids().len(), 1);
}

#[tokio::test]
async fn groups_of_generic_device_plugin_are_devices_with_all_their_nodes() {
    let text = r#"
devices:
- name: capture
  groups: [{paths: [{path: /dev/snd/pcmC0D0c}, {path: /dev/snd/controlC0, mountPath: /dev/control}]}]
- name: camera
  groups: [{usb: [{vendor: "046D", product: "0825"}]}]
- name: modem
  groups: [{usb: [{vendor: "12d1", product: 14fe}]}]
- name: clock
  groups: [{count: 5, paths: [{path: "/dev/rtc*", mountPath: /dev/clocks/}]}]
"#;
    for (name, count, expected) in [
        (
            "capture",
            1,
            &[("/dev/snd/controlC0", "/dev/control"), ("/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0c")][..],
        ),
        ("camera", 1, &[("/dev/bus/usb/001/004", "/dev/bus/usb/001/004")]),
        ("modem", 1, &[("/dev/bus/usb/001/005", "/dev/bus/usb/001/005")]),
        ("clock", 5, &[("/dev/rtc0", "/dev/clocks/rtc0")]),
    ] {
        assert_eq!(granted_nodes(NODES, text, name, count).await, pairs(expected), "{name}");
    }
}

#[tokio::test]
async fn a_link_keeps_its_name_and_a_folder_its_content_as_with_generic_device_plugin() {
    let text = r#"
devices:
- name: zigbee
  groups: [{paths: [{path: /dev/zigbee}]}]
- name: any
  groups: [{paths: [{path: "/dev/serial/by-id/*", mountPath: /dev/any/}]}]
- name: sound
  groups: [{paths: [{path: /dev/snd, mountPath: /dev/sound}]}]
- name: bus
  groups: [{paths: [{path: "/dev/bus/usb/*"}]}]
"#;
    for (name, expected) in [
        ("zigbee", &[("/dev/ttyUSB0", "/dev/zigbee")][..]),
        ("any", &[("/dev/ttyUSB0", "/dev/any/usb-modem")]),
        (
            "sound",
            &[
                ("/dev/snd/controlC0", "/dev/sound/controlC0"),
                ("/dev/snd/pcmC0D0c", "/dev/sound/pcmC0D0c"),
            ],
        ),
        (
            "bus",
            &[
                ("/dev/bus/usb/001/001", "/dev/bus/usb/001/001"),
                ("/dev/bus/usb/001/004", "/dev/bus/usb/001/004"),
                ("/dev/bus/usb/001/005", "/dev/bus/usb/001/005"),
            ],
        ),
    ] {
        // One at a time: a node has one owner.
        let single = text.split("- name: ").find(|part| part.starts_with(name)).expect("named");
        let single = format!("devices:\n- name: {single}");
        assert_eq!(granted_nodes(NODES, &single, name, 1).await, pairs(expected), "{name}");
    }
}

fn pairs(nodes: &[(&str, &str)]) -> Vec<(String, String)> {
    nodes.iter().map(|(host, inside)| ((*host).to_owned(), (*inside).to_owned())).collect()
}

/// The nodes that a pod gets with one device of a name, on the host and in the container.
async fn granted_nodes(
    machine: &str,
    text: &str,
    name: &str,
    count: usize,
) -> Vec<(String, String)> {
    let world = node(machine, &format!("deviceList: envvar\n{}", converted(text)));
    world.write("/dev/serial/by-id/.keep", "");
    for (link, target) in
        [("/dev/zigbee", "ttyUSB0"), ("/dev/serial/by-id/usb-modem", "../../ttyUSB0")]
    {
        symlink(target, world.host_path(link)).expect("linked");
    }
    fs::remove_file(world.host_path("/dev/serial/by-id/.keep")).expect("removed");
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    let resource = format!("squat.ai/{name}");
    until_allocatable(&kubelet, &resource, count).await;
    let admission = kubelet.admit(pod(name, &resource, 1)).await.expect("admitted");
    let grant = &admission.allocation("main", &resource).expect("allocated").run_options;
    let root = world.config.places.host_root.to_str().expect("text");
    let dev = |path: &str| path.trim_start_matches(root).to_owned();
    let nodes = grant.devices.iter();
    let mut granted_nodes: Vec<_> =
        nodes.map(|node| (dev(&node.host_path), node.container_path.clone())).collect();
    granted_nodes.sort();
    granted_nodes
}

#[tokio::test]
async fn rules_of_udev_find_the_devices_that_they_match() {
    let text = r#"
# Instruments
SUBSYSTEM=="usb", ATTR{idVendor}=="046d", ATTR{serial}=="C*"
SUBSYSTEM=="tty", KERNEL=="ttyUSB[0-9]", ATTRS{idVendor}=="12d1", ATTRS{idProduct}=="14fe"
SUBSYSTEM=="tty", ATTRS{idVendor}=="0403"
"#;
    let world = node(NODES, &format!("deviceList: envvar\n{}", converted(text)));
    let actual = offered_by(&world.scan_host().await);
    let resources = [
        ("windlass.dev/usb", &["usb-C1"][..]),
        ("windlass.dev/tty", &["tty-0000-00-14-0-0-5-ttyUSB0"]),
    ];
    assert_eq!(actual, expected(&resources));
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "windlass.dev/tty", 1).await;
    let admission = kubelet.admit(pod("p", "windlass.dev/tty", 1)).await.expect("admitted");
    let grant = &admission.allocation("main", "windlass.dev/tty").expect("allocated").run_options;
    let nodes: Vec<_> = grant.devices.iter().map(|node| node.container_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/ttyUSB0"], "the port, and not the node of the bus");
}

/// A board under `vfio-pci`, one whose driver makes no node, and an Ethernet port, of class 2.
const BOARDS: &str = r#"
- name: fec
  pci: {path: "pci0000:15/0000:15:01.0/0000:1b:00.0", id: "8086:0d5d", class: 0x120000, group: 12}
  driver: vfio-pci
- name: crypto
  pci: {path: "pci0000:15/0000:15:02.0/0000:1c:00.0", id: "8086:4941", class: 0x120000}
  driver: 4xxx
"#;

#[tokio::test]
async fn accelerators_of_sriov_network_device_plugin_are_offered_with_nodes_and_without() {
    let text = r#"{"resourceList": [
        {"resourceName": "fec", "deviceType": "accelerator", "selectors": {"devices": ["0d5d"]}},
        {"resourceName": "qat", "deviceType": "accelerator", "selectors": {"drivers": ["4xxx"]}}
    ]}"#;
    let actual = offered_by(&node(BOARDS, &converted(text)).scan_host().await);
    let resources =
        [("intel.com/fec", &["fec-0000-1b-00-0"][..]), ("intel.com/qat", &["qat-0000-1c-00-0"])];
    assert_eq!(actual, expected(&resources));
    let world = node(BOARDS, &converted(text));
    let agent = world.start_agent();
    agent.until_health("qat-0000-1c-00-0", "Healthy").await;
    agent.until_health("fec-0000-1b-00-0", "Healthy").await;
}

#[tokio::test]
async fn nodes_of_rdma_are_granted_if_a_selector_of_sriov_network_device_plugin_requests_them() {
    let text = r#"{"resourceList": [
        {"resourceName": "vf", "selectors": {"drivers": ["mlx5_core"], "pfNames": ["ENS1F0NP0"]}}
    ]}"#;
    let profile = MachineProfile::named("rdma").expect("a shipped profile");
    let machine = |text: &str| {
        let world = node_of(&profile, &format!("deviceList: envvar\n{}", converted(text)));
        for node in ["rdma_cm", "umad6", "umad8"] {
            let _ = fs::remove_file(world.host_path(&format!("/dev/infiniband/{node}")));
        }
        world
    };
    let world = machine(text);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "intel.com/vf", 2).await;
    let admission = kubelet.admit(pod("p", "intel.com/vf", 2)).await.expect("admitted");
    let grant = &admission.allocation("main", "intel.com/vf").expect("allocated").run_options;
    let nodes = |grant: &windlass_kubelet_sim::RunContainerOptions| {
        let paths = grant.devices.iter().map(|node| node.container_path.clone());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(nodes(grant), ["/dev/vhost-vdpa-0"]);
    let expected = concat!(
        r#"{"0000:17:00.2":{"generic":{"deviceID":"0000:17:00.2"}},"#,
        r#""0000:17:00.4":{"generic":{"deviceID":"0000:17:00.4"},"vdpa":{"mount":"/dev/vhost-vdpa-0"}}}"#,
    );
    assert_eq!(grant.envs["PCIDEVICE_INTEL_COM_VF_INFO"], expected);

    let requesting =
        text.replace("\"drivers\"", "\"isRdma\": true, \"needVhostNet\": true, \"drivers\"");
    let world = machine(&requesting);
    let _ = fs::remove_file(world.host_path("/dev/vhost-net"));
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "intel.com/vf", 2).await;
    let admission = kubelet.admit(pod("p", "intel.com/vf", 2)).await.expect("admitted");
    let grant = &admission.allocation("main", "intel.com/vf").expect("allocated").run_options;
    let granted_nodes = nodes(grant);
    assert!(granted_nodes.contains(&"/dev/infiniband/uverbs6".to_owned()), "{granted_nodes:?}");
    assert!(
        !granted_nodes.iter().any(|path| path.contains("rdma_cm") || path.contains("vhost-net"))
    );
}
