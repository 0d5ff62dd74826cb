//! Configurations of other plugins, converted, on simulated machines: what is offered of which devices.

use std::{collections::BTreeMap, path::Path};

use windlass_machine::Profile;
use windlass_node::{
    config::{PeerFlags, parse, to_yaml},
    state::NodeState,
};

use crate::world::{World, allocatable, pod};

/// What `windlass config convert` makes of a file.
fn converted(text: &str) -> String {
    let loaded = parse(Path::new("plugin.conf"), text, &PeerFlags::default());
    to_yaml(&loaded.unwrap_or_else(|error| panic!("{error}")).config)
}

/// The devices of each resource that may be handed out.
async fn offered(profile: &str, text: &str) -> BTreeMap<String, Vec<String>> {
    let profile = Profile::named(profile).expect("a shipped profile");
    of(&World::of(&profile, &converted(text)).survey().await)
}

fn of(state: &NodeState) -> BTreeMap<String, Vec<String>> {
    let mut offered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, offering) in state.offerings() {
        if let (Some(resource), None) = (&offering.resource, &offering.obstacle) {
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
async fn the_pools_of_rdma_shared_dev_plugin_are_of_the_same_interfaces() {
    let text = r#"{"configList": [
        {"resourceName": "ib", "rdmaHcaMax": 8, "selectors": {"linkTypes": ["infiniband"]}},
        {"resourceName": "roce", "rdmaHcaMax": 8, "selectors": {
            "vendors": ["15b3"], "deviceIDs": ["101d", "101e"], "drivers": ["mlx5_core"],
            "ifNames": ["ens1f1np1", "ens1f0v0"]}},
        {"resourceName": "admin", "rdmaHcaMax": 8, "devices": ["eno3"]}
    ]}"#;
    let found = offered("rdma", text).await;
    let pools = [
        ("rdma/ib", &["nic-0000-ca-00-0"][..]),
        ("rdma/roce", &["nic-0000-17-00-1", "nic-0000-17-00-2"]),
    ];
    assert_eq!(found, expected(&pools), "an interface without RDMA is in no pool");
}

#[tokio::test]
async fn the_selectors_of_sriov_network_device_plugin_pick_the_same_functions() {
    let text = r#"{"resourceList": [
        {"resourceName": "dpdk", "selectors": {"drivers": ["vfio-pci"], "pfNames": ["ens1f0np0#0-1"]}},
        {"resourceName": "vdpa", "selectors": {"vdpaType": "vhost"}},
        {"resourceName": "sf", "deviceType": "auxNetDevice", "selectors": {"auxTypes": ["sf"]}},
        {"resourceName": "rdma", "selectors": [
            {"rootDevices": ["0000:17:00.0#0,2-7"], "isRdma": true},
            {"pciAddresses": ["0000:CA:00.0"], "linkTypes": ["infiniband"]}
        ]},
        {"resourceName": "rest", "resourcePrefix": "lab.example", "selectors": {"vendors": ["15b3"]}}
    ]}"#;
    let found = offered("rdma", text).await;
    let resources = [
        ("intel.com/dpdk", &["0000:17:00.3"][..]),
        ("intel.com/rdma", &["0000:17:00.2", "0000:ca:00.0"]),
        ("intel.com/sf", &["mlx5_core.sf.4"]),
        ("intel.com/vdpa", &["0000:17:00.4"]),
        ("lab.example/rest", &["0000:17:00.1"]),
    ];
    assert_eq!(found, expected(&resources), "a physical function that is cut is in no resource");
}

/// Two cameras, a sound card of two nodes, and a clock.
const NODES: &str = r#"
- name: camera
  folder: pci0000:00/0000:00:14.0/usb1/1-4
  bus: usb
  driver: usb
  uevent: {DEVTYPE: usb_device}
  files: {idVendor: "046d", idProduct: "0825", serial: C1}
  children:
  - {folder: "1-4:1.0/video4linux/video0", class: video4linux, number: "81:0", node: video0}
  - {folder: "1-4:1.0/video4linux/video1", class: video4linux, number: "81:1", node: video1}
- name: sound
  folder: virtual/sound
  children:
  - {folder: controlC0, class: sound, number: "116:0", node: snd/controlC0}
  - {folder: pcmC0D0c, class: sound, number: "116:1", node: snd/pcmC0D0c}
- name: clock
  folder: virtual/rtc
  children:
  - {folder: rtc0, class: rtc, number: "252:0", node: rtc0}
"#;

#[tokio::test]
async fn each_node_is_a_resource_of_its_own_as_with_smarter_device_manager() {
    let text = "
- {devicematch: '^video[0-9]*$', nummaxdevices: 3}
- {devicematch: '^snd$', nummaxdevices: 1}
- {devicematch: '^rtc0$', nummaxdevices: 1}
- {devicematch: '^absent$', nummaxdevices: 1}
";
    let world = World::new(NODES, &converted(text));
    let (kubelet, _agent) = (world.kubelet(), world.agent());
    for (resource, count) in [("video0", 3), ("video1", 3), ("snd", 1), ("rtc0", 1)] {
        allocatable(&kubelet, &format!("smarter-devices/{resource}"), count).await;
    }
    let admission = kubelet.admit(pod("p", "smarter-devices/video1", 1)).await.expect("admitted");
    let allotment = admission.allotment("main", "smarter-devices/video1").expect("allotted");
    assert_eq!(allotment.ids().len(), 1);
}

#[tokio::test]
async fn groups_of_generic_device_plugin_are_devices_with_what_goes_with_them() {
    let text = r#"
devices:
- name: capture
  groups: [{paths: [{path: /dev/snd/pcmC0D0c}, {path: /dev/snd/controlC0, mountPath: /dev/control}]}]
- name: camera
  groups: [{usb: [{vendor: "046D", product: "0825"}]}]
- name: clock
  groups: [{count: 5, paths: [{path: "/dev/rtc*", mountPath: /dev/clocks/}]}]
"#;
    let world = World::new(NODES, &format!("deviceList: envvar\n{}", converted(text)));
    let (kubelet, _agent) = (world.kubelet(), world.agent());
    for (name, count, expected) in [
        (
            "capture",
            1,
            &[("/dev/snd/controlC0", "/dev/control"), ("/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0c")][..],
        ),
        ("camera", 1, &[("/dev/video0", "/dev/video0"), ("/dev/video1", "/dev/video1")]),
        ("clock", 5, &[("/dev/rtc0", "/dev/clocks/rtc0")]),
    ] {
        let resource = format!("squat.ai/{name}");
        allocatable(&kubelet, &resource, count).await;
        let admission = kubelet.admit(pod(name, &resource, 1)).await.expect("admitted");
        let grant = &admission.allotment("main", &resource).expect("allotted").grant;
        let root = world.config.host_root.to_str().expect("text");
        let dev = |path: &str| path.trim_start_matches(root).to_owned();
        let mut given: Vec<_> = grant
            .devices
            .iter()
            .map(|node| (dev(&node.host_path), node.container_path.clone()))
            .collect();
        given.sort();
        let expected: Vec<_> = expected
            .iter()
            .map(|(host, inside)| ((*host).to_owned(), (*inside).to_owned()))
            .collect();
        assert_eq!(given, expected, "{name}");
    }
}
