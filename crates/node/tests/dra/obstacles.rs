//! Obstacles for containers are obstacles for claims: the device is published with a taint, and its preparation is
//! refused.

use std::{fs, time::Duration};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceClaim, ResourceSlice},
};
use serde_json::json;
use windlass_cluster_sim::{
    api::Objects,
    cluster::{Cluster, ScheduledPod, SchedulingError},
};
use windlass_config::{DiscoveryRule, EditTemplates, SourceRule};
use windlass_testkit::{
    RunningAgent, claim_template, device_class, from_json, pod_of_claim, type_selector,
};

use crate::dra::world::{FIRST_GPU, World, claim};

/// A gateway, with the same board in its configuration as all other gateways.
struct Gateway {
    world: World,
    agent: RunningAgent,
}

// === impl Gateway ===

impl Gateway {
    fn start(cluster: &Cluster, node: &str) -> Self {
        cluster.add_node(node);
        let mut world = World::new();
        let kubeconfig = world.config.cluster.kubeconfig.clone().expect("it has one");
        fs::write(kubeconfig, cluster.server().kubeconfig()).expect("written");
        world.config.cluster.node_name = Some(node.to_owned());
        let board = DiscoveryRule::Endpoints(vec!["10.0.0.21".to_owned()]);
        let rule = SourceRule::new("boards".parse().expect("a name"), board);
        let env = [("BOARD".to_owned(), "{endpoint}".to_owned())].into();
        let give = EditTemplates { env, ..EditTemplates::default() };
        world.config.policy.sources = vec![SourceRule { lease: true, give, ..rule }];
        let agent = RunningAgent::start(&world.config).expect("it starts");
        Self { world, agent }
    }
}

/// A cluster with a device class of all devices that the configuration describes.
fn cluster() -> Cluster {
    let cluster = Cluster::start();
    cluster.objects().put(&device_class("board", &type_selector("other")));
    cluster
}

/// Schedules a pod that requests a board.
fn schedule(cluster: &Cluster, name: &str) -> Result<ScheduledPod, SchedulingError> {
    let request = json!({"name": "board", "exactly": {"deviceClassName": "board"}});
    cluster.objects().put(&claim_template("ns", name, &json!({"requests": [request]})));
    cluster.schedule(&pod_of_claim(("ns", name), &["main"], ("resourceClaimTemplateName", name)))
}

/// Waits until the devices of a pool are published, each with this taint, or without any.
async fn until_published(
    objects: &Objects,
    pool: &str,
    taint: Option<(&str, &str)>,
) -> Vec<Device> {
    let result = objects.wait_until(Duration::from_secs(20), |objects| {
        let slices = objects.list::<ResourceSlice>().into_iter();
        let pool_slices = slices.filter(|it| it.spec.pool.name == pool);
        let devices: Vec<_> =
            pool_slices.flat_map(|it| it.spec.devices.unwrap_or_default()).collect();
        let have_taint = devices.iter().all(|device| {
            let taints = device.taints.iter().flatten();
            let taints =
                taints.map(|it| (it.key.as_str(), it.value.as_deref().unwrap_or_default()));
            taints.eq(taint)
        });
        (!devices.is_empty() && have_taint).then_some(devices)
    });
    result.await.expect("published with the taint")
}

#[tokio::test]
async fn claims_get_a_board_of_two_gateways_only_from_the_lease_holder() {
    let cluster = cluster();
    let objects = cluster.objects();
    let first = Gateway::start(&cluster, "n1");
    until_published(&objects, "n1/boards", None).await;
    let second = Gateway::start(&cluster, "n2");
    let lease = Some(("windlass.dev/obstacle", "lease"));
    let devices = until_published(&objects, "n2/boards", lease).await;
    let scheduled = schedule(&cluster, "one").expect("it is free");
    let allocation = scheduled.claims[0].status.clone().and_then(|it| it.allocation);
    let results = allocation.and_then(|it| it.devices).and_then(|it| it.results);
    assert_eq!(results.expect("allocated")[0].pool, "n1/boards");
    schedule(&cluster, "two").map(drop).expect_err("there is one board");

    let mut kubelet = second.world.register_kubelet().await;
    let result = json!({
        "request": "a", "driver": "windlass.dev", "pool": "n2/boards", "device": devices[0].name,
    });
    objects.put::<ResourceClaim>(&from_json(claim("forced", &[result])));
    let error = kubelet.prepare("forced").await.expect_err("leased by the other gateway");
    assert!(error.contains("cannot be used: leased by node n1"), "{error}");
    first.agent.stop().await;
    second.agent.stop().await;
}

#[tokio::test]
async fn a_claim_gets_no_gpu_without_the_channel_that_is_required() {
    let mut world = World::new();
    let imex = &mut world.config.policy.delivery.imex;
    (imex.channels, imex.required) = ([0].into(), true);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    world.api.objects().put::<Node>(&from_json(node));
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    let error = kubelet.prepare("c").await.expect_err("there is no channel");
    assert!(error.contains("cannot be used: IMEX channel 0 is required"), "{error}");
    let taint = Some(("windlass.dev/obstacle", "imex-channel"));
    until_published(&world.api.objects(), "n1/nvidia", taint).await;
    agent.stop().await;
}
