//! The shipped account: it has the permissions for all requests of the driver, and no permission on objects of Dynamic
//! Resource Allocation that the driver never uses. The tests of `cluster_api` check the requests of the other tasks:
//! their API server refuses requests beyond the account's permissions.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use windlass_config::{DraOffer, DraPolicy, Policy};
use windlass_testkit::Permission;

use crate::dra::world::{FIRST_GPU, World};

const GROUP: &str = "resource.k8s.io";

/// Permissions that the requests so far required.
fn required(world: &World) -> BTreeSet<Permission> {
    let log = world.api.objects().requests();
    let mut required: BTreeSet<_> = log
        .iter()
        .filter_map(|it| Permission::required_by(&it.method, &it.path, &it.query))
        .collect();
    let status = required.iter().find(|it| it.resource == "resourceclaims/status").cloned();
    // Kubernetes 1.36 demands the second permission with the first.
    required.extend(status.map(|it| Permission {
        resource: "resourceclaims/driver".to_owned(),
        verb: "associated-node:patch".to_owned(),
        ..it
    }));
    required
}

#[tokio::test]
async fn the_driver_needs_and_uses_exactly_the_rights_of_the_shipped_account() {
    let shipped = Permission::shipped();
    let world = World::new();
    // The owner of the slices.
    let node = json!({"metadata": {"name": "n1"}});
    world.api.objects().put(&serde_json::from_value::<Node>(node).expect("a Node"));
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[FIRST_GPU]);
    kubelet.prepare("c").await.expect("prepared");
    world
        .until_requests(|| required(&world).iter().any(|it| it.resource == "resourceclaims/status"))
        .await;
    let offer = |offer| {
        let dra = DraPolicy { offer, ..DraPolicy::default() };
        agent.set_policy(Policy { dra, ..Policy::default() });
    };
    // A change of the slices, and their deletion.
    world.machine.inject(&"lost@3".parse().expect("a fault")).expect("injected");
    world.until_requests(|| required(&world).iter().any(|it| it.verb == "update")).await;
    kubelet.unprepare("c").await.expect("released");
    offer(DraOffer::Off);
    world.until_requests(|| required(&world).iter().any(|it| it.verb == "delete")).await;
    agent.stop().await;
    let required = required(&world);
    let missing: Vec<_> = required
        .iter()
        .filter(|it| !shipped.iter().any(|permission| permission.covers(it)))
        .collect();
    assert!(missing.is_empty(), "deploy/rbac.yaml lacks {missing:#?}");
    let unused = |permission: &&Permission| {
        permission.group == GROUP && !required.iter().any(|required| permission.covers(required))
    };
    let unused: Vec<_> = shipped.iter().filter(unused).collect();
    assert!(unused.is_empty(), "deploy/rbac.yaml gives unused permissions: {unused:#?}");
}
