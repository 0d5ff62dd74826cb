//! Pods that get one GPU whole, in parts, and whole again, placed by the scheduler's counters.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use windlass_config::{DraMigMode, DraOffer, DraPartitions, DraPolicy};
use windlass_testkit::device_class;

use crate::claims::{
    objects::{NAMESPACE, claim_template, pod},
    world::{World, devices},
};

/// A node whose driver switches MIG mode for claims, and the device class of MIG instances.
async fn world_with_mig_changes() -> World {
    let world = World::with_policy(DraPolicy {
        offer: DraOffer::Instead,
        partitions: DraPartitions::OnDemand,
        mig_mode: DraMigMode::OnDemand,
        ..DraPolicy::default()
    })
    .await;
    let expression = "device.attributes['windlass.dev'].type == 'mig'";
    world.objects().create(&device_class("mig", expression)).expect("created");
    world
}

/// A pod with a claim for devices of a class that an expression selects.
fn pod_requesting(
    world: &World,
    name: &str,
    (class, count, expression): (&str, usize, &str),
) -> Pod {
    let request: Value = json!({"name": "r", "exactly": {
        "deviceClassName": class, "count": count, "selectors": [{"cel": {"expression": expression}}],
    }});
    world.objects().put(&claim_template(NAMESPACE, name, &json!({"requests": [request]})));
    pod((NAMESPACE, name), &["main"], ("resourceClaimTemplateName", name))
}

/// Number of MIG instances on the first GPU; `None` if MIG is off.
fn instances(world: &World) -> Option<usize> {
    let model = world.machine.model().expect("a model");
    model.gpus[0].mig.as_ref().map(Vec::len)
}

#[tokio::test]
async fn a_gpu_changes_from_a_whole_device_to_parts_and_back_between_pods() {
    let world = world_with_mig_changes().await;
    let uuid = world.machine.model().expect("a model").gpus[0].uuid.clone();
    let all = format!("device.attributes['gpu.nvidia.com'].uuid == '{uuid}'");
    let part = format!(
        "device.attributes['gpu.nvidia.com'].parentUUID == '{uuid}' \
         && device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"
    );
    let (whole, parts) = (("gpu", 1, &*all), ("mig", 2, &*part));

    let (first, _) = world.run_pod(&pod_requesting(&world, "first", whole)).await;
    let waiting = pod_requesting(&world, "parts", parts);
    world.cluster.schedule(&waiting).expect_err("the GPU is allocated");
    assert_eq!(instances(&world), None);
    world.check();
    world.end(&first).await;

    let second = world.schedule_when_free(&waiting).await;
    world.start(&second).await;
    assert_eq!((devices(&second).len(), instances(&world)), (2, Some(2)));
    let waiting = pod_requesting(&world, "last", whole);
    world.cluster.schedule(&waiting).expect_err("parts are allocated");
    world.check();
    world.end(&second).await;

    let last = world.schedule_when_free(&waiting).await;
    world.start(&last).await;
    assert_eq!((devices(&last), instances(&world)), (devices(&first), None));
    world.check_and_end(&[&last]).await;
}
