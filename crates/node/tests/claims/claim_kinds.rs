//! Kinds of claims: by class, by attribute, shared by containers, and extended resources.

use serde_json::json;
use windlass_config::DraOffer;

use crate::claims::{
    objects::{
        ADMIN_NAMESPACE, EXTENDED_RESOURCE, NAMESPACE, claim, claim_template, gpus, pod, with_limit,
    },
    owners::allocated,
    world::{World, devices, uid},
};

#[tokio::test]
async fn a_claim_gets_a_device_with_the_requested_attributes() {
    let world = World::new(DraOffer::Instead).await;
    let expression = "device.attributes['resource.kubernetes.io'].numaNode == 1 \
                      && device.attributes['gpu.nvidia.com'].architecture == 'Hopper' \
                      && device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) > 0";
    let request = json!({"name": "gpu", "exactly": {
        "deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}],
    }});
    let (pod, grant) = world.run("p", &json!({"requests": [request]})).await;
    assert_eq!(devices(&pod).len(), 1);
    assert_eq!(grant.cdi_devices.len(), 2, "one of the claim, one of the device: {grant:?}");
    world.check_and_end(&[&pod]).await;
}

#[tokio::test]
async fn containers_and_pods_that_name_one_claim_share_one_device() {
    let world = World::new(DraOffer::Instead).await;
    world.objects().create(&claim("shared", &gpus(1))).expect("created");
    let by_name = ("resourceClaimName", "shared");
    let (first, train) = world.run_pod(&pod((NAMESPACE, "p1"), &["train", "watch"], by_name)).await;
    let watch = world.start_container(&uid(&first), "watch").await;
    assert_eq!(train.cdi_devices, watch.cdi_devices);
    let (second, other) = world.run_pod(&pod((NAMESPACE, "p2"), &["main"], by_name)).await;
    assert_eq!(train.cdi_devices, other.cdi_devices);
    let (third, _) = world.run("p3", &gpus(1)).await;
    assert!(devices(&third).is_disjoint(&devices(&first)));
    world.check();
    world.end(&first).await;
    assert_eq!(world.record().len(), 2, "the second pod still has the claim");
    world.check_and_end(&[&second, &third]).await;
}

#[tokio::test]
async fn an_administrators_claim_uses_allocated_devices_and_takes_none() {
    let world = World::new(DraOffer::Instead).await;
    let (holder, _) = world.run("holder", &gpus(2)).await;
    let all = json!({"requests": [{"name": "all", "exactly": {
        "deviceClassName": "gpu", "allocationMode": "All", "adminAccess": true,
    }}]});
    world.objects().put(&claim_template(ADMIN_NAMESPACE, "all", &all));
    let monitor = pod((ADMIN_NAMESPACE, "look"), &["main"], ("resourceClaimTemplateName", "all"));
    let (monitor, _) = world.run_pod(&monitor).await;
    assert_eq!(devices(&monitor).len(), world.gpus);
    let (late, _) = world.run("late", &gpus(6)).await;
    assert!(devices(&late).is_disjoint(&devices(&holder)));
    world.check_and_end(&[&monitor, &holder, &late]).await;
}

#[tokio::test]
async fn the_first_available_alternative_is_prepared_under_the_name_of_its_request() {
    let world = World::new(DraOffer::Instead).await;
    let huge = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Ti')) > 0";
    let alternatives = json!([
        {"name": "huge", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": huge}}]},
        {"name": "two", "deviceClassName": "gpu", "count": 2},
    ]);
    let requests = json!({"requests": [{"name": "gpu", "firstAvailable": alternatives}]});
    let (pod, _) = world.run("p", &requests).await;
    let chosen = allocated(&pod.claims[0]);
    assert!(chosen.len() == 2 && chosen.iter().all(|it| it.request == "gpu/two"), "{chosen:?}");
    let node = world.kubelet.status();
    let mut prepared = node.claims.values().flat_map(|it| it.devices.values().flatten());
    assert!(prepared.all(|it| it.requests == ["gpu"]), "the name before the slash");
    world.check_and_end(&[&pod]).await;
}

#[tokio::test]
async fn the_list_of_holders_has_pods_and_claims_without_pods() {
    let world = World::new(DraOffer::Instead).await;
    let (pod, _) = world.run("train", &gpus(1)).await;
    let node = world.agent.as_ref().expect("it runs").state.borrow().clone();
    let owner = async || {
        let (owners, caveats) = windlass_node::owners::owners(&world.config.places, &node).await;
        let mut all = owners.into_values().flatten().map(|owner| owner.to_string());
        (all.next().expect("an owner"), caveats)
    };
    let claim = pod.claims[0].metadata.name.clone().expect("a name");
    assert_eq!(owner().await, (format!("{NAMESPACE}/train (claim {claim})"), vec![]));
    world.kubelet.stop().await;
    let (owner, caveats) = owner().await;
    assert_eq!(owner, format!("claim {NAMESPACE}/{claim}"));
    assert!(caveats[0].contains("pod-resources"), "{caveats:?}");
}

#[tokio::test]
async fn an_extended_resource_of_a_class_is_served_by_a_claim() {
    let world = World::new(DraOffer::Instead).await;
    let (pod, grant) = world.run_pod(&with_limit("old-style", EXTENDED_RESOURCE)).await;
    assert_eq!((devices(&pod).len(), grant.cdi_devices.len()), (1, 2));
    world.check_and_end(&[&pod]).await;
}
