//! Found devices, their paths and names.

use std::{fs, os::unix::fs::symlink};

use windlass_machine::MachineProfile;
use windlass_testkit::{pod_with as pod, until_allocatable};

use super::{ACCELERATOR, STICK};
use crate::devices::world::{attribute, device, node, node_of, source};

#[tokio::test]
async fn a_pci_device_is_found_on_its_bus_with_its_location_and_nodes() {
    let config = r#"
sources:
- name: apex
  resource: example.com/apex
  find: {bus: pci}
  match: 'device.attributes["windlass.dev"].pciVendor == "1ac1"'
  attributes: {temperature: apex/apex_0/temp}
  give: {env: {APEX: "{pci} {name} {attr:temperature}"}}
"#;
    let world = node(ACCELERATOR, config);
    let state = world.scan_host().await;
    assert_eq!(source(&state, "apex"), "ready: 1 device");
    let apex = device(&state.inventory, "apex-0000-1b-00-0");
    for (name, expected) in [
        ("resource.kubernetes.io/pciBusID", "0000:1b:00.0"),
        ("resource.kubernetes.io/pcieRoot", "pci0000:15"),
        ("resource.kubernetes.io/numaNode", "1"),
        ("windlass.dev/pciDevice", "089a"),
        ("windlass.dev/driver", "apex"),
        ("windlass.dev/temperature", "41000"),
    ] {
        assert_eq!(attribute(apex, name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(apex.nodes.len(), 1);
    assert_eq!(apex.nodes[0].path.to_str(), Some("/dev/apex_0"));
    assert_eq!(apex.extras.env["APEX"], "0000:1b:00.0 0000:1b:00.0 41000");
    assert_eq!(apex.place.numa_node, Some(1));
}

#[tokio::test]
async fn a_stick_is_found_by_its_ids_its_class_and_its_node_under_one_serial_number() {
    let config = r#"
sources:
- {name: stick, find: {bus: usb}, match: 'device.attributes["windlass.dev"].usbVendor == "0403"'}
- {name: class, find: {class: tty}}
- {name: node, find: {nodes: ["/dev/ttyUSB*"]}}
"#;
    let world = node(STICK, config);
    let state = world.scan_host().await;
    for (id, name) in [
        ("stick-FT4X9", "1-4"),
        ("class-FT4X9-ttyUSB0", "ttyUSB0"),
        ("node-FT4X9-ttyUSB0", "ttyUSB0"),
    ] {
        let device = device(&state.inventory, id);
        let port = |node: &windlass_core::device::DeviceNode| node.path.ends_with("ttyUSB0");
        assert!(device.nodes.iter().any(port), "{id}: {:?}", device.nodes);
        assert_eq!(attribute(device, "windlass.dev/driver").as_deref(), Some("ftdi_sio"), "{id}");
        assert_eq!(attribute(device, "windlass.dev/name").as_deref(), Some(name), "{id}");
        assert_eq!(attribute(device, "windlass.dev/usbPort").as_deref(), Some("0000:00:14.0-0-4"));
        assert_eq!(device.place.pci, None, "the controller is not the device");
    }
}

/// A security key, which speaks by the protocol of keyboards.
const KEY: &str = r#"
- name: key
  folder: pci0000:00/0000:00:14.0/usb1/1-7
  bus: usb
  driver: usb
  uevent: {DEVTYPE: usb_device}
  files: {idVendor: "1050", idProduct: "0407", busnum: "1", devnum: "7"}
  children:
  - {folder: "1-7:1.0", bus: usb, driver: usbhid, files: {bInterfaceClass: "03"}}
  - {folder: "1-7:1.0/0003:1050:0407.0003", bus: hid, driver: hid-generic}
  - {folder: "1-7:1.0/0003:1050:0407.0003/hidraw/hidraw0", class: hidraw, number: "240:0", node: hidraw0}
"#;

#[tokio::test]
async fn a_node_on_a_bus_below_usb_belongs_to_the_usb_device() {
    let config = r#"
sources:
- {name: node, find: {nodes: ["/dev/hidraw*"]}}
- {name: bus, find: {bus: hid}, match: 'device.attributes["windlass.dev"].driver == "hid-generic"'}
"#;
    let world = node(KEY, config);
    let state = world.scan_host().await;
    for id in ["node-0000-00-14-0-0-7-hidraw0", "bus-0000-00-14-0-0-7-hid0"] {
        let key = device(&state.inventory, id);
        assert_eq!(attribute(key, "windlass.dev/usbVendor").as_deref(), Some("1050"), "{id}");
    }
}

#[tokio::test]
async fn files_and_endpoints_are_devices_without_nodes() {
    let config = r#"
sources:
- name: darwin3
  resource: zj.com/darwin3
  find: {files: /etc/darwin3}
  give: {found: none, env: {Darwin3: "{name}", BOARD: "{endpoint}", FIRMWARE: "{attr:firmware}"}}
- {name: board, find: {endpoints: ["10.0.0.7:6001", "10.0.0.8"]}, give: {env: {HOST: "{host}"}}}
"#;
    let world = node("", config);
    world.write("/etc/darwin3/board0", "endpoint: 10.0.0.9:6001\nfirmware: v4\nnuma: 1\n");
    world.write("/etc/darwin3/board1", "anything at all: [");
    world.write("/etc/darwin3/.hidden", "");
    world.write("/etc/darwin3/folder/inside", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "zj.com/darwin3", 2).await;
    let state = agent.until_health("darwin3-board0", "Healthy").await;
    let board = device(&state.inventory, "darwin3-board0");
    assert_eq!(board.place.numa_node, Some(1));
    let admission = kubelet.admit(pod("p", "zj.com/darwin3", 2)).await.expect("admitted");
    let envs = &admission.allocation("main", "zj.com/darwin3").expect("allocated").run_options.envs;
    assert_eq!(envs["Darwin3"], "board0,board1");
    assert_eq!(envs["BOARD"], "10.0.0.9:6001", "a board without an address adds nothing");
    let first = device(&state.inventory, "board-10.0.0.7-6001");
    assert_eq!(first.extras.env["HOST"], "10.0.0.7");
    assert_eq!(source(&state, "board"), "ready: 2 devices");
}

#[tokio::test]
async fn nodes_are_grouped_singly_all_together_or_by_pattern() {
    let devices: String = ["tx0", "tx1", "rx0", "rx1"].iter().enumerate().map(channel).collect();
    let config = r#"
sources:
- {name: each, find: {nodes: "/dev/dma_*"}}
- {name: all, find: {nodes: "/dev/dma_*"}, unit: all}
- {name: pair, find: {nodes: ["/dev/dma_tx*", "/dev/dma_rx*"]}, unit: zipped}
"#;
    let world = node(&devices, config);
    let inventory = world.scan_host().await.inventory;
    let nodes = |id: &str| {
        let nodes = device(&inventory, id).nodes.iter();
        nodes.map(|node| node.path.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(nodes("each-dma_tx1"), "/dev/dma_tx1");
    assert_eq!(nodes("all-all"), "/dev/dma_rx0 /dev/dma_rx1 /dev/dma_tx0 /dev/dma_tx1");
    assert_eq!(nodes("pair-dma_tx0"), "/dev/dma_tx0 /dev/dma_rx0");
    assert_eq!(nodes("pair-dma_tx1"), "/dev/dma_tx1 /dev/dma_rx1");
}

/// A sound card, and a receiver for television with two nodes.
const FOLDERS: &str = r#"
- name: sound
  folder: virtual/sound
  children:
  - {folder: controlC0, class: sound, number: "116:0", node: snd/controlC0}
  - {folder: pcmC0D0c, class: sound, number: "116:1", node: snd/pcmC0D0c}
- name: tv
  folder: virtual/dvb
  children:
  - {folder: dvb0.demux0, class: dvb, number: "212:0", node: dvb/adapter0/demux0}
  - {folder: dvb0.frontend0, class: dvb, number: "212:1", node: dvb/adapter0/frontend0}
"#;

#[tokio::test]
async fn a_folder_is_one_device_of_all_nodes_in_it_and_a_link_keeps_its_name() {
    let config = r#"
sources:
- {name: sound, find: {nodes: /dev/snd}}
- {name: tv, resourceDomain: example.com, find: {nodes: "/dev/dvb/*"}}
- name: tuned
  find: {nodes: /dev/tuner}
  give: {found: none, nodes: [{path: "{path}", as: /dev/x/}], env: {TUNER: "{node}"}}
- {name: empty, find: {nodes: [/dev/empty, /dev/mqueue]}}
- {name: input, resourceDomain: example.com, find: {nodes: /dev/input}}
"#;
    let world = node(FOLDERS, config);
    world.write("/dev/empty/folder/.keep", "");
    fs::remove_file(world.host_path("/dev/empty/folder/.keep")).expect("removed");
    world.write("/dev/mqueue/of-others", "");
    world.write("/dev/input/event0", "");
    symlink("controlC0", world.host_path("/dev/snd/by-id")).expect("linked");
    symlink("dvb/adapter0/demux0", world.host_path("/dev/tuner")).expect("linked");
    let state = world.scan_host().await;
    let nodes = |id: &str| {
        let nodes = device(&state.inventory, id).nodes.iter();
        nodes.map(|node| node.container_path().display().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(nodes("sound-snd"), "/dev/snd/controlC0 /dev/snd/pcmC0D0c");
    assert_eq!(nodes("tv-dvb-adapter0"), "/dev/dvb/adapter0/demux0 /dev/dvb/adapter0/frontend0");
    assert_eq!(nodes("tuned-dvb-adapter0-demux0"), "/dev/x/tuner");
    let tuned = device(&state.inventory, "tuned-dvb-adapter0-demux0");
    assert_eq!(tuned.extras.env["TUNER"], "/dev/x/tuner");
    assert_eq!(source(&state, "empty"), "absent: nothing matches");
    let resource = |id: &str| state.device_offers()[id].resource.as_ref().map(ToString::to_string);
    assert_eq!(resource("tv-dvb-adapter0").as_deref(), Some("example.com/dvb_adapter0"));
    assert_eq!(resource("input-input").as_deref(), Some("example.com/input"), "also with one node");
}

#[tokio::test]
async fn a_node_with_several_links_is_found_by_its_own_name() {
    let world = node(FOLDERS, "sources:\n- {name: clock, find: {nodes: '/dev/rtc*'}}\n");
    world.write("/dev/rtc0", "");
    symlink("rtc0", world.host_path("/dev/rtc")).expect("linked");
    let inventory = world.scan_host().await.inventory;
    let nodes = &device(&inventory, "clock-rtc0").nodes;
    assert_eq!((nodes.len(), nodes[0].container_path().to_str()), (1, Some("/dev/rtc0")));
}

#[tokio::test]
async fn a_missing_node_leaves_one_device_incomplete_and_affects_no_other() {
    let devices: String = ["tx0", "tx1", "rx1"].iter().enumerate().map(channel).collect();
    let config = r#"
sources:
- {name: pair, find: {nodes: ["/dev/dma_tx*", "/dev/dma_rx*"]}, unit: zipped}
"#;
    let inventory = node(&devices, config).scan_host().await.inventory;
    let health = |id: &str| device(&inventory, id).health.to_string();
    let missing = "Unhealthy: device node missing, /dev/dma_rx0 is not there";
    assert!(health("pair-dma_tx0").starts_with(missing), "{}", health("pair-dma_tx0"));
    assert!(device(&inventory, "pair-dma_tx1").health.is_healthy());
}

fn channel((number, name): (usize, &&str)) -> String {
    format!(
        "- {{name: {name}, folder: virtual/misc/dma_{name}, class: misc, number: \"10:{number}\", \
         node: dma_{name}}}\n"
    )
}

#[tokio::test]
async fn a_container_gets_the_edits_of_the_templates_and_a_device_waits_for_required_paths() {
    let config = r#"
sources:
- name: apex
  resource: example.com/apex
  find: {class: apex}
  give:
    found: r
    nodes:
    - {path: "/dev/helper_{attr:pciDevice}", as: /dev/helper/, access: rw}
    - {path: /dev/none, optional: true}
    mounts: [{host: "/opt/{driver}", container: /firmware}]
    env: {"APEX_{position}": "{node}", LACKING: "{serial}"}
"#;
    let mut world = node(ACCELERATOR, config);
    world.config.policy.delivery.strategies = [windlass_config::DeviceListStrategy::Envvar].into();
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let missing = "Unhealthy: device node missing, /dev/helper_089a is not there";
    agent.until_health("apex-0000-1b-00-0-apex_0", missing).await;
    world.write("/dev/helper_089a", "");
    agent
        .until_health("apex-0000-1b-00-0-apex_0", "Unhealthy: not ready, /opt/apex is not there")
        .await;
    world.write("/opt/apex/firmware.bin", "");
    until_allocatable(&kubelet, "example.com/apex", 1).await;
    let admission = kubelet.admit(pod("p", "example.com/apex", 1)).await.expect("admitted");
    let grant = &admission.allocation("main", "example.com/apex").expect("allocated").run_options;
    assert_eq!(grant.envs["APEX_0"], "/dev/apex_0");
    assert!(!grant.envs.contains_key("LACKING"), "{:?}", grant.envs);
    let nodes: Vec<_> = grant
        .devices
        .iter()
        .map(|it| (it.container_path.as_str(), it.permissions.as_str()))
        .collect();
    assert_eq!(nodes, [("/dev/apex_0", "r"), ("/dev/helper/helper_089a", "rw")]);
    assert_eq!(grant.mounts[0].container_path, "/firmware");
    assert_eq!(format!("{:?}", grant.mounts[0].access), "ReadOnly");
}

#[tokio::test]
async fn virtual_and_physical_functions_are_distinguished() {
    let config = r#"
sources:
- name: whole
  find: {bus: pci}
  match: >-
    !device.attributes["windlass.dev"].isSriovVf && device.attributes["windlass.dev"].sriovVfs == 3
- name: part
  find: {bus: pci}
  match: device.attributes["windlass.dev"].pfPciAddress == "0000:17:00.0"
"#;
    let world = node_of(&MachineProfile::named("rdma").expect("a shipped profile"), config);
    let state = world.scan_host().await;
    let ids = state.inventory.devices.iter().map(|device| device.id.as_str());
    let ids: Vec<_> = ids.filter(|id| !id.starts_with("nic-")).collect();
    let expected =
        ["part-0000-17-00-2", "part-0000-17-00-3", "part-0000-17-00-4", "whole-0000-17-00-0"];
    assert_eq!(ids, expected);
}
