//! Writes that the admission policies of `deploy/rbac.yaml` allow an agent's token: its own labels, slices and
//! statuses.

use std::path::Path;

use serde_json::{Value, json};

use crate::cluster_api::{
    admission::{Numbers, evaluate_policy},
    manifests::documents,
};

/// An admission policy from the files.
fn policy(name: &str) -> Value {
    let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy"));
    let files = ["rbac.yaml", "options/nvfractions/rights.yaml"];
    let all: Vec<_> = files.iter().flat_map(|file| documents(&deploy.join(file))).collect();
    let is_bound = all.iter().any(|it| it["spec"]["policyName"] == name);
    assert!(is_bound, "{name} has no binding");
    let is_match =
        |it: &&Value| it["kind"] == "ValidatingAdmissionPolicy" && it["metadata"]["name"] == name;
    all.iter().find(is_match).unwrap_or_else(|| panic!("no policy {name}")).clone()
}

/// A request of the agent on a node.
fn request(resource: &str, name: &str, operation: &str) -> Value {
    json!({
        "resource": {"resource": resource},
        "name": name,
        "operation": operation,
        "userInfo": {"extra": {"authentication.kubernetes.io/node-name": ["n1"]}},
    })
}

/// Verdict of a policy on a change.
fn verdict(name: &str, request: &Value, from: &Value, to: &Value) -> Result<(), String> {
    let parts = [("request", request), ("oldObject", from), ("object", to)];
    evaluate_policy(&policy(name), &parts, Numbers::Integer)
}

/// A Node with labels and other fields.
fn node(labels: &Value, other_fields: &Value) -> Value {
    let mut metadata = json!({"name": "n1"});
    if !labels.is_null() {
        metadata["labels"] = labels.clone();
    }
    let mut node = json!({"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}});
    for (key, value) in other_fields.as_object().into_iter().flatten() {
        let place = if key == "spec" { &mut node } else { &mut node["metadata"] };
        place[key] = value.clone();
    }
    node
}

/// Changes of a Node's labels, and the label that must not change.
fn label_changes() -> Vec<(Value, Value, Option<&'static str>)> {
    vec![
        (json!(null), json!({"nvidia.com/gpu.count": "8"}), None),
        (json!({"nvidia.com/gpu.count": "8"}), json!({"nvidia.com/gpu.count": "7"}), None),
        (json!({"a": "b", "nvidia.com/gpu.count": "8"}), json!({"a": "b"}), None),
        (json!(null), json!({"amd.com/gpu.vram": "1G", "beta.amd.com/gpu.vram": "1G"}), None),
        (json!(null), json!({"windlass.dev/simulated": "dgx-h100"}), None),
        (json!(null), json!({"node-role.kubernetes.io/x": ""}), Some("node-role.kubernetes.io/x")),
        (
            json!({"kubernetes.io/os": "a"}),
            json!({"kubernetes.io/os": "b"}),
            Some("kubernetes.io/os"),
        ),
        (
            json!({"node-restriction.kubernetes.io/x": "a"}),
            json!(null),
            Some("node-restriction.kubernetes.io/x"),
        ),
        (json!(null), json!({"nvidia.community/x": "1"}), Some("nvidia.community/x")),
        (json!(null), json!({"plain": "1"}), Some("plain")),
        (
            json!(null),
            json!({"nvidia.com/device-plugin.config": "x"}),
            Some("nvidia.com/device-plugin.config"),
        ),
        (
            json!({"nvidia.com/mig.config": "a"}),
            json!({"nvidia.com/mig.config": "b"}),
            Some("nvidia.com/mig.config"),
        ),
        (
            json!(null),
            json!({"nvidia.com/gpu.deploy.driver": "x"}),
            Some("nvidia.com/gpu.deploy.driver"),
        ),
    ]
}

#[test]
fn an_agent_changes_its_own_labels_of_its_own_node() {
    let (own_request, no_fields) = (request("nodes", "n1", "UPDATE"), json!({}));
    for (from, to, foreign) in label_changes() {
        let answer = verdict(
            "windlass-own-node",
            &own_request,
            &node(&from, &no_fields),
            &node(&to, &no_fields),
        );
        let message = |label| format!("windlass may not change the label {label} of a Node");
        assert_eq!(answer, foreign.map_or(Ok(()), |label| Err(message(label))), "{from} to {to}");
    }
    let unchanged = node(&Value::Null, &no_fields);
    let answer =
        verdict("windlass-own-node", &request("nodes", "n2", "UPDATE"), &unchanged, &unchanged);
    assert_eq!(answer, Err("windlass on node n1 may not write n2".to_owned()));
}

#[test]
fn an_agent_changes_no_other_field_of_its_node() {
    let (own_request, plain) = (request("nodes", "n1", "UPDATE"), node(&Value::Null, &json!({})));
    let (spec, metadata) = ("the spec", "other annotations, finalizers and owners");
    for (other_fields, part) in [
        (json!({"annotations": {"a": "b"}}), metadata),
        (json!({"finalizers": ["a/b"]}), metadata),
        (json!({"ownerReferences": [{"uid": "1"}]}), metadata),
        (json!({"spec": {"unschedulable": true}}), spec),
        (json!({"spec": {"taints": []}}), spec),
    ] {
        let message = Err(format!("windlass may not change {part} of a Node"));
        let changed = node(&Value::Null, &other_fields);
        assert_eq!(
            verdict("windlass-own-node", &own_request, &plain, &changed),
            message,
            "{other_fields}"
        );
        assert_eq!(
            verdict("windlass-own-node", &own_request, &changed, &plain),
            message,
            "{other_fields} taken away"
        );
    }
    let devices = |text: &str| {
        let metadata_fields = json!({"annotations": {"a": "b", "windlass.dev/devices": text}});
        node(&Value::Null, &metadata_fields)
    };
    let other = node(&Value::Null, &json!({"annotations": {"a": "b"}}));
    for (from, to) in
        [(&other, &devices("1")), (&devices("1"), &devices("2")), (&devices("2"), &other)]
    {
        assert_eq!(verdict("windlass-own-node", &own_request, from, to), Ok(()), "{from} to {to}");
    }
}

#[test]
fn an_agent_writes_one_condition_of_its_own_node() {
    let status_with = |ready: &str, kubelet: &str, gpus: &str| {
        json!({"metadata": {"name": "n1"}, "status": {
            "capacity": {"nvidia.com/gpu": gpus},
            "conditions": [
                {"type": "Ready", "status": kubelet},
                {"type": "gpu-fractioning.nvidia.com/Ready", "status": ready},
            ],
        }})
    };
    let (own_request, before) =
        (request("nodes", "n1", "UPDATE"), status_with("True", "True", "8"));
    let empty = json!({"metadata": {"name": "n1"}, "status": {}});
    let only = json!({"metadata": {"name": "n1"}, "status": {"conditions": [
        {"type": "gpu-fractioning.nvidia.com/Ready", "status": "False"},
    ]}});
    for (from, to, refused_part) in [
        (&before, status_with("Unknown", "True", "8"), None),
        (&empty, only, None),
        (&before, status_with("True", "False", "8"), Some("other conditions of a Node")),
        (&before, status_with("True", "True", "9"), Some("the rest of a Node's status")),
        (&before, empty.clone(), Some("other conditions of a Node")),
    ] {
        let message =
            refused_part.map_or(Ok(()), |it| Err(format!("windlass may not change {it}")));
        assert_eq!(verdict("windlass-own-condition", &own_request, from, &to), message, "{to}");
    }
    let other = request("nodes", "n2", "UPDATE");
    let answer = verdict("windlass-own-condition", &other, &before, &before);
    assert_eq!(answer, Err("windlass on node n1 may not write the status of n2".to_owned()));
}

#[test]
fn an_agent_writes_its_own_node_feature_with_any_labels() {
    let own_request = request("nodefeatures", "windlass-features-for-n1", "CREATE");
    let object = json!({"metadata": {"labels": {"nfd.node.kubernetes.io/node-name": "n1"}}});
    assert_eq!(verdict("windlass-own-node", &own_request, &Value::Null, &object), Ok(()));
    let delete = request("nodefeatures", "windlass-features-for-n1", "DELETE");
    assert_eq!(verdict("windlass-own-node", &delete, &object, &Value::Null), Ok(()));
    let other_request = request("nodefeatures", "windlass-features-for-n2", "CREATE");
    let answer = verdict("windlass-own-node", &other_request, &Value::Null, &object);
    assert_eq!(
        answer,
        Err("windlass on node n1 may not write windlass-features-for-n2".to_owned())
    );
}

#[test]
fn an_agent_corrects_the_placement_of_pods_on_its_own_node_and_no_other_field() {
    let update = request("pods", "p", "UPDATE");
    let pod =
        |node: &str, metadata: Value| json!({"metadata": metadata, "spec": {"nodeName": node}});
    let placed = |placed: &str| json!({"annotations": {"a": "b", "windlass.dev/placed": placed}});
    let plain = || json!({"annotations": {"a": "b"}});
    let message = |text: &str| Err(text.to_owned());
    let of_others = "windlass may not write pods of other nodes";
    let other_fields =
        "windlass may change the annotation windlass.dev/placed of a pod, and nothing else";
    for (from, to, expected) in [
        (
            pod("n1", json!({})),
            pod("n1", json!({"annotations": {"windlass.dev/placed": "1"}})),
            Ok(()),
        ),
        (pod("n1", plain()), pod("n1", placed("1")), Ok(())),
        (pod("n1", placed("1")), pod("n1", placed("2")), Ok(())),
        (pod("n2", plain()), pod("n2", placed("1")), message(of_others)),
        (
            json!({"metadata": {}, "spec": {}}),
            json!({"metadata": placed("1"), "spec": {}}),
            message(of_others),
        ),
        (pod("n2", plain()), pod("n1", placed("1")), message(other_fields)),
        (pod("n1", plain()), pod("n1", json!({})), message(other_fields)),
        (
            pod("n1", json!({})),
            pod("n1", json!({"annotations": {"windlass.dev/placement": "1"}})),
            message(other_fields),
        ),
        (pod("n1", json!({})), pod("n1", json!({"labels": {"a": "b"}})), message(other_fields)),
        (pod("n1", json!({})), pod("n1", json!({"finalizers": ["a/b"]})), message(other_fields)),
        (
            pod("n1", json!({"ownerReferences": [{"uid": "1"}]})),
            pod("n1", json!({})),
            message(other_fields),
        ),
    ] {
        assert_eq!(verdict("windlass-own-pods", &update, &from, &to), expected, "{from} to {to}");
    }
}

#[test]
fn an_agent_writes_slices_of_its_own_node_and_driver() {
    let create = request("resourceslices", "s", "CREATE");
    let slice = |node: &str, driver: &str| json!({"spec": {"nodeName": node, "driver": driver}});
    for (slice, is_admitted) in [
        (slice("n1", "windlass.dev"), true),
        (slice("n1", "gpu.nvidia.com"), true),
        (slice("n2", "windlass.dev"), false),
        (slice("n1", "dra.example.com"), false),
        (json!({"spec": {"allNodes": true, "driver": "windlass.dev"}}), false),
    ] {
        let answer = verdict("windlass-own-slices", &create, &Value::Null, &slice);
        assert_eq!(answer.is_ok(), is_admitted, "{slice}: {answer:?}");
    }
}

#[test]
fn an_agent_writes_the_status_of_its_devices_and_no_other_field_of_a_claims_status() {
    let update = request("resourceclaims", "c", "UPDATE");
    let allocation =
        json!({"devices": {"results": [{"driver": "windlass.dev", "device": "gpu-0"}]}});
    let users = json!([{"resource": "pods", "name": "p", "uid": "1"}]);
    let own_status = json!({"driver": "windlass.dev", "device": "gpu-0", "conditions": []});
    let nic_status = json!({"driver": "nic.example.com", "device": "n",
                            "networkData": {"ips": ["10.0.0.1/24"]}});
    let changed_status =
        json!({"driver": "windlass.dev", "device": "gpu-0", "conditions": [{"type": "Ready"}]});
    let claim = |status: Value| json!({"spec": {}, "status": status});
    let devices = json!([own_status, nic_status]);
    let before = claim(json!({"allocation": allocation, "reservedFor": users, "devices": devices}));
    let prefix = "windlass may not change";
    for (after, expected) in [
        (
            claim(json!({"allocation": allocation, "reservedFor": users,
                         "devices": [changed_status, nic_status]})),
            None,
        ),
        (
            claim(json!({"allocation": allocation, "reservedFor": users, "devices": [nic_status]})),
            None,
        ),
        (
            claim(json!({"reservedFor": users, "devices": devices})),
            Some("the allocation of a claim"),
        ),
        (
            claim(json!({"allocation": {"devices": {"results": []}}, "reservedFor": users,
                         "devices": devices})),
            Some("the allocation of a claim"),
        ),
        (
            claim(json!({"allocation": allocation, "devices": devices})),
            Some("whom a claim is reserved for"),
        ),
        (
            claim(json!({"allocation": allocation, "reservedFor": users, "devices": [own_status]})),
            Some("the status of other drivers' devices"),
        ),
    ] {
        let answer = verdict("windlass-claim-status", &update, &before, &after);
        let expected = expected.map_or(Ok(()), |part| Err(format!("{prefix} {part}")));
        assert_eq!(answer, expected, "{after}");
    }
    let bare = json!({"spec": {}});
    assert_eq!(verdict("windlass-claim-status", &update, &bare, &bare), Ok(()));
    let allocated = claim(json!({"allocation": allocation}));
    let answer = verdict("windlass-claim-status", &update, &bare, &allocated);
    assert_eq!(answer, Err(format!("{prefix} the allocation of a claim")));
}
