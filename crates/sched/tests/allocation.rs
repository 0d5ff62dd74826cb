//! Allocation cases with expected results, modelled on Kubernetes' own allocator tests.

#![expect(clippy::needless_pass_by_value, reason = "documents are written where they are used")]

mod kubernetes;
mod node_losses;
mod prepared;
mod signature;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_sched::allocator::{AllocationError, AllocationInput, allocate};

/// Devices, claims and the expected choice.
#[derive(Clone)]
struct Case {
    slices: Vec<Value>,
    classes: Vec<Value>,
    allocated: Vec<Value>,
    claims: Vec<Value>,
}

fn typed<T: DeserializeOwned>(documents: &[Value]) -> Vec<T> {
    documents
        .iter()
        .map(|document| serde_json::from_value(document.clone()).expect("a document"))
        .collect()
}

/// Slice of pool `p` on node `n1`, one of `count`.
fn slice(name: &str, count: i64, devices: Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": "d.com", "nodeName": "n1", "devices": devices,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": count},
        },
    })
}

/// Devices of two models on two buses.
fn devices(names: &[&str]) -> Value {
    let device = |(index, name): (usize, &&str)| {
        json!({
            "name": name,
            "attributes": {
                "index": {"int": index},
                "model": {"string": if index % 2 == 0 { "A" } else { "B" }},
                "other.com/bus": {"string": if index < 2 { "x" } else { "y" }},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        })
    };
    names.iter().enumerate().map(device).collect()
}

fn class(name: &str, expression: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })
}

fn claim(requests: Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
        "spec": {"devices": {"requests": requests}},
    })
}

/// The object with further fields.
fn merged(mut object: Value, fields: Value) -> Value {
    let map = fields.as_object().expect("fields").clone();
    object.as_object_mut().expect("an object").extend(map);
    object
}

/// Request of class `gpu` with more fields.
fn request(name: &str, fields: Value) -> Value {
    json!({"name": name, "exactly": merged(json!({"deviceClassName": "gpu"}), fields)})
}

/// Result of an allocation of device `a`, with more fields.
fn result(fields: Value) -> Value {
    merged(json!({"request": "r", "driver": "d.com", "pool": "p", "device": "a"}), fields)
}

fn cel(expression: &str) -> Value {
    json!({"selectors": [{"cel": {"expression": expression}}]})
}

impl Case {
    fn new(slices: Vec<Value>, requests: Value) -> Self {
        let classes = vec![class("gpu", "device.driver == 'd.com'")];
        Self { slices, classes, allocated: Vec::new(), claims: vec![claim(requests)] }
    }

    /// One pool of devices with these names.
    fn of(names: &[&str], requests: Value) -> Self {
        Self::new(vec![slice("s", 1, devices(names))], requests)
    }

    fn constrained(mut self, constraint: Value) -> Self {
        self.claims[0]["spec"]["devices"]["constraints"] = json!([constraint]);
        self
    }

    /// Adds an allocated claim.
    fn with_allocated(mut self, results: Value) -> Self {
        let mut other = claim(json!([]));
        other["status"] = json!({"allocation": {"devices": {"results": results}}});
        self.allocated.push(other);
        self
    }

    fn allocate(&self) -> Result<Value, AllocationError> {
        let (slices, classes): (Vec<ResourceSlice>, Vec<DeviceClass>) =
            (typed(&self.slices), typed(&self.classes));
        let (allocated, claims): (Vec<ResourceClaim>, Vec<ResourceClaim>) =
            (typed(&self.allocated), typed(&self.claims));
        let input = AllocationInput { classes: &classes, slices: &slices, claims: &allocated };
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"zone": "a"}},
        });
        let node: Node = serde_json::from_value(node).expect("a node");
        let results = allocate(&claims, input, &node)?;
        Ok(serde_json::to_value(results).expect("JSON"))
    }

    /// Outcome: `request=device` for each device, claim after claim, or the error.
    fn outcome(&self) -> String {
        match self.allocate() {
            Ok(results) => {
                let claims = results.as_array().expect("a list").iter();
                let results = claims
                    .flat_map(|claim| claim["devices"]["results"].as_array().expect("a list"));
                let text = |value: &Value| value.as_str().expect("a text").to_owned();
                let pairs = results.map(|result| {
                    format!("{}={}", text(&result["request"]), text(&result["device"]))
                });
                pairs.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }
}

fn check(case: &Case, expected: &str) {
    assert_eq!(case.outcome(), expected, "{:#}", case.claims[0]);
}

#[test]
fn the_first_device_that_fits_is_chosen_and_the_search_backtracks() {
    let four = ["a", "b", "c", "d"];
    let index = |i: i64| cel(&format!("device.attributes['d.com'].index == {i}"));
    check(&Case::of(&four, json!([request("r", json!({}))])), "r=a");
    check(&Case::of(&four, json!([request("r", json!({"count": 3}))])), "r=a r=b r=c");
    check(&Case::of(&four, json!([request("r", index(2))])), "r=c");
    // The first request gets the device that the second needs, so the search backtracks.
    let two = json!([request("any", json!({})), request("first", index(0))]);
    check(&Case::of(&four, two), "any=b first=a");
    let model = cel("device.attributes['d.com'].model == 'B'");
    check(&Case::of(&four, json!([request("r", model), request("s", json!({}))])), "r=b s=a");
    check(
        &Case::of(&["a"], json!([request("r", json!({"count": 2}))])),
        "cannot allocate all claims: request r found 1 of 2 among 1 devices",
    );
    let mut two = Case::of(&four, json!([request("r", json!({}))]));
    two.claims.push(claim(json!([request("s", json!({"count": 2}))])));
    check(&two, "r=a s=b s=c");
}

#[test]
fn devices_are_tried_by_pool_name_then_slice_name_then_position() {
    let mut other = slice("a", 1, devices(&["z"]));
    other["spec"]["pool"]["name"] = "a".into();
    let (second, first) = (slice("s2", 2, devices(&["x"])), slice("s1", 2, devices(&["y", "w"])));
    let requests = json!([request("r", json!({"count": 4}))]);
    check(&Case::new(vec![second, first, other], requests), "r=z r=y r=w r=x");
}

#[test]
fn only_complete_pools_of_the_newest_generation_are_used() {
    let requests = || json!([request("r", json!({}))]);
    let mut newer = slice("new", 1, devices(&["b"]));
    newer["spec"]["pool"]["generation"] = 2.into();
    check(&Case::new(vec![slice("old", 1, devices(&["a"])), newer.clone()], requests()), "r=b");
    newer["spec"]["nodeName"] = "n2".into();
    check(
        &Case::new(vec![slice("old", 2, devices(&["a"])), newer], requests()),
        "cannot allocate all claims: request r found 0 of 1 among 0 devices",
    );
    let half = Case::new(vec![slice("s", 2, devices(&["a"]))], requests());
    let none = "cannot allocate all claims: request r found 0 of 1 among 0 devices";
    check(&half, &format!("{none}; pool d.com/p is incomplete"));
    let twice = Case::new(vec![slice("s", 1, json!([{"name": "a"}, {"name": "a"}]))], requests());
    check(&twice, &format!("{none}; pool d.com/p is invalid: duplicate device name a"));
    let mut all = half;
    all.claims[0]["spec"]["devices"]["requests"] =
        json!([request("r", json!({"allocationMode": "All"}))]);
    check(
        &all,
        "claim default/c, request r: asks for all devices, but resource pool d.com/p is currently \
         being updated",
    );
}

#[test]
fn a_request_for_all_devices_gets_all_selected_devices_or_none() {
    let all = |more: Value| json!([request("r", merged(json!({"allocationMode": "All"}), more))]);
    let four = ["a", "b", "c", "d"];
    check(&Case::of(&four, all(cel("device.attributes['d.com'].model == 'A'"))), "r=a r=c");
    check(
        &Case::of(&four, all(cel("false"))),
        "cannot allocate all claims: request r found 0 of all among 4 devices (4 not selected)",
    );
    let allocated = json!([{"request": "r", "driver": "d.com", "pool": "p", "device": "c"}]);
    check(
        &Case::of(&four, all(json!({}))).with_allocated(allocated),
        "cannot allocate all claims: request r found 2 of all among 4 devices (1 in use)",
    );
}

#[test]
fn devices_of_other_claims_are_available_only_for_admin_access() {
    let allocated = |more: Value| json!([result(more)]);
    let one = || Case::of(&["a", "b"], json!([request("r", json!({}))]));
    check(&one().with_allocated(allocated(json!({}))), "r=b");
    check(&one().with_allocated(allocated(json!({"adminAccess": true}))), "r=a");
    let admin = Case::of(&["a", "b"], json!([request("r", json!({"adminAccess": true}))]));
    check(&admin.clone().with_allocated(allocated(json!({}))), "r=a");
    assert_eq!(admin.allocate().expect("devices")[0]["devices"]["results"][0]["adminAccess"], true);
}

#[test]
fn an_expression_with_an_error_ends_the_search() {
    let lack = cel("device.attributes['d.com'].colour == 'red'");
    let case = Case::of(&["a"], json!([request("r", lack)]));
    let outcome = case.outcome();
    assert!(outcome.starts_with("claim default/c: selector #0: CEL runtime error: "), "{outcome}");
    assert!(matches!(case.allocate(), Err(AllocationError::Invalid(_))));
    let memory = cel("device.capacity['d.com'].memory.compareTo(quantity('40Gi')) >= 0");
    check(&Case::of(&["a"], json!([request("r", memory)])), "r=a");
    let mut nothing = Case::of(&["a"], json!([request("r", json!({}))]));
    nothing.classes.clear();
    check(
        &nothing,
        "claim default/c, request r: could not retrieve device class gpu: \
         deviceclass.resource.k8s.io \"gpu\" not found",
    );
}

#[test]
fn the_first_alternative_that_fits_is_chosen() {
    let subrequest = |name: &str, count: i64, expression: &str| {
        json!({
            "name": name, "deviceClassName": "gpu", "count": count,
            "selectors": [{"cel": {"expression": expression}}],
        })
    };
    let model = |model: &str| format!("device.attributes['d.com'].model == '{model}'");
    let list = json!([{
        "name": "r", "firstAvailable": [subrequest("big", 2, &model("A")), subrequest("small", 1, &model("B"))],
    }]);
    check(&Case::of(&["a", "b", "c"], list.clone()), "r/big=a r/big=c");
    check(&Case::of(&["a", "b"], list), "r/small=b");
}

#[test]
fn constraints_compare_attributes() {
    let four = ["a", "b", "c", "d"];
    let two = || json!([request("r", json!({})), request("s", json!({}))]);
    let same = |name: &str| json!({"matchAttribute": name});
    check(&Case::of(&four, two()).constrained(same("d.com/model")), "r=a s=c");
    check(&Case::of(&four, two()).constrained(same("other.com/bus")), "r=a s=b");
    let different = json!({"distinctAttribute": "other.com/bus"});
    check(&Case::of(&four, two()).constrained(different), "r=a s=c");
    check(
        &Case::of(&four, two()).constrained(same("d.com/none")),
        "cannot allocate all claims: request r found 0 of 1 among 4 devices (4 against a constraint)",
    );
    let one = json!({"matchAttribute": "d.com/none", "requests": ["t"]});
    check(&Case::of(&four, two()).constrained(one), "r=a s=b");
}

#[test]
fn taints_exclude_requests_without_a_toleration() {
    let mut tainted = devices(&["a", "b"]);
    tainted[0]["taints"] = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    tainted[1]["taints"] = json!([{"key": "k", "effect": "None"}]);
    let case = |tolerations: Value| {
        let request = request("r", json!({"tolerations": tolerations}));
        Case::new(vec![slice("s", 1, tainted.clone())], json!([request]))
    };
    check(&case(json!([])), "r=b");
    check(&case(json!([{"key": "k", "operator": "Exists"}])), "r=a");
    check(&case(json!([{"key": "k", "operator": "Equal", "value": "w"}])), "r=b");
    check(&case(json!([{"operator": "Exists", "effect": "NoExecute"}])), "r=b");
}

/// A GPU with 2 parts: as a whole, and as two halves.
fn partitions() -> Vec<Value> {
    let counters = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "c"},
        "spec": {
            "driver": "d.com", "nodeName": "n1",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
            "sharedCounters": [{"name": "gpu", "counters": {"parts": {"value": "2"}}}],
        },
    });
    let part = |name: &str, parts: &str| {
        json!({
            "name": name,
            "consumesCounters": [{"counterSet": "gpu", "counters": {"parts": {"value": parts}}}],
        })
    };
    let devices = json!([part("half-0", "1"), part("half-1", "1"), part("whole", "2")]);
    vec![counters, slice("d", 2, devices)]
}

#[test]
fn partitions_share_the_counters_of_their_device() {
    let count_of = |count: i64| json!([request("r", json!({"count": count}))]);
    check(&Case::new(partitions(), count_of(2)), "r=half-0 r=half-1");
    let whole = cel("device.driver == 'd.com'");
    let allocated =
        |device: &str| json!([{"request": "r", "driver": "d.com", "pool": "p", "device": device}]);
    check(
        &Case::new(partitions(), json!([request("r", whole)])).with_allocated(allocated("half-0")),
        "r=half-1",
    );
    check(
        &Case::new(partitions(), count_of(1)).with_allocated(allocated("whole")),
        "cannot allocate all claims: request r found 0 of 1 among 3 devices (1 in use, 2 without \
         enough counters)",
    );
    let mut dangling = partitions();
    dangling[1]["spec"]["devices"][0]["consumesCounters"][0]["counterSet"] = "other".into();
    check(
        &Case::new(dangling, count_of(1)),
        "cannot allocate all claims: request r found 0 of 1 among 0 devices; pool d.com/p is \
         invalid: counter set other not found",
    );
}

#[test]
fn a_tainted_partition_keeps_its_counters_from_the_others() {
    let mut slices = partitions();
    slices[1]["spec"]["devices"][0]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    let count_of = |count: i64| json!([request("r", json!({"count": count}))]);
    check(&Case::new(slices.clone(), count_of(1)), "r=half-1");
    slices[1]["spec"]["devices"][0]["consumesCounters"][0]["counters"]["parts"]["value"] =
        "2".into();
    check(
        &Case::new(slices, count_of(1)),
        "cannot allocate all claims: request r found 0 of 1 among 3 devices (1 tainted, 2 without \
         enough counters)",
    );
}

#[test]
fn shares_of_a_device_are_rounded_and_counted() {
    let device = json!({
        "name": "a", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "8Gi", "requestPolicy": {
            "default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"},
        }}},
    });
    let case = |memory: &[&str]| {
        let share = |(index, memory): (usize, &&str)| {
            let name = format!("r{index}");
            request(&name, json!({"capacity": {"requests": {"memory": memory}}}))
        };
        let requests = memory.iter().enumerate().map(share).collect();
        Case::new(vec![slice("s", 1, json!([device]))], requests)
    };
    let two = case(&["1500Mi", "6Gi"]);
    check(&two, "r0=a r1=a");
    let results = two.allocate().expect("devices")[0]["devices"]["results"].clone();
    assert_eq!(results[0]["consumedCapacity"]["memory"], "2Gi");
    assert_eq!(results[0]["shareID"].as_str().map(str::len), Some(36));
    assert_ne!(results[0]["shareID"], results[1]["shareID"]);
    check(
        &case(&["1500Mi", "6500Mi"]),
        "cannot allocate all claims: request r1 found 0 of 1 among 1 devices (1 without the \
         capacity)",
    );
    let allocated = json!([{
        "request": "r", "driver": "d.com", "pool": "p", "device": "a",
        "shareID": "00000000-0000-4000-8000-000000000000", "consumedCapacity": {"memory": "7Gi"},
    }]);
    check(&case(&["1Gi"]).with_allocated(allocated.clone()), "r0=a");
    check(
        &case(&["2Gi"]).with_allocated(allocated),
        "cannot allocate all claims: request r0 found 0 of 1 among 1 devices (1 without the \
         capacity)",
    );
}

#[test]
fn configuration_of_the_class_comes_first_and_the_node_selector_names_the_node() {
    let mut case = Case::of(&["a", "b"], json!([request("r", json!({})), request("s", json!({}))]));
    let opaque = |value: i64| json!({"driver": "d.com", "parameters": {"value": value}});
    case.classes[0]["spec"]["config"] = json!([{"opaque": opaque(1)}]);
    case.claims[0]["spec"]["devices"]["config"] = json!([
        {"opaque": opaque(2)},
        {"requests": ["s"], "opaque": opaque(3)},
    ]);
    let result = case.allocate().expect("devices")[0].clone();
    assert_eq!(
        result["devices"]["config"],
        json!([
            {"source": "FromClass", "requests": ["r", "s"], "opaque": opaque(1)},
            {"source": "FromClaim", "opaque": opaque(2)},
            {"source": "FromClaim", "requests": ["s"], "opaque": opaque(3)},
        ])
    );
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let this_node = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    assert_eq!(result["nodeSelector"], this_node);
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]});
    case.slices[0]["spec"]["nodeName"] = Value::Null;
    case.slices[0]["spec"]["nodeSelector"] = selector.clone();
    assert_eq!(case.allocate().expect("devices")[0]["nodeSelector"], selector);
}
