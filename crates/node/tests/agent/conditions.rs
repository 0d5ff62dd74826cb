//! GPU conditions reported by the driver: some make a GPU unhealthy, others are only reported.

use std::sync::Arc;

use tracing::Level;
use windlass_core::{attribute::AttributeValue, device::Device, health::Reason};
use windlass_machine::{MachineProfile, profile};
use windlass_resources::NodeState;
use windlass_testkit::{LogCapture, RunningAgent};

use crate::agent::{
    health::{check_failure_and_recovery, until_failure},
    world::{gpu_node, gpu_node_of, until_gpu_counts},
};

/// The GPU of that index.
fn gpu(state: &NodeState, index: u32) -> Option<&Device> {
    let mut gpus = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
    gpus.find(|gpu| gpu.index == index)
}

fn attribute(device: &Device, name: &str) -> Option<AttributeValue> {
    let mut attributes = device.attributes.iter();
    attributes
        .find(|(attribute_name, _)| attribute_name.to_string() == name)
        .map(|(_, value)| value.clone())
}

/// Waits until the GPU has an attribute with this boolean value.
async fn until_attribute(
    agent: &RunningAgent,
    index: u32,
    name: &str,
    expected: bool,
) -> Arc<NodeState> {
    let has_value = |state: &Arc<NodeState>| {
        let value = gpu(state, index).and_then(|gpu| attribute(gpu, name));
        value == Some(AttributeValue::Bool(expected))
    };
    agent.until(has_value).await
}

#[tokio::test]
async fn a_condition_that_breaks_pods_has_its_reason_and_can_recover() {
    check_failure_and_recovery(&[
        ("ecc-count@2", 2, Reason::UncorrectedEcc),
        ("nvlink:5@3", 3, Reason::NvlinkDown),
        ("fabric@4", 4, Reason::FabricFailed),
    ])
    .await;
}

#[tokio::test]
async fn a_failed_gpu_stays_unhealthy_during_an_initialisation_for_another() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let log = LogCapture::start(Level::INFO);
    world.inject("nvlink:5@3");
    until_gpu_counts(&kubelet, (8, 7)).await;
    world.inject("lost@2");
    until_gpu_counts(&kubelet, (8, 6)).await;
    log.until(1, "a GPU stays lost; initialising NVML again").await;
    world.inject("recover@2");
    // Without its failure, GPU 3 would recover before GPU 2, whose last failure is later.
    agent.until(|state| gpu(state, 2).is_some_and(|gpu| gpu.health.is_healthy())).await;
    let state = agent.state.borrow().clone();
    let failed = gpu(&state, 3).expect("listed");
    let failure = failed.health.failure().map(|failure| failure.reason);
    assert_eq!(failure, Some(Reason::NvlinkDown), "{}", failed.health);
    world.inject("recover@3");
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn memory_errors_without_the_driver_count_once_it_is_installed() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    world.machine.remove_driver().expect("removed");
    until_gpu_counts(&kubelet, (8, 0)).await;
    world.inject("ecc-count@4");
    world.machine.install_driver().expect("installed");
    until_failure(&agent, 4, Reason::UncorrectedEcc).await;
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn a_row_that_could_not_be_remapped_is_not_cured_by_a_reset() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    world.inject("remap-failed@1");
    let state = until_failure(&agent, 1, Reason::RowRemapFailed).await;
    let health = gpu(&state, 1).expect("listed").health.to_string();
    assert!(health.ends_with("; contact support"), "{health}");
    world.inject("recover@1");
    world.inject("lost@2");
    until_gpu_counts(&kubelet, (8, 6)).await;
    world.inject("recover@2");
    until_gpu_counts(&kubelet, (8, 7)).await;
    let state = agent.state.borrow().clone();
    assert!(!gpu(&state, 1).expect("listed").health.is_healthy());
}

#[tokio::test]
async fn a_harmless_condition_is_reported_and_the_gpu_stays_in_service() {
    let world = gpu_node("dgx-h100");
    let (_kubelet, agent) = world.start_ready(8).await;
    for (fault, name) in [
        ("remap-pending@1", "nvidia.com/pendingRowRemap"),
        ("thermal@1", "nvidia.com/thermalSlowdown"),
        ("power@1", "nvidia.com/powerSlowdown"),
    ] {
        until_attribute(&agent, 1, name, false).await;
        world.inject(fault);
        let state = until_attribute(&agent, 1, name, true).await;
        assert!(gpu(&state, 1).expect("listed").health.is_healthy(), "{fault}");
        world.inject("recover@1");
        until_attribute(&agent, 1, name, false).await;
    }
}

#[tokio::test]
async fn an_older_card_reports_pages_instead_of_rows() {
    let world = gpu_node("t4-edge");
    let agent = world.start_agent();
    let state = until_attribute(&agent, 0, "nvidia.com/pendingPageRetirement", false).await;
    let card = gpu(&state, 0).expect("listed");
    assert_eq!(attribute(card, "nvidia.com/pendingRowRemap"), None);
    assert_eq!(attribute(card, "nvidia.com/nvlinkDegraded"), None, "it has no links");
    world.inject("remap-pending@0");
    until_attribute(&agent, 0, "nvidia.com/pendingPageRetirement", true).await;
}

#[tokio::test]
async fn a_link_that_goes_down_leaves_its_gpu_healthy() {
    let world = gpu_node("mixed-models");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let state = agent.state.borrow().clone();
    let linked = state.inventory.devices.iter().find(|gpu| !gpu.place.nvlinks.peers.is_empty());
    let index = linked.expect("a GPU with direct links").index;
    world.inject(&format!("nvlink:0@{index}"));
    let state = until_attribute(&agent, index, "nvidia.com/nvlinkDegraded", true).await;
    assert!(gpu(&state, index).expect("listed").health.is_healthy());
}

#[tokio::test]
async fn each_gpu_has_the_attributes_that_labels_need() {
    let cluster = "8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7e4";
    let uuid = cluster.to_owned().try_into().expect("a UUID");
    let fabric = Some(profile::Fabric { cluster: uuid, clique: 7 });
    let rack =
        MachineProfile { fabric, ..MachineProfile::named("hgx-b200").expect("a shipped profile") };
    let world = gpu_node_of(&rack);
    let agent = world.start_agent();
    let state = agent.until(|state| state.inventory.is_complete()).await;
    let gpu = gpu(&state, 5).expect("listed");
    for (name, expected) in [
        ("nvidia.com/index", AttributeValue::Int(5)),
        ("nvidia.com/migCapable", AttributeValue::Bool(true)),
        ("nvidia.com/fabricState", AttributeValue::string("Completed")),
        ("nvidia.com/fabricClusterUUID", AttributeValue::string(cluster)),
        ("nvidia.com/fabricCliqueID", AttributeValue::Int(7)),
        ("windlass.dev/pciClass", AttributeValue::string("0x030200")),
    ] {
        assert_eq!(attribute(gpu, name), Some(expected), "{name}");
    }
}
