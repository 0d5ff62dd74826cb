//! Device health, from a driver's stream to the status of pods.

use std::{path::Path, time::Duration};

use windlass_kubelet_api::dra::health::{DeviceHealth, DeviceIdentifier, HealthStatus};
use windlass_kubelet_sim::{ClaimDeviceHealth, Event, NodeStatus, ResourceHealthStatus};

use super::{
    super::support::{Node, SHORT_TIMEOUT},
    DRIVER,
    driver::Driver,
    pod,
};

/// A list with the first device's health. `seconds` is the timeout of the report.
fn list(health: HealthStatus, seconds: i64) -> Vec<DeviceHealth> {
    let (pool_name, device_name) = ("pool".to_owned(), "device-0".to_owned());
    vec![DeviceHealth {
        device: Some(DeviceIdentifier { pool_name, device_name }),
        health: health.into(),
        last_updated_time: 0,
        health_check_timeout_seconds: seconds,
        message: "overheated".to_owned(),
    }]
}

/// A node with a running pod that uses the driver's first device.
async fn node_with_running_pod() -> (Node, Driver) {
    let node = Node::start_with(|config| config.dra.health_retry_delay = SHORT_TIMEOUT);
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.admit(pod("pod", "claim")).await.expect("admitted");
    node.kubelet.start_container("pod-uid", "c").await.expect("started");
    (node, driver)
}

/// Health of the device in the pod's status.
fn device_health(status: &NodeStatus) -> &ClaimDeviceHealth {
    &status.pods["pod-uid"].containers["c"].claim_health["claim:devices"][0]
}

async fn wait_for_health(node: &Node, health: ResourceHealthStatus) {
    node.wait(|status| device_health(status).health == health).await;
}

#[tokio::test]
async fn health_from_a_driver_is_in_the_status_of_the_pods_that_use_the_device() {
    let (node, driver) = node_with_running_pod().await;
    let first = device_health(&node.kubelet.status()).clone();
    assert_eq!((first.health, first.message), (ResourceHealthStatus::Unknown, None));
    assert_eq!(first.resource_id, "gpu.example.com/claim=claim-uid-0");

    driver.send_health(list(HealthStatus::Unhealthy, 0));
    wait_for_health(&node, ResourceHealthStatus::Unhealthy).await;
    assert_eq!(device_health(&node.kubelet.status()).message.as_deref(), Some("overheated"));
    node.wait_for_event(|event| *event == Event::PodsSynced { pods: vec!["pod-uid".to_owned()] })
        .await;
    driver.send_health(list(HealthStatus::Healthy, 0));
    wait_for_health(&node, ResourceHealthStatus::Healthy).await;
}

#[tokio::test]
async fn health_is_unknown_after_its_timeout() {
    let (node, driver) = node_with_running_pod().await;
    driver.send_health(list(HealthStatus::Healthy, 1));
    wait_for_health(&node, ResourceHealthStatus::Healthy).await;
    wait_for_health(&node, ResourceHealthStatus::Unknown).await;
    assert_eq!(device_health(&node.kubelet.status()).message, None);
}

#[tokio::test]
async fn health_is_unknown_from_the_end_of_a_stream_to_the_next_report() {
    let (node, driver) = node_with_running_pod().await;
    driver.send_health(list(HealthStatus::Healthy, 0));
    wait_for_health(&node, ResourceHealthStatus::Healthy).await;
    // The connection closes; the driver stays registered.
    driver.close_connections();
    wait_for_health(&node, ResourceHealthStatus::Unknown).await;
    wait_for_health(&node, ResourceHealthStatus::Healthy).await;
    let is_stream_end = |event: &Event| {
        matches!(
            event,
            Event::HealthStreamEnded { endpoint, .. } if endpoint == Path::new(&driver.endpoint)
        )
    };
    assert_eq!(node.kubelet.events().count(is_stream_end), 1);
}

#[tokio::test]
async fn the_kubelet_retries_the_health_stream_of_a_driver_without_a_health_service() {
    let node = Node::start_with(|config| config.dra.health_retry_delay = Duration::from_millis(10));
    let driver = Driver::serve_without_health(&node.kubelet, DRIVER);
    driver.wait_until_registered(&node).await;
    let is_unimplemented = |event: &&Event| {
        matches!(
            event,
            Event::HealthStreamEnded { reason, .. }
                if reason.starts_with("rpc error: code = Unimplemented")
        )
    };
    let events = node.kubelet.events();
    let has_retried = |events: &[Event]| events.iter().filter(is_unimplemented).count() >= 2;
    events.wait_for(has_retried, super::super::support::DEADLINE).await.expect("called twice");
}
