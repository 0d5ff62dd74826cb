//! Registration of DRA drivers through the sockets in `plugins_registry`.

use std::time::Duration;

use windlass_kubelet_sim::{DraService, Event, Faults, RegistrationFault};

use super::{
    super::support::Node,
    DRIVER,
    driver::{Call, Driver},
};

/// A node whose kubelet scans the folder often, and retries registrations soon.
fn node() -> Node {
    Node::start_with(|config| {
        config.dra.registration_retry_min = Duration::from_millis(20);
        config.dra.registry_period = Duration::from_millis(20);
    })
}

/// Waits until the driver's registration fails. Returns the kubelet's message.
async fn refusal(node: &Node, driver: &Driver) -> String {
    let expected = &driver.registration;
    let is_refusal =
        |event: &Event| matches!(event, Event::DriverRefused { socket, .. } if socket == expected);
    node.wait_for_event(is_refusal).await;
    let events = node.kubelet.events().newest();
    let Some(Event::DriverRefused { message, .. }) = events.into_iter().find(is_refusal) else {
        panic!("the event exists");
    };
    message
}

#[tokio::test]
async fn a_tonic_server_registers_if_its_sockets_name_has_an_at_sign() {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    assert_eq!(driver.calls(), [Call::Info, Call::Notified(Ok(()))]);
    let status = &node.kubelet.status().drivers[DRIVER][0];
    assert_eq!((&status.endpoint, status.service), (&driver.endpoint, DraService::V1));
}

#[tokio::test]
async fn a_tonic_server_rejects_the_kubelets_calls_if_its_sockets_name_has_no_at_sign() {
    let node = node();
    let driver = Driver::serve_at(&node.kubelet, (DRIVER, None), "x-reg.sock");
    let message = refusal(&node, &driver).await;
    let socket = driver.registration.display();
    assert_eq!(
        message,
        format!(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket \
             {socket}, err: rpc error: code = Internal desc = stream terminated by RST_STREAM with \
             error code: PROTOCOL_ERROR"
        )
    );
    assert_eq!(driver.calls(), []);
}

#[tokio::test]
async fn the_kubelet_skips_names_that_begin_with_a_dot_and_scans_subfolders() {
    let node = node();
    let hidden = Driver::serve_at(&node.kubelet, ("hidden", None), ".hidden@reg.sock");
    let folder = node.kubelet.config().registry_dir().join("deep");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("file@reg.sock"), "no socket").expect("written");
    let deep = Driver::serve_at(&node.kubelet, (DRIVER, None), "deep/x@reg.sock");
    deep.wait_until_registered(&node).await;
    assert_eq!(hidden.calls(), []);
}

#[tokio::test]
async fn a_plugin_of_another_type_is_refused_and_tried_again() {
    let node = node();
    let driver = Driver::serve(&node.kubelet, DRIVER);
    driver.script().info.r#type = "CSIPlugin".to_owned();
    let expected = format!(
        "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket {}",
        driver.registration.display()
    );
    assert_eq!(refusal(&node, &driver).await, expected);
    assert!(driver.calls().contains(&Call::Notified(Err(expected))));
    driver.script().info.r#type = "DRAPlugin".to_owned();
    driver.wait_until_registered(&node).await;
}

#[tokio::test]
async fn a_driver_without_a_supported_service_is_refused_with_the_supported_ones() {
    let node = node();
    let driver = Driver::serve(&node.kubelet, DRIVER);
    driver.script().info.supported_versions = vec!["v2.DRAPlugin".to_owned()];
    assert_eq!(
        refusal(&node, &driver).await,
        format!(
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC \
             versions of DRA driver plugin {DRIVER} at endpoint {}: none of services supported by \
             the plugin ([\"v2.DRAPlugin\"]) are supported by the kubelet ([\"v1.DRAPlugin\" \
             \"v1beta1.DRAPlugin\"])",
            driver.endpoint.display()
        )
    );
}

#[tokio::test]
async fn an_endpoint_registers_once_only() {
    let node = node();
    let first = Driver::registered(&node, DRIVER).await;
    let second = Driver::serve_instance(&node.kubelet, DRIVER, Some("b"));
    second.script().info.endpoint = first.endpoint.display().to_string();
    assert_eq!(
        refusal(&node, &second).await,
        format!(
            "RegisterPlugin error -- plugin registration failed with err: endpoint {} already \
             registered for DRA driver plugin {DRIVER}",
            first.endpoint.display()
        )
    );
}

#[tokio::test]
async fn a_removed_socket_deregisters_and_a_new_one_registers() {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    driver.unlink();
    node.wait(|status| status.drivers.is_empty()).await;
    drop(driver);
    let second_driver = Driver::registered(&node, DRIVER).await;
    // A restarted driver replaces its socket at once, as after a kill.
    drop(second_driver);
    let third_driver = Driver::serve(&node.kubelet, DRIVER);
    third_driver.wait_until_registered(&node).await;
    let is_deregistration = |event: &Event| matches!(event, Event::DriverDeregistered { .. });
    assert_eq!(node.kubelet.events().count(is_deregistration), 2);
}

#[tokio::test]
async fn the_kubelet_repeats_every_registration_after_a_restart() {
    let node = node();
    let driver = Driver::registered(&node, DRIVER).await;
    node.kubelet.restart().await.expect("restarted");
    node.wait(|status| status.drivers.len() == 1).await;
    let is_registration = |event: &Event| matches!(event, Event::DriverRegistered { .. });
    let has_two =
        |events: &[Event]| events.iter().filter(|event| is_registration(event)).count() == 2;
    let events = node.kubelet.events();
    events.wait_for(has_two, super::super::support::DEADLINE).await.expect("registered again");
    assert_eq!(driver.calls().iter().filter(|call| **call == Call::Info).count(), 2);
}

#[tokio::test]
async fn slices_are_wiped_at_the_start_and_after_the_wipe_delay_of_a_lost_driver() {
    let node = Node::start_with(|config| config.dra.wipe_delay = Duration::from_millis(20));
    let driver = Driver::registered(&node, DRIVER).await;
    let events = node.kubelet.events().newest();
    assert_eq!(events[1], Event::SlicesWiped { driver: None });
    driver.unlink();
    node.wait_for_event(|event| *event == Event::SlicesWiped { driver: Some(DRIVER.to_owned()) })
        .await;
}

#[tokio::test]
async fn a_fault_can_refuse_drivers() {
    let node = node();
    let driver_registration = RegistrationFault::Refuse("not today".to_owned());
    node.kubelet.set_faults(Faults { driver_registration, ..Faults::default() });
    let driver = Driver::serve(&node.kubelet, DRIVER);
    assert_eq!(refusal(&node, &driver).await, "not today");
    assert!(driver.calls().contains(&Call::Notified(Err("not today".to_owned()))));
    node.kubelet.set_faults(Faults::default());
    driver.wait_until_registered(&node).await;
}
