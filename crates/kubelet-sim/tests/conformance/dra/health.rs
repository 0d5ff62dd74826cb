//! Health of devices, from a driver's stream to the status of pods.

use std::{path::Path, time::Duration};

use windlass_kubelet_api::dra::health::{DeviceHealth, DeviceIdentifier, HealthStatus};
use windlass_kubelet_sim::{ClaimDeviceHealth, Event, HealthWord, NodeStatus};

use super::{
    super::support::{Node, SHORT},
    DRIVER,
    driver::Driver,
    pod,
};

/// A list with the first device.
fn list(health: HealthStatus, seconds: i64) -> Vec<DeviceHealth> {
    let (pool_name, device_name) = ("pool".to_owned(), "device-0".to_owned());
    vec![DeviceHealth {
        device: Some(DeviceIdentifier { pool_name, device_name }),
        health: health.into(),
        last_updated_time: 0,
        health_check_timeout_seconds: seconds,
        message: "why".to_owned(),
    }]
}

/// A node with a running pod that uses the driver's first device.
async fn running() -> (Node, Driver) {
    let node = Node::start_with(|config| config.dra.health_pause = SHORT);
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    (node, driver)
}

fn shown(status: &NodeStatus) -> &ClaimDeviceHealth {
    &status.pods["pod-uid"].containers["c"].claim_health["claim:devices"][0]
}

async fn becomes(node: &Node, health: HealthWord) {
    node.wait(|status| shown(status).health == health).await;
}

#[tokio::test]
async fn what_a_driver_says_is_in_the_status_of_the_pods_that_use_the_device() {
    let (node, driver) = running().await;
    let first = shown(&node.kubelet.node()).clone();
    assert_eq!((first.health, first.message), (HealthWord::Unknown, None));
    assert_eq!(first.resource_id, "gpu.example.com/claim=claim-uid-0");

    driver.tell(list(HealthStatus::Unhealthy, 0));
    becomes(&node, HealthWord::Unhealthy).await;
    assert_eq!(shown(&node.kubelet.node()).message.as_deref(), Some("why"));
    node.event(|event| *event == Event::PodsSynced { pods: vec!["pod-uid".to_owned()] }).await;
    driver.tell(list(HealthStatus::Healthy, 0));
    becomes(&node, HealthWord::Healthy).await;
}

#[tokio::test]
async fn health_that_is_not_repeated_in_time_is_unknown() {
    let (node, driver) = running().await;
    driver.tell(list(HealthStatus::Healthy, 1));
    becomes(&node, HealthWord::Healthy).await;
    becomes(&node, HealthWord::Unknown).await;
    assert_eq!(shown(&node.kubelet.node()).message, None);
}

#[tokio::test]
async fn the_end_of_the_stream_makes_health_unknown_until_the_driver_is_back() {
    let (node, driver) = running().await;
    driver.tell(list(HealthStatus::Healthy, 0));
    becomes(&node, HealthWord::Healthy).await;
    // The connection ends, the registration stays.
    driver.cut();
    becomes(&node, HealthWord::Unknown).await;
    becomes(&node, HealthWord::Healthy).await;
    let ended = |event: &Event| matches!(event, Event::HealthEnded { endpoint, .. } if endpoint == Path::new(&driver.endpoint));
    assert_eq!(node.kubelet.calls().count(ended), 1);
}

#[tokio::test]
async fn a_driver_without_a_health_service_is_asked_again_and_again() {
    let node = Node::start_with(|config| config.dra.health_pause = Duration::from_millis(10));
    let driver = Driver::serve_without_health(&node.kubelet, DRIVER);
    driver.is_registered(&node).await;
    let refused = |event: &&Event| matches!(event, Event::HealthEnded { reason, .. } if reason.starts_with("rpc error: code = Unimplemented"));
    let calls = node.kubelet.calls();
    let twice = |events: &[Event]| events.iter().filter(refused).count() >= 2;
    calls.wait_for(twice, super::super::support::DEADLINE).await.expect("asked twice");
}
