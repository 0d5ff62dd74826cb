//! Refusals of the API server, with their wording.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::{Value, json};
use windlass_cluster_sim::api::{ApiServer, Objects, Refusal, Settings};

fn objects() -> Objects {
    ApiServer::offline(Settings::default()).objects()
}

fn create(spec: &Value) -> Result<ResourceSlice, Refusal> {
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "s"}, "spec": spec,
    });
    objects().create(&serde_json::from_value(slice).expect("a slice"))
}

/// Specification of a valid slice with these devices.
fn spec(devices: &Value) -> Value {
    json!({
        "driver": "gpu.example.com", "nodeName": "n1", "devices": devices,
        "pool": {"name": "n1/gpus", "generation": 1, "resourceSliceCount": 1},
    })
}

fn devices(count: usize, extra_fields: &Value) -> Value {
    let device = |index| {
        let mut device = json!({"name": format!("gpu-{index}")});
        let fields = extra_fields.as_object().expect("fields").clone();
        device.as_object_mut().expect("made an object above").extend(fields);
        device
    };
    (0..count).map(device).collect()
}

/// Specification of a valid slice with one field changed.
fn spec_with(pointer: &str, value: Value) -> Value {
    let mut spec = spec(&devices(1, &json!({"attributes": {"a": {"int": 1}}})));
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    spec.pointer_mut(parent).expect("a parent")[key] = value;
    spec
}

fn check(spec: &Value, expected: &str) {
    let refusal = create(spec).expect_err(expected);
    assert_eq!((refusal.code, refusal.reason), (422, "Invalid"));
    let message = refusal.to_string();
    assert!(message.contains(expected), "{expected}\n{message}");
    let start = "ResourceSlice.resource.k8s.io \"s\" is invalid: ";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn a_valid_slice_is_accepted() {
    let taint = json!({"taints": [{"key": "a.com/b", "effect": "NoSchedule"}]});
    for spec in [
        spec(&devices(128, &json!({}))),
        spec(&devices(64, &taint)),
        spec(&json!([])),
        spec_with("/devices/0/attributes", json!({"x.com/y": {"version": "1.2.3-rc.1+b"}})),
    ] {
        assert!(create(&spec).is_ok(), "{spec}");
    }
}

#[test]
fn a_slice_is_refused_with_the_field_and_the_reason() {
    let taint = json!({"taints": [{"key": "a.com/b", "effect": "NoSchedule"}]});
    let attributes = |count: usize| -> Value {
        (0..count)
            .map(|i| (format!("a{i}"), json!({"int": 1})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    for (spec, expected) in [
        (
            spec(&devices(129, &json!({}))),
            "spec.devices: Too many: 129: must have at most 128 items",
        ),
        (spec(&devices(65, &taint)), "spec.devices: Too many: 65: must have at most 64 items"),
        (
            spec_with("/devices/0/name", "GPU".into()),
            "spec.devices[0].name: Invalid value: \"GPU\"",
        ),
        (spec_with("/devices/0/attributes", attributes(33)), "and capacities must not exceed 32"),
        (
            spec_with("/devices/0/attributes/a", json!({"string": "x".repeat(65)})),
            "spec.devices[0].attributes[a].string: Too long: may not be more than 64 bytes",
        ),
        (
            spec_with("/devices/0/attributes/a", json!({"version": "1.02.3"})),
            "must be a string compatible with semver.org spec 2.0.0",
        ),
        (spec_with("/devices/0/attributes/a", json!({})), "exactly one value must be specified"),
        (
            spec_with("/devices/0/attributes", json!({"a-b": {"int": 1}})),
            "a valid C identifier must start with alphabetic character",
        ),
        (
            spec_with("/devices/0/taints", json!([{"key": "k", "effect": "Never"}])),
            "Unsupported value: \"Never\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
        ),
        (
            spec_with(
                "/devices/0/capacity",
                json!({"m": {"value": "1", "requestPolicy": {"default": "1"}}}),
            ),
            "spec.devices[0].capacity[m].requestPolicy: Forbidden: allowMultipleAllocations must be true",
        ),
    ] {
        check(&spec, expected);
    }
}

#[test]
fn a_slice_needs_a_valid_node_selection_and_pool() {
    for (spec, expected) in [
        (spec_with("/allNodes", true.into()), "{`nodeName`, `allNodes`}"),
        (spec_with("/nodeName", Value::Null), "spec: Required value: exactly one of `nodeName`"),
        (spec_with("/pool/name", "n1//x".into()), "spec.pool.name: Invalid value: \"\""),
        (spec_with("/pool/resourceSliceCount", 0.into()), "must be greater than zero"),
        (
            spec_with("/sharedCounters", json!([])),
            "only one of `sharedCounters` or `devices` is allowed",
        ),
        (spec(&json!([{"name": "a"}, {"name": "a"}])), "spec.devices[1]: Duplicate value: \"a\""),
    ] {
        check(&spec, expected);
    }
}

#[test]
fn request_policies_of_capacities_are_validated() {
    let slice = |policy: Value| {
        spec(&json!([{
            "name": "gpu-0", "allowMultipleAllocations": true,
            "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}},
        }]))
    };
    let range = |default: &str, range: Value| json!({"default": default, "validRange": range});
    assert!(
        create(&slice(range("1Gi", json!({"min": "1Gi", "step": "1Gi", "max": "80Gi"})))).is_ok()
    );
    for (policy, expected) in [
        (
            range("1Gi", json!({"min": "2Gi"})),
            "validRange.min: Invalid value: \"1Gi\": default is less than min: 2Gi",
        ),
        (
            range("1Gi", json!({"min": "1Gi", "max": "81Gi"})),
            "max is larger than capacity value: 80Gi",
        ),
        (
            range("1Gi", json!({"min": "1Gi", "step": "3", "max": "2Gi"})),
            "value is not a multiple of a given step (3) from (1Gi)",
        ),
        (
            json!({"default": "3", "validValues": ["1", "2"]}),
            "default value is not valid according to the requestPolicy",
        ),
        (
            json!({"default": "1", "validValues": ["2", "1"]}),
            "values must be sorted in ascending order",
        ),
        (
            json!({"validValues": ["2"]}),
            "default: Required value: required when validValues is defined",
        ),
    ] {
        let message = create(&slice(policy)).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected}\n{message}");
    }
}

#[test]
fn immutable_fields_of_slices_and_claims_cannot_change() {
    let objects = objects();
    let mut slice: ResourceSlice = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "s"}, "spec": spec(&json!([])),
    }))
    .expect("a slice");
    objects.create(&slice).expect("created");
    slice.spec.pool.name = "other".into();
    let message = objects.update(&slice).expect_err("immutable").to_string();
    assert!(
        message.ends_with("spec.pool.name: Invalid value: \"other\": field is immutable"),
        "{message}"
    );

    let mut claim: ResourceClaim = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": {"devices": [{"driver": "d.com", "pool": "p", "device": "x"}]},
    }))
    .expect("a claim");
    objects.create(&claim).expect("created");
    let message = objects.update_status(&claim).expect_err("not allocated").to_string();
    assert!(message.contains("must be an allocated device in the claim"), "{message}");
    let result = json!({"request": "r", "driver": "d.com", "pool": "p", "device": "x"});
    claim.status = serde_json::from_value(json!({
        "allocation": {"devices": {"results": [result]}},
        "devices": [{"driver": "d.com", "pool": "p", "device": "x"}],
    }))
    .expect("a status");
    objects.update_status(&claim).expect("allocated");
    let results = claim.status.as_mut().and_then(|s| s.allocation.as_mut());
    let results = results.and_then(|a| a.devices.as_mut()).and_then(|d| d.results.as_mut());
    results.expect("results")[0].device = "y".into();
    let message = objects.update_status(&claim).expect_err("immutable").to_string();
    assert!(message.contains("status.allocation: Invalid value"), "{message}");
    claim.status = None;
    let released_claim = objects.update_status(&claim).expect("released");
    assert_eq!(released_claim.status, None);
}
