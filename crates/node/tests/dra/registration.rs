//! Registration of the driver with the kubelet, and its loss.

use std::fs;

use windlass_config::{DraOffer, Policy};
use windlass_kubelet_api::{
    dra::health::{
        DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
    },
    pluginregistration::{InfoRequest, RegistrationStatus},
};
use windlass_machine::Fault;
use windlass_testkit::{RunningAgent, until_exists, until_removed, within_timeout};

use crate::dra::{
    kubelet::{Kubelet, registrar},
    world::{FIRST_GPU, World, gpus},
};

fn set_offer(agent: &RunningAgent, offer: DraOffer) {
    let mut policy = Policy::clone(&agent.state.borrow().policy);
    policy.dra.offer = offer;
    agent.set_policy(policy);
}

#[tokio::test]
async fn the_driver_identifies_itself_and_survives_a_refusal() {
    let (world, agent, _) = World::start().await;
    let mut client = registrar(&world.registration()).await;
    let info = client.get_info(InfoRequest {}).await.expect("answered").into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "windlass.dev"));
    assert_eq!(info.endpoint, world.endpoint().display().to_string());
    let versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
    assert_eq!(info.supported_versions, versions);
    let refusal = RegistrationStatus { plugin_registered: false, error: "no".to_owned() };
    client.notify_registration_status(refusal).await.expect("accepted");
    client.get_info(InfoRequest {}).await.expect("it is still there");
    agent.stop().await;
}

#[tokio::test]
async fn deleted_sockets_are_bound_again_and_removed_when_the_agent_ends() {
    let (world, agent, _) = World::start().await;
    for socket in [world.registration(), world.endpoint()] {
        fs::remove_file(&socket).expect("it was there");
        until_exists(&socket).await;
    }
    world.register_kubelet().await.unprepare("x").await.expect("it serves");
    agent.stop().await;
    assert!(!world.registration().exists());
    assert!(!world.endpoint().exists());
}

#[tokio::test]
async fn the_driver_serves_only_while_devices_are_offered_or_claims_prepared() {
    let (world, agent, mut kubelet) = World::start().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    kubelet.prepare("c").await.expect("prepared");
    set_offer(&agent, DraOffer::Off);
    agent.until(|state| state.policy.dra.offer == DraOffer::Off).await;
    let mut kubelet = Kubelet::dial(&world.endpoint()).await;
    assert_eq!(kubelet.prepare("c").await.expect("as before").len(), 1);
    kubelet.unprepare("c").await.expect("released");
    until_removed(&world.registration()).await;
    until_removed(&world.endpoint()).await;
    set_offer(&agent, DraOffer::Beside);
    world.register_kubelet().await;
    agent.stop().await;
}

#[tokio::test]
async fn the_driver_stays_registered_until_claims_that_only_the_kubelet_knows_are_released() {
    let mut world = World::new();
    world.config.policy.dra.offer = DraOffer::Off;
    world.write_kubelet_checkpoint(&["refused"]);
    let agent = RunningAgent::start(&world.config).expect("it starts");
    let mut kubelet = world.register_kubelet().await;
    kubelet.unprepare("refused").await.expect("released");
    world.write_kubelet_checkpoint(&[]);
    until_removed(&world.registration()).await;
    agent.stop().await;
}

#[tokio::test]
async fn the_kubelet_gets_the_health_of_all_devices_and_each_change() {
    let (world, agent, kubelet) = World::start().await;
    let lists = kubelet.health().node_watch_resources(NodeWatchResourcesRequest {}).await;
    let mut lists = lists.expect("a stream").into_inner();
    let id = gpus(&agent.state.borrow())[3].id.as_str().to_lowercase();
    let health = |list: &NodeWatchResourcesResponse| {
        let is_gpu = |name: &str| name == id;
        let device = list
            .devices
            .iter()
            .find(|it| it.device.as_ref().is_some_and(|device| is_gpu(&device.device_name)));
        let device = device.expect("every device is in every list");
        (device.health(), device.message.clone(), device.health_check_timeout_seconds)
    };
    let mut next_list = async || {
        let list = within_timeout("a list", lists.message()).await.expect("open");
        list.expect("it stays open")
    };
    let list = next_list().await;
    let in_pool = |pool: &str| {
        let is_in = |device: &DeviceIdentifier| device.pool_name == pool;
        list.devices.iter().filter(|it| it.device.as_ref().is_some_and(is_in)).count()
    };
    assert_eq!(in_pool("n1/nvidia"), 8);
    assert_eq!(health(&list), (HealthStatus::Healthy, String::new(), 30));
    world.machine.inject(&Fault::Xid { gpu: 3, code: 79 }).expect("injected");
    let (status, message, _) = loop {
        let health = health(&next_list().await);
        if health.0 != HealthStatus::Healthy {
            break health;
        }
    };
    assert_eq!(status, HealthStatus::Unhealthy);
    assert!(message.contains("79"), "{message}");
    agent.stop().await;
    while let Ok(Some(_)) = within_timeout("the end", lists.message()).await {}
}
