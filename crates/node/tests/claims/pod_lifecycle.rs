//! Pods that are deleted early, claims that are replaced, and many pods at once.

use std::{fs, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::task::JoinSet;
use windlass_cluster_sim::node as bound;
use windlass_config::DraOffer;

use crate::claims::{
    objects::{NAMESPACE, claim, claim_template, gpus, pod},
    world::{World, devices, published, uid},
};

#[tokio::test]
async fn the_devices_of_a_force_deleted_pod_go_to_another_when_its_containers_have_ended() {
    let world = World::new(DraOffer::Instead).await;
    let (old, _) = world.run("old", &gpus(world.gpus)).await;
    // The pod's object and its claim are deleted, while the containers run on.
    world.cluster.delete_pod(NAMESPACE, "old").expect("it was there");
    world.objects().put(&claim_template(NAMESPACE, "new", &gpus(1)));
    let pod_with_claim = pod((NAMESPACE, "new"), &["main"], ("resourceClaimTemplateName", "new"));
    let new = world.cluster.schedule(&pod_with_claim).expect("the scheduler counts them as free");
    assert!(devices(&old).is_superset(&devices(&new)));
    world.admit(bound::pod(&new)).await.expect("it fits");
    let error = world.try_start(&uid(&new), "main").await.expect_err("held");
    assert!(error.contains("is held by another claim"), "{error}");
    world.check();
    world.kubelet.delete_pod(&uid(&old)).await;
    world.start_container(&uid(&new), "main").await;
    world.check_and_end(&[&new]).await;
}

#[tokio::test]
async fn a_claim_and_its_replacement_of_the_same_name_are_distinguished() {
    let world = World::new(DraOffer::Instead).await;
    world.objects().create(&claim("c", &gpus(1))).expect("created");
    let by_name = ("resourceClaimName", "c");
    let (old, _) = world.run_pod(&pod((NAMESPACE, "p"), &["main"], by_name)).await;
    // The pod and its claim are replaced while the kubelet does not know of it.
    world.cluster.delete_pod(NAMESPACE, "p").expect("it was there");
    world.objects().delete::<ResourceClaim>(NAMESPACE, "c").expect("unused");
    world.objects().create(&claim("c", &gpus(2))).expect("created");
    let new = world.cluster.schedule(&pod((NAMESPACE, "p"), &["main"], by_name)).expect("a node");
    world.admit(bound::pod(&new)).await.expect("it fits");
    world.try_start(&uid(&new), "main").await.expect_err("the kubelet has the old claim");
    world.check();
    world.kubelet.delete_pod(&uid(&old)).await;
    let grant = world.start_container(&uid(&new), "main").await;
    assert_eq!(grant.cdi_devices.len(), 3, "two devices and the device of their request");
    world.check_and_end(&[&new]).await;
}

#[tokio::test]
async fn a_hundred_pods_at_once_are_all_served() {
    let world = Arc::new(World::new(DraOffer::Instead).await);
    let mut pods = JoinSet::new();
    for number in 0..100 {
        let world = Arc::clone(&world);
        pods.spawn(async move { run_and_end(&world, number).await });
    }
    while let Some(ended) = pods.join_next().await {
        ended.expect("it was served");
    }
    world.until_all_free().await;
}

/// A pod's whole life, once there is a device for it.
async fn run_and_end(world: &World, number: usize) {
    let name = format!("p{number}");
    world.objects().put(&claim_template(NAMESPACE, &name, &gpus(1 + number % 2)));
    let pod_with_claim = pod((NAMESPACE, &name), &["main"], ("resourceClaimTemplateName", &name));
    let scheduled = world.schedule_when_free(&pod_with_claim).await;
    world.start(&scheduled).await;
    world.check();
    world.end(&scheduled).await;
}

#[tokio::test]
async fn a_gpu_without_its_node_has_a_taint_until_the_node_is_back() {
    let world = World::new(DraOffer::Instead).await;
    let node = world.config.places.host_root.join("dev/nvidia0");
    let moved = node.with_extension("away");
    fs::rename(&node, &moved).expect("moved");
    world.until_free(world.gpus - 1).await;
    let devices = published(&world.objects()).into_iter();
    let taints: Vec<_> = devices.flat_map(|device| device.taints.unwrap_or_default()).collect();
    assert_eq!(taints[0].key, "windlass.dev/obstacle");
    assert_eq!(taints[0].value.as_deref(), Some("device-node"));
    let (rest, _) = world.run("rest", &gpus(world.gpus - 1)).await;
    world.check();
    world.end(&rest).await;
    fs::rename(&moved, &node).expect("moved");
    world.until_all_free().await;
}
