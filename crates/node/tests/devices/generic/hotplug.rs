//! Changes of an offered device: removal, return at another place, loss of its driver, another number.

use std::{fs, os::unix::fs::symlink, time::Duration};

use windlass_resources::DeviceOffer;
use windlass_testkit::{RunningAgent, pod_with as pod, until, until_allocatable};

use super::{ACCELERATOR, BY_IDS, STICK, two_sticks};
use crate::devices::world::{device, end, node, policy, source};

const STICKS: &str = "example.com/stick";

#[tokio::test]
async fn an_unplugged_stick_is_unhealthy_and_keeps_its_id_at_another_port() {
    let world = node(STICK, BY_IDS);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, STICKS, 1).await;
    world.inject("unplug:stick");
    agent.until_health("stick-FT4X9", "Unhealthy: vanished").await;
    until_allocatable(&kubelet, STICKS, 0).await;
    world.inject("replug:stick=1-2.1");
    let state = agent.until_health("stick-FT4X9", "Healthy").await;
    let stick = device(&state.inventory, "stick-FT4X9");
    assert!(stick.origin.as_deref().is_some_and(|origin| origin.ends_with("1-2.1")), "{stick:?}");
    until_allocatable(&kubelet, STICKS, 1).await;
    assert_eq!(state.inventory.devices.len(), 1);
}

#[tokio::test]
async fn a_stick_without_a_serial_number_is_identified_by_its_port() {
    let world = node(&STICK.replace(", serial: FT4X9", ""), BY_IDS);
    let agent = world.start_agent();
    agent.until_health("stick-0000-00-14-0-0-4", "Healthy").await;
    world.inject("replug:stick=1-3");
    agent.until_health("stick-0000-00-14-0-0-3", "Healthy").await;
    agent.until_health("stick-0000-00-14-0-0-4", "Unhealthy: vanished").await;
}

#[tokio::test]
async fn a_stick_keeps_its_name_when_another_of_its_serial_number_is_plugged_in() {
    let world = node(&two_sticks("FT4X9"), BY_IDS);
    world.inject("unplug:other");
    let agent = world.start_agent();
    agent.until_health("stick-FT4X9", "Healthy").await;
    world.inject("replug:other=1-5");
    let state = agent.until_health("stick-0000-00-14-0-0-5", "Healthy").await;
    let stick = device(&state.inventory, "stick-FT4X9");
    assert_eq!(stick.health.to_string(), "Healthy");
    assert!(stick.origin.as_deref().is_some_and(|origin| origin.ends_with("1-4")), "{stick:?}");
    assert_eq!(state.inventory.devices.len(), 2);
}

#[tokio::test]
async fn an_unreadable_folder_removes_no_device() {
    let config = "sources: [{name: board, resource: zj.com/board, find: {files: /etc/board}, give: {found: none}}]";
    let world = node("", config);
    world.write("/etc/board/one", "");
    let agent = world.start_agent();
    agent.until_health("board-one", "Healthy").await;
    // A link to itself cannot be opened, not even by root.
    let (folder, moved) = (world.host_path("/etc/board"), world.host_path("/etc/aside"));
    fs::rename(&folder, &moved).expect("renamed");
    symlink("board", &folder).expect("linked");
    agent
        .until(|state| source(state, "board").starts_with("failing: cannot read /etc/board: "))
        .await;
    // Notifications of other files cause further scans.
    for name in ["two", "three"] {
        fs::remove_file(&folder).expect("removed");
        fs::rename(&moved, &folder).expect("renamed");
        world.write(&format!("/etc/board/{name}"), "");
        let state = agent.until_health(&format!("board-{name}"), "Healthy").await;
        assert_eq!(device(&state.inventory, "board-one").health.to_string(), "Healthy");
        fs::rename(&folder, &moved).expect("renamed");
        symlink("board", &folder).expect("linked");
        let state = agent.until(|state| source(state, "board").starts_with("failing")).await;
        assert_eq!(device(&state.inventory, "board-one").health.to_string(), "Healthy");
    }
}

#[tokio::test]
async fn sticks_with_one_serial_number_are_distinguished_by_their_ports() {
    let world = node(&two_sticks("FT4X9"), BY_IDS);
    let state = world.scan_host().await;
    device(&state.inventory, "stick-0000-00-14-0-0-4");
    device(&state.inventory, "stick-0000-00-14-0-0-5");
}

#[tokio::test]
async fn a_device_without_its_driver_is_listed_with_that_reason() {
    let config = r#"
sources:
- name: apex
  resource: example.com/apex
  find: {bus: pci}
  match: 'device.attributes["windlass.dev"].driver == "apex"'
"#;
    let world = node(ACCELERATOR, config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/apex", 1).await;
    world.inject("unbind:accelerator");
    let expected = "Unhealthy: driver not bound, its driver apex is no longer bound";
    agent.until_health("apex-0000-1b-00-0", expected).await;
    world.inject("bind:accelerator=apex");
    agent.until_health("apex-0000-1b-00-0", "Healthy").await;
    until_allocatable(&kubelet, "example.com/apex", 1).await;
}

const PASSED_THROUGH: &str = r#"
- name: card
  pci: {path: "pci0000:15/0000:15:01.0/0000:1b:00.0", id: "1ac1:089a", class: 0x120000, group: 12}
  driver: vfio-pci
"#;

const VFIO: &str = r#"
deviceList: envvar
sources:
- name: card
  resource: example.com/card
  find: {bus: pci}
  match: 'device.attributes["windlass.dev"].driver == "vfio-pci"'
"#;

/// The nodes that a container would get now.
async fn nodes(kubelet: &windlass_kubelet_sim::Kubelet, name: &str) -> Result<Vec<String>, String> {
    let admitted = kubelet.admit(pod(name, "example.com/card", 1)).await;
    let admission = admitted.map_err(|rejection| rejection.message)?;
    let allocation = admission.allocation("main", "example.com/card").expect("allocated");
    let nodes =
        allocation.run_options.devices.iter().map(|node| node.container_path.clone()).collect();
    kubelet.delete_pod(&format!("{name}-uid")).await;
    Ok(nodes)
}

#[tokio::test]
async fn a_group_with_a_changed_number_is_allocated_with_the_new_number() {
    let world = node(PASSED_THROUGH, VFIO);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/card", 1).await;
    assert_eq!(
        nodes(&kubelet, "first").await,
        Ok(vec!["/dev/vfio/12".into(), "/dev/vfio/vfio".into()])
    );
    world.inject("group:card=13");
    let is_renumbered =
        |device: &windlass_core::device::Device| device.nodes[0].path.ends_with("13");
    agent.until(|state| state.inventory.get("card-0000-1b-00-0").is_some_and(is_renumbered)).await;
    until_allocatable(&kubelet, "example.com/card", 1).await;
    assert_eq!(
        nodes(&kubelet, "second").await,
        Ok(vec!["/dev/vfio/13".into(), "/dev/vfio/vfio".into()])
    );
}

#[tokio::test]
async fn a_changed_number_is_refused_before_the_agent_has_seen_the_change() {
    let mut world = node(PASSED_THROUGH, VFIO);
    world.config.policy.health.probe_interval = Duration::from_secs(3600);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/card", 1).await;
    // The device's folder sends no notifications.
    let link = world.host_path("/sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0/iommu_group");
    fs::remove_file(&link).expect("removed");
    symlink("../../../../kernel/iommu_groups/13", &link).expect("linked");
    let error = nodes(&kubelet, "p").await.expect_err("refused");
    assert!(error.contains("/dev/vfio/12 is another device's now"), "{error}");
}

#[tokio::test]
async fn an_added_file_is_a_device_before_the_next_regular_scan() {
    let config = r#"
sources:
- {name: board, resource: zj.com/darwin3, find: {files: /etc/darwin3}, give: {env: {Darwin3: "{name}"}}}
"#;
    let mut world = node("", config);
    world.config.policy.health.probe_interval = Duration::from_secs(3600);
    world.write("/etc/hostname", "node");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    agent.until(|state| source(state, "board") == "absent: this node has no /etc/darwin3").await;
    world.write("/etc/darwin3/board0", "");
    world.write("/etc/darwin3/board1", "firmware: v1");
    until_allocatable(&kubelet, "zj.com/darwin3", 2).await;
    fs::remove_file(world.host_path("/etc/darwin3/board0")).expect("removed");
    until_allocatable(&kubelet, "zj.com/darwin3", 1).await;
}

#[tokio::test]
async fn a_removed_device_is_recorded_only_while_a_container_may_have_it() {
    let config = "sources: [{name: board, resource: zj.com/old, find: {files: /etc/board}, give: {found: none}}]";
    let world = node("", config);
    world.write("/etc/board/one", "");
    world.write("/etc/board/two", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "zj.com/old", 2).await;
    let is_recorded = |id: &str| {
        let record = fs::read_to_string(world.config.places.state_dir.join("devices.json"));
        record.expect("written before they are offered").contains(id)
    };
    assert!(is_recorded("board-one") && is_recorded("board-two"));
    fs::remove_file(world.host_path("/etc/board/one")).expect("removed");
    until_allocatable(&kubelet, "zj.com/old", 1).await;
    assert!(is_recorded("board-one"), "a container may have it");
    agent.set_policy(policy(&config.replace("zj.com/old", "zj.com/new")));
    until_allocatable(&kubelet, "zj.com/new", 1).await;
    let is_removed = async || if is_recorded("board-one") { Err("recorded") } else { Ok(()) };
    until("the removed device is no longer recorded", is_removed).await;
    assert!(is_recorded("board-two"));
}

/// Obstacle of each listed device.
fn obstacles(agent: &RunningAgent) -> Vec<(String, String)> {
    let offers = agent.state.borrow().device_offers();
    let obstacle = |(id, it): (_, DeviceOffer)| Some((ToString::to_string(&id), it.obstacle?));
    offers.into_iter().filter_map(obstacle).collect()
}

#[tokio::test]
async fn a_stick_that_is_held_by_its_serial_number_is_not_offered_by_its_port_after_a_restart() {
    let world = node(&two_sticks("FT4X9"), BY_IDS);
    world.inject("unplug:other");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, STICKS, 1).await;
    kubelet.admit(pod("holder", STICKS, 1)).await.expect("admitted");
    world.inject("replug:other=1-5");
    until_allocatable(&kubelet, STICKS, 2).await;
    agent.stop().await;
    let agent = world.start_agent();
    agent.until_health("stick-0000-00-14-0-0-5", "Healthy").await;
    agent.until(|state| state.device_offers().len() == 2).await;
    let expected = format!("a container holds it as {STICKS}");
    assert_eq!(obstacles(&agent), [("stick-0000-00-14-0-0-4".to_owned(), expected)]);
    end(&kubelet, "holder").await;
    until_allocatable(&kubelet, STICKS, 2).await;
}

#[tokio::test]
async fn a_stick_that_is_held_is_not_offered_again_by_a_source_of_another_name() {
    let world = node(STICK, BY_IDS);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, STICKS, 1).await;
    kubelet.admit(pod("holder", STICKS, 1)).await.expect("admitted");
    // One rule matches both, so that the resource does not show the change.
    let rules = "\nresources: [{name: example.com/stick, devices: {kind: other}}]";
    let mut states = agent.state.clone();
    let renamed = BY_IDS.replace("name: stick", "name: serial") + rules;
    agent.set_policy(policy(&renamed));
    let id = "serial-FT4X9";
    let expected = format!("a container holds it as {STICKS}");
    loop {
        states.changed().await.expect("the agent runs");
        let offers = states.borrow_and_update().device_offers();
        let Some((_, offer)) = offers.iter().find(|(device, _)| device.as_str() == id) else {
            continue;
        };
        let obstacle = offer.obstacle.as_deref().expect("it is never offered while it is held");
        if obstacle == expected {
            break;
        }
    }
    end(&kubelet, "holder").await;
    until_allocatable(&kubelet, STICKS, 1).await;
}

#[tokio::test]
async fn sources_are_added_and_removed_with_the_configuration() {
    let world = node(STICK, "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    agent.until(|state| state.inventory.is_complete()).await;
    agent.set_policy(policy(BY_IDS));
    until_allocatable(&kubelet, STICKS, 1).await;
    agent.set_policy(policy(&BY_IDS.replace("0403", "ffff")));
    agent.until(|state| source(state, "stick").starts_with("absent: none of")).await;
    agent.set_policy(policy(""));
    agent.until(|state| state.inventory.devices.is_empty()).await;
    agent.until(|state| !state.inventory.sources.contains_key("stick")).await;
}
