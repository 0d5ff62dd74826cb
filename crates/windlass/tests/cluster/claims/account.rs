//! Rights of the service account in `deploy/rbac.yaml`: it may write slices and claim statuses of its own node only.

use std::fs;

use serde_json::{Value, json};

use super::{
    objects::{objects, pod},
    owners::claims,
    rig::{Rig, node_name, wait_for_running},
};
use crate::cluster::{
    NODE_STATUS_LIMIT, eventually, has_cluster,
    pods::{Manifests, Pods, kubectl, try_kubectl},
};

const NAMESPACE: &str = "windlass-system";

/// Applies the service account, and a pod that uses it on the node. The pod's token names the node.
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
    let arguments = "create token windlass --bound-object-kind Pod --bound-object-name agent -n";
    let arguments = arguments.split(' ').chain([NAMESPACE]);
    kubectl(&arguments.collect::<Vec<_>>()).trim().to_owned()
}

/// Kubeconfig of the cluster, with a token.
fn kubeconfig(token: &str) -> String {
    let text = kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["users"][0]["user"] = json!({"token": token});
    config.to_string()
}

/// A slice of a node, without devices.
fn slice(node: &str) -> Value {
    let pool = json!({"name": format!("{node}/e2e"), "generation": 1, "resourceSliceCount": 1});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "windlass-e2e-slice"},
        "spec": {"driver": "windlass.dev", "nodeName": node, "pool": pool, "devices": []},
    })
}

/// Allocates a device on a node to a claim, as a scheduler does.
fn allocate(claim: &str, node: &str) {
    let result =
        json!({"request": "gpu", "driver": "windlass.dev", "pool": "e2e", "device": "e2e"});
    let node_field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let allocation = json!({
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node_field]}]},
    });
    let status = json!({"status": {"allocation": allocation}}).to_string();
    let command = ["patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p"];
    kubectl(&[&command[..], &[&status]].concat());
}

/// Applies a claim's device status with the token of the account, as the agent does. Returns the API server's response.
fn apply_status(token: &str, claim: &str) -> Result<String, String> {
    let device = json!({"driver": "windlass.dev", "pool": "e2e", "device": "e2e"});
    let status = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": claim, "namespace": "default"}, "status": {"devices": [device]},
    });
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), status.to_string()).expect("written");
    let path = file.path().display().to_string();
    let command = ["apply", "--server-side", "--subresource=status", "-f", &path];
    try_kubectl(&[&["--token", token], &command[..]].concat())
}

fn claim(name: &str) -> String {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "windlass-e2e-gpu"}});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    });
    format!("{claim}\n")
}

/// Checks that a pod's claim is prepared and its status written. The agent needs its rights for slices, claims and
/// statuses.
async fn check_served_pod() {
    let (mut pods, name) = (Pods::new(), "windlass-e2e-account");
    pods.apply(name, &pod(name, 1));
    wait_for_running("default", name).await;
    let is_ready = async || {
        let conditions = |claim: &Value| claim["status"]["devices"][0]["conditions"].to_string();
        claims().iter().any(|claim| conditions(claim).contains("Prepared"))
    };
    eventually(NODE_STATUS_LIMIT, true, is_ready).await;
}

/// Checks that the account may write slices of its own node only. The agent then deletes the slice, because the agent
/// does not publish its pool.
async fn check_slice_rights(token: &str) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().display().to_string();
    let create = |node: &str| {
        fs::write(file.path(), slice(node).to_string()).expect("written");
        try_kubectl(&["--token", token, "create", "-f", &path])
    };
    let refusal = create("another-node").expect_err("refused");
    assert!(refusal.contains("may not write slices of node another-node"), "{refusal}");
    create(&node_name()).expect("a slice of its own node");
    let has_slice =
        async || kubectl(&["get", "resourceslices", "-o", "name"]).contains("e2e-slice");
    eventually(NODE_STATUS_LIMIT, false, has_slice).await;
}

/// Checks that the account may write the status of claims on its own node only.
fn check_status_rights(token: &str) {
    let (own_claim, other_claim) = ("windlass-e2e-here", "windlass-e2e-there");
    let claims = Manifests::apply(&[claim(own_claim), claim(other_claim)]);
    allocate(own_claim, &node_name());
    allocate(other_claim, "another-node");
    apply_status(token, own_claim).expect("a claim of its own node");
    let refusal = apply_status(token, other_claim).expect_err("refused");
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
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    check_served_pod().await;
    check_slice_rights(&token).await;
    check_status_rights(&token);
    rig.wait_for_no_owners().await;
    drop((manifests, rig, account));
}
