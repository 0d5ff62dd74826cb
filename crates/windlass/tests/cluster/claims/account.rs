//! Rights of the account in `deploy/rbac.yaml`: slices and claim statuses of the agent's own node, and of no other.

use std::fs;

use serde_json::{Value, json};

use super::{
    objects::{objects, pod},
    owners::claims,
    rig::{Rig, node_name, until_it_runs},
};
use crate::cluster::{
    NODE_STATUS, eventually, has_cluster,
    pods::{Manifests, Pods, kubectl, try_kubectl},
};

const NAMESPACE: &str = "windlass-system";

/// A pod of the account on the node: its token says where it is.
fn account() -> Manifests {
    let path = format!("{}/../../deploy/rbac.yaml", env!("CARGO_MANIFEST_DIR"));
    let rules = fs::read_to_string(path).expect("a manifest");
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let container =
        json!({"name": "main", "image": "docker.io/local/app:1", "imagePullPolicy": "Never"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent", "namespace": NAMESPACE},
        "spec": {"serviceAccountName": "windlass", "nodeName": node_name(), "containers": [container],
            "terminationGracePeriodSeconds": 0},
    });
    Manifests::apply(&[format!("{namespace}\n"), rules, format!("{pod}\n")])
}

fn token() -> String {
    let words = "create token windlass --bound-object-kind Pod --bound-object-name agent -n";
    let words = words.split(' ').chain([NAMESPACE]);
    kubectl(&words.collect::<Vec<_>>()).trim().to_owned()
}

/// The cluster's kubeconfig with that token.
fn kubeconfig(token: &str) -> String {
    let text = kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["users"][0]["user"] = json!({"token": token});
    config.to_string()
}

/// A slice of a node, with nothing in it.
fn slice(node: &str) -> Value {
    let pool = json!({"name": format!("{node}/e2e"), "generation": 1, "resourceSliceCount": 1});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "windlass-e2e-slice"},
        "spec": {"driver": "windlass.dev", "nodeName": node, "pool": pool, "devices": []},
    })
}

/// A claim whose device is on a node, as a scheduler would have written it.
fn allocated(claim: &str, node: &str) {
    let result =
        json!({"request": "gpu", "driver": "windlass.dev", "pool": "e2e", "device": "e2e"});
    let is_node = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let allocation = json!({
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [is_node]}]},
    });
    let status = json!({"status": {"allocation": allocation}}).to_string();
    let how = ["patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p"];
    kubectl(&[&how[..], &[&status]].concat());
}

/// Response to the account when it applies a claim's device status, as the agent does.
fn tells_status(token: &str, claim: &str) -> Result<String, String> {
    let device = json!({"driver": "windlass.dev", "pool": "e2e", "device": "e2e"});
    let status = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": claim, "namespace": "default"}, "status": {"devices": [device]},
    });
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), status.to_string()).expect("written");
    let path = file.path().display().to_string();
    let how = ["apply", "--server-side", "--subresource=status", "-f", &path];
    try_kubectl(&[&["--token", token], &how[..]].concat())
}

fn claim(name: &str) -> String {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "windlass-e2e-gpu"}});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    });
    format!("{claim}\n")
}

/// A pod's claim is prepared and its status told, which takes the rights for slices, claims and their status.
async fn a_pod_is_served() {
    let (mut pods, name) = (Pods::none(), "windlass-e2e-account");
    pods.apply(name, &pod(name, 1));
    until_it_runs("default", name).await;
    let is_ready = async || {
        let conditions = |claim: &Value| claim["status"]["devices"][0]["conditions"].to_string();
        claims().iter().any(|claim| conditions(claim).contains("Prepared"))
    };
    eventually(NODE_STATUS, true, is_ready).await;
}

/// A slice of the own node is taken, and removed by the agent, which has no such pool.
async fn slices_are_of_its_own_node(token: &str) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().display().to_string();
    let create = |node: &str| {
        fs::write(file.path(), slice(node).to_string()).expect("written");
        try_kubectl(&["--token", token, "create", "-f", &path])
    };
    let refusal = create("another-node").expect_err("refused");
    assert!(refusal.contains("may not write slices of node another-node"), "{refusal}");
    create(&node_name()).expect("a slice of its own node");
    let listed = async || kubectl(&["get", "resourceslices", "-o", "name"]).contains("e2e-slice");
    eventually(NODE_STATUS, false, listed).await;
}

fn status_is_of_its_own_node(token: &str) {
    let (here, there) = ("windlass-e2e-here", "windlass-e2e-there");
    let claims = Manifests::apply(&[claim(here), claim(there)]);
    allocated(here, &node_name());
    allocated(there, "another-node");
    tells_status(token, here).expect("a claim of its own node");
    let refusal = tells_status(token, there).expect_err("refused");
    assert!(refusal.contains("resourceclaims/driver"), "{refusal}");
    drop(claims);
}

#[tokio::test]
async fn the_shipped_account_serves_its_own_node_and_is_refused_every_other() {
    if !has_cluster() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (account, token) = (account(), token());
    let path = folder.path().join("kubeconfig");
    fs::write(&path, kubeconfig(&token)).expect("written");
    let rig = Rig::start_as("dgx-h100", "dra: {offer: instead}\n", &path.display().to_string());
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    a_pod_is_served().await;
    slices_are_of_its_own_node(&token).await;
    status_is_of_its_own_node(&token);
    rig.nothing_is_held().await;
    drop((manifests, rig, account));
}
