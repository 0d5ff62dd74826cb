//! The shipped profiles: the source of each finds the devices that the profile simulates, from the first scan to the
//! removal of the device.

use std::{collections::BTreeSet, fmt::Write as _};

use serde_json::Value;
use windlass_config::DeviceProfile;
use windlass_core::{attribute::AttributeValue, device::Device, health::HealthState};
use windlass_resources::NodeState;
use windlass_testkit::{Node, pod_with as pod, until_allocatable};

use crate::devices::world::node;

/// Profile of boards on the network: a server simulates them, not files; see the tests of Darwin3.
const ON_THE_NETWORK: &str = "darwin3-network";

/// The profiles with simulated devices.
fn simulated() -> impl Iterator<Item = &'static DeviceProfile> {
    DeviceProfile::ALL.iter().filter(|profile| profile.name != ON_THE_NETWORK)
}

/// Simulated devices of a profile, `count` times, as a machine's `devices`.
fn devices(profile: &DeviceProfile, count: usize) -> String {
    let numbered = |n: usize| -> Vec<Value> {
        let text = profile.text.replace("{n}", &n.to_string());
        let document: Value = serde_saphyr::from_str(&text).expect("YAML");
        document["simulated"].as_array().expect("a list").clone()
    };
    let (mut names, mut devices) =
        (BTreeSet::new(), (0..count).flat_map(numbered).collect::<Vec<_>>());
    // A device without a number in its name occurs once per machine.
    devices.retain(|device| names.insert(device["name"].to_string()));
    serde_saphyr::to_string(&devices).expect("YAML")
}

fn world(profile: &DeviceProfile, count: usize) -> Node {
    node(&devices(profile, count), &format!("sources: [{{profile: {}}}]", profile.name))
}

/// The devices of the profile's source.
fn devices_of<'a>(state: &'a NodeState, profile: &DeviceProfile) -> Vec<&'a Device> {
    let source = profile.rule().name;
    state.inventory.devices.iter().filter(|device| device.source == source).collect()
}

/// A device with all fields that a container or a selector sees.
fn text_of(device: &Device) -> String {
    let mut text = format!("{} {}\n", device.id, device.health.state);
    for (name, value) in &device.attributes {
        let value = match value {
            AttributeValue::String(text) => format!("{text:?}"),
            other => other.to_string(),
        };
        let _ = writeln!(text, "  {name} = {value}");
    }
    for node in &device.nodes {
        let shared = if node.shared { ", shared" } else { "" };
        let _ = writeln!(text, "  node {} {}{shared}", node.path.display(), node.access);
    }
    for (name, value) in &device.extras.env {
        let _ = writeln!(text, "  env {name}={value}");
    }
    for mount in &device.extras.mounts {
        let _ = writeln!(text, "  mount {}", mount.host.display());
    }
    text
}

#[tokio::test]
async fn every_profile_finds_its_simulated_devices_and_no_others() {
    for profile in simulated() {
        let state = world(profile, 2).scan_host().await;
        let texts: Vec<_> = devices_of(&state, profile).into_iter().map(text_of).collect();
        assert!(!texts.is_empty(), "{} finds no device", profile.name);
        assert_eq!(texts.len(), state.inventory.devices.len(), "{}", profile.name);
        let resources = state
            .resources()
            .into_iter()
            .map(|(name, (listed, allocatable))| format!("{name}: {allocatable} of {listed}\n"));
        let text = resources.chain(texts).collect::<String>();
        insta::assert_snapshot!(profile.name, text);
    }
}

#[tokio::test]
async fn a_device_of_every_profile_that_is_unplugged_has_vanished() {
    for profile in simulated() {
        let world = world(profile, 1);
        let agent = world.start_agent();
        agent.until(|state| are_all(state, profile, HealthState::Healthy)).await;
        world.machine.update(|model| model.devices.clear()).expect("unplugged");
        agent
            .until(|state| devices_of(state, profile).iter().all(|it| it.health.has_vanished()))
            .await;
    }
}

fn are_all(state: &NodeState, profile: &DeviceProfile, health: HealthState) -> bool {
    let devices = devices_of(state, profile);
    !devices.is_empty() && devices.iter().all(|device| device.health.state == health)
}

#[tokio::test]
async fn no_device_matches_two_profiles() {
    let names = ["tpu", "tpu-vfio", "video", "serial", "dvb", "coral-usb", "coral-pcie", "hailo"];
    for machine in names.map(|name| name.parse::<DeviceProfile>().expect("shipped")) {
        let entries = names.map(|name| format!("{{profile: {name}}}")).join(", ");
        let world = node(&devices(&machine, 1), &format!("sources: [{entries}]"));
        let state = world.scan_host().await;
        let source = machine.rule().name;
        let others = state.inventory.devices.iter().filter(|device| device.source != source);
        assert_eq!(others.count(), 0, "{}: {:#?}", machine.name, state.inventory.devices);
    }
}

#[tokio::test]
async fn a_stick_that_loads_its_firmware_keeps_its_id() {
    let profile: DeviceProfile = "coral-usb".parse().expect("shipped");
    let after = devices(&profile, 1);
    let before = after.replace("18d1", "1a6e").replace("9302", "089a").replace("010", "007");
    assert_ne!(before, after);
    let world = node(&before, "sources: [{profile: coral-usb}]");
    let agent = world.start_agent();
    let state = agent.until(|state| are_all(state, &profile, HealthState::Healthy)).await;
    let id = devices_of(&state, &profile)[0].id.clone();
    let stick = |text: &str| serde_saphyr::from_str(text).expect("devices");
    world.machine.update(|model| model.devices = stick(&after)).expect("reconnected");
    let has_moved = |device: &&Device| device.nodes[0].path.ends_with("010");
    let moved = agent.until(|state| devices_of(state, &profile).iter().any(has_moved)).await;
    let ids: Vec<_> =
        devices_of(&moved, &profile).into_iter().map(|device| device.id.clone()).collect();
    assert_eq!(ids, [id]);
}

#[tokio::test]
async fn many_pods_get_a_shared_node_and_one_gets_a_camera() {
    let [kvm, video] = ["kvm", "video"].map(|name| name.parse::<DeviceProfile>().expect("shipped"));
    let both = format!("{}\n{}", devices(&kvm, 1), devices(&video, 1));
    let world = node(&both, "sources: [{profile: kvm}, {profile: video}]");
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "devices.kubevirt.io/kvm", 110).await;
    until_allocatable(&kubelet, "squat.ai/video", 1).await;
    for name in ["a", "b", "c"] {
        let admitted = kubelet.admit(pod(name, "devices.kubevirt.io/kvm", 1)).await;
        admitted.unwrap_or_else(|rejection| panic!("{name}: {rejection:?}"));
    }
    kubelet.admit(pod("one", "squat.ai/video", 1)).await.expect("admitted");
    assert!(kubelet.admit(pod("two", "squat.ai/video", 1)).await.is_err(), "the camera is in use");
}
