//! The shipped account: it has the rights for all requests of the driver, and no right on objects of Dynamic Resource
//! Allocation that the driver never uses. Requests of the other parts are checked by the tests of `cluster_api`, whose
//! API server refuses requests beyond the account's rights.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use windlass_config::{DraOffer, DraPolicy, Policy};
use windlass_testkit::Right;

use crate::dra::world::{Allocated, World};

const GROUP: &str = "resource.k8s.io";

/// Rights that the requests so far need.
fn needed(world: &World) -> BTreeSet<Right> {
    let log = world.api.objects().requests();
    let mut needed: BTreeSet<_> =
        log.iter().filter_map(|it| Right::required_by(&it.method, &it.path, &it.query)).collect();
    let status = needed.iter().find(|it| it.resource == "resourceclaims/status").cloned();
    // Kubernetes 1.36 demands the second right with the first.
    needed.extend(status.map(|it| Right {
        resource: "resourceclaims/driver".to_owned(),
        verb: "associated-node:patch".to_owned(),
        ..it
    }));
    needed
}

#[tokio::test]
async fn the_driver_needs_and_uses_exactly_the_rights_of_the_shipped_account() {
    let shipped = Right::shipped();
    let world = World::new();
    // The owner of the slices.
    let node = json!({"metadata": {"name": "n1"}});
    world.api.objects().put(&serde_json::from_value::<Node>(node).expect("a Node"));
    let (agent, mut kubelet) = world.start_ready().await;
    world.claim(&agent, "c", &[Allocated { request: "a", gpu: 0 }]);
    kubelet.prepare("c").await.expect("prepared");
    world
        .until_requests(|| needed(&world).iter().any(|it| it.resource == "resourceclaims/status"))
        .await;
    let offer = |offer| {
        let dra = DraPolicy { offer, ..DraPolicy::default() };
        agent.set_policy(Policy { dra, ..Policy::default() });
    };
    // A change of the slices, and their deletion.
    world.machine.inject(&"lost@3".parse().expect("a fault")).expect("injected");
    world.until_requests(|| needed(&world).iter().any(|it| it.verb == "update")).await;
    kubelet.unprepare("c").await.expect("released");
    offer(DraOffer::Off);
    world.until_requests(|| needed(&world).iter().any(|it| it.verb == "delete")).await;
    agent.stop().await;
    let needed = needed(&world);
    let refused: Vec<_> =
        needed.iter().filter(|it| !shipped.iter().any(|right| right.covers(it))).collect();
    assert!(refused.is_empty(), "deploy/rbac.yaml lacks {refused:#?}");
    let unused =
        |right: &&Right| right.group == GROUP && !needed.iter().any(|needed| right.covers(needed));
    let unused: Vec<_> = shipped.iter().filter(unused).collect();
    assert!(unused.is_empty(), "deploy/rbac.yaml gives unused rights: {unused:#?}");
}
