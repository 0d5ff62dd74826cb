//! Prepared claims, pools and allocated devices, each used for many allocations.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::AllocationResult;
use windlass_sched::allocator::{AllocatedDevices, Claims, Pools};

use super::*;

fn node(name: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node")
}

fn shared(documents: &[Value]) -> Vec<Arc<ResourceSlice>> {
    typed(documents).into_iter().map(Arc::new).collect()
}

/// Claim for devices of class `gpu`.
fn claims(requests: Value) -> Claims {
    let classes = typed::<DeviceClass>(&[class("gpu", "device.driver == 'd.com'")]);
    Claims::new(&typed::<ResourceClaim>(&[claim(requests)]), &classes).expect("valid claims")
}

/// Allocation with the results, as in the status of a claim.
fn allocation(results: Value) -> AllocationResult {
    serde_json::from_value(json!({"devices": {"results": results}})).expect("an allocation")
}

/// Names of the allocated devices, or the error.
fn outcome(claims: &Claims, pools: &Pools, allocated: &AllocatedDevices) -> String {
    match claims.allocate(pools, allocated) {
        Ok(results) => {
            let results =
                results.into_iter().filter_map(|result| result.devices.expect("devices").results);
            results.flatten().map(|result| result.device).collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn prepared_values_can_be_cloned_and_sent_to_other_threads() {
    fn check<T: Clone + Send + Sync + 'static>() {}
    check::<Claims>();
    check::<Pools>();
    check::<AllocatedDevices>();
}

#[test]
fn a_prepared_claim_is_allocated_on_many_nodes_while_other_claims_change() {
    let one = claims(json!([request("r", json!({}))]));
    let pools = Pools::new(&shared(&[slice("s", 1, devices(&["a", "b"]))]), &node("n1"));
    assert_eq!((pools.len(), pools.is_empty()), (2, false));
    let mut allocated = AllocatedDevices::default();
    assert_eq!(outcome(&one, &pools, &allocated), "a");
    assert_eq!(
        outcome(&one, &pools, &allocated),
        "a",
        "a result is not added to the allocated devices"
    );
    let mut results = Vec::new();
    for expected in ["a", "b"] {
        let result = one.allocate(&pools, &allocated).expect("a free device").remove(0);
        assert_eq!(outcome(&one, &pools, &allocated), expected);
        allocated.add(&result);
        results.push(result);
    }
    assert!(outcome(&one, &pools, &allocated).ends_with("among 2 devices (2 in use)"));
    allocated.remove(&results[0]);
    assert_eq!(outcome(&one, &pools, &allocated), "a");
    allocated.remove(&results[1]);
    assert_eq!(allocated, AllocatedDevices::default());
    let other = Pools::new(&shared(&[slice("s", 1, devices(&["a"]))]), &node("n2"));
    assert!(other.is_empty());
}

#[test]
fn removing_an_allocation_keeps_the_others_of_the_same_device() {
    let device = |fields: Value| allocation(json!([result(fields)]));
    let share = |memory: &str| {
        let id = "00000000-0000-4000-8000-000000000000";
        device(json!({"shareID": id, "consumedCapacity": {"memory": memory}}))
    };
    let allocations = [share("2Gi"), share("3Gi"), device(json!({})), device(json!({}))];
    let mut allocated = AllocatedDevices::default();
    for allocation in &allocations {
        allocated.add(allocation);
    }
    allocated.add(&device(json!({"adminAccess": true})));
    for ending in &allocations[1..] {
        allocated.remove(ending);
    }
    let mut expected = AllocatedDevices::default();
    expected.add(&allocations[0]);
    assert_eq!(allocated, expected);
    allocated.remove(&allocations[0]);
    assert_eq!(allocated, AllocatedDevices::default());
    allocated.remove(&allocations[0]);
    assert_eq!(allocated, AllocatedDevices::default(), "an unknown allocation changes nothing");
}

#[test]
fn slices_of_other_nodes_matter_only_while_their_counters_are_incomplete() {
    let own_slice = slice("s", 1, devices(&["a"]));
    let mut other_slice = slice("t", 1, devices(&["b"]));
    other_slice["spec"]["nodeName"] = "n2".into();
    other_slice["spec"]["pool"]["name"] = "q".into();
    let mut incomplete = slice("u", 2, Value::Null);
    incomplete["spec"]["nodeName"] = "n3".into();
    incomplete["spec"]["pool"]["name"] = "w".into();
    incomplete["spec"]["sharedCounters"] =
        json!([{"name": "gpu", "counters": {"parts": {"value": "2"}}}]);
    let all_devices = claims(json!([request("r", json!({"allocationMode": "All"}))]));
    let outcome_with = |slices: &[Value]| {
        outcome(
            &all_devices,
            &Pools::new(&shared(slices), &node("n1")),
            &AllocatedDevices::default(),
        )
    };
    assert_eq!(outcome_with(std::slice::from_ref(&own_slice)), "a");
    assert_eq!(outcome_with(&[other_slice.clone(), own_slice.clone()]), "a");
    let mut completing = slice("x", 2, devices(&["c"]));
    completing["spec"]["nodeName"] = "n3".into();
    completing["spec"]["pool"]["name"] = "w".into();
    assert_eq!(outcome_with(&[incomplete.clone(), completing, own_slice.clone()]), "a");
    assert_eq!(
        outcome_with(&[incomplete, own_slice]),
        "claim default/c, request r: asks for all devices, but resource pool d.com/w is currently being updated"
    );
}
