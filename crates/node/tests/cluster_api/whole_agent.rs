//! A whole agent on a simulated machine publishes its devices, taints failed ones, and removes its slices at the end.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use windlass_config::{ClusterAccess, DraOffer, DraPolicy, Policy};
use windlass_testkit::{Node, health_policy};

use crate::cluster_api::{api_server::ApiServer, objects::Cluster, slice_store::PATH};

fn policy(offer: DraOffer) -> Policy {
    let health = health_policy(Duration::from_millis(300));
    let dra = DraPolicy { offer, ..DraPolicy::default() };
    Policy { health, dra, ..Policy::default() }
}

/// A policy that offers all devices to claims as well.
pub(crate) fn policy_for_both_apis() -> Policy {
    policy(DraOffer::Beside)
}

/// All published devices, by pool.
fn devices(cluster: &Cluster) -> BTreeMap<&str, Vec<&Value>> {
    let mut pools = BTreeMap::<_, Vec<_>>::new();
    for slice in cluster.slices.slices.values() {
        let pool = slice["spec"]["pool"]["name"].as_str().expect("a name");
        let devices = slice["spec"]["devices"].as_array().into_iter().flatten();
        pools.entry(pool).or_default().extend(devices);
    }
    pools
}

fn tainted(cluster: &Cluster) -> Vec<&str> {
    let gpus = devices(cluster).remove("n1/nvidia").unwrap_or_default().into_iter();
    let taints = gpus.flat_map(|device| device["taints"].as_array().into_iter().flatten());
    taints.filter_map(|taint| taint["value"].as_str()).collect()
}

/// The names of a device's attributes.
fn attribute_names(device: &Value) -> String {
    let names = ["attributes", "capacity"].into_iter().flat_map(|kind| {
        let fields = device[kind].as_object().into_iter().flatten();
        fields.map(move |(name, _)| format!("{kind} {name}\n"))
    });
    names.collect()
}

#[tokio::test]
async fn a_machines_gpus_are_published_tainted_when_they_fail_and_removed() {
    let server = ApiServer::start();
    let mut node = Node::from_profile("dgx-h100", policy(DraOffer::Beside));
    node.config.cluster = ClusterAccess {
        kubeconfig: Some(server.kubeconfig()),
        node_name: Some("n1".to_owned()),
        ..ClusterAccess::default()
    };
    let agent = node.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let all_healthy = |cluster: &Cluster| {
        devices(cluster).get("n1/nvidia").is_some_and(|gpus| gpus.len() == 8)
            && tainted(cluster).is_empty()
    };
    let cluster = server.until(all_healthy).await;
    let pools = devices(&cluster);
    insta::assert_snapshot!("gpu_facts", attribute_names(pools["n1/nvidia"][0]));
    let generations = |cluster: &Cluster| -> Vec<_> {
        let slices = cluster.slices.slices.values();
        slices.map(|slice| slice["spec"]["pool"]["generation"].clone()).collect()
    };
    let before = generations(&cluster);
    node.inject("lost@3");
    let cluster = server.until(|cluster| tainted(cluster) == ["lost"]).await;
    assert_eq!(generations(&cluster), before, "one slice changed in place");
    node.inject("recover@3");
    server.until(all_healthy).await;
    agent.set_policy(policy(DraOffer::Off));
    server.until(|cluster| cluster.slices.slices.is_empty()).await;
    agent.stop().await;
    assert!(!server.cluster.borrow().requests("DELETE", PATH).is_empty());
}
