//! Claims, pools and taken devices, prepared once and used for many allocations.

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

/// Allocation of the results, as the status of a claim holds it.
fn allocation(results: Value) -> AllocationResult {
    serde_json::from_value(json!({"devices": {"results": results}})).expect("an allocation")
}

/// Chosen devices, or the error.
fn outcome(claims: &Claims, pools: &Pools, taken: &AllocatedDevices) -> String {
    match claims.allocate(pools, taken) {
        Ok(results) => {
            let results =
                results.into_iter().filter_map(|result| result.devices.expect("devices").results);
            results.flatten().map(|result| result.device).collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn prepared_values_may_be_kept_and_sent_to_other_threads() {
    fn is_kept<T: Clone + Send + Sync + 'static>() {}
    is_kept::<Claims>();
    is_kept::<Pools>();
    is_kept::<AllocatedDevices>();
}

#[test]
fn one_claim_is_asked_on_many_nodes_while_others_come_and_go() {
    let one = claims(json!([request("r", json!({}))]));
    let pools = Pools::new(&shared(&[slice("s", 1, devices(&["a", "b"]))]), &node("n1"));
    assert_eq!((pools.len(), pools.is_empty()), (2, false));
    let mut taken = AllocatedDevices::default();
    assert_eq!(outcome(&one, &pools, &taken), "a");
    assert_eq!(outcome(&one, &pools, &taken), "a", "an answer takes nothing");
    let mut given = Vec::new();
    for expected in ["a", "b"] {
        let result = one.allocate(&pools, &taken).expect("a free device").remove(0);
        assert_eq!(outcome(&one, &pools, &taken), expected);
        taken.add(&result);
        given.push(result);
    }
    assert!(outcome(&one, &pools, &taken).ends_with("among 2 devices (2 in use)"));
    taken.remove(&given[0]);
    assert_eq!(outcome(&one, &pools, &taken), "a");
    taken.remove(&given[1]);
    assert_eq!(taken, AllocatedDevices::default());
    let other = Pools::new(&shared(&[slice("s", 1, devices(&["a"]))]), &node("n2"));
    assert!(other.is_empty());
}

#[test]
fn an_allocation_that_ends_leaves_those_of_the_same_device() {
    let device = |more: Value| {
        let mut result = json!({"request": "r", "driver": "d.com", "pool": "p", "device": "a"});
        result
            .as_object_mut()
            .expect("made above")
            .extend(more.as_object().expect("fields").clone());
        allocation(json!([result]))
    };
    let share = |memory: &str| {
        let id = "00000000-0000-4000-8000-000000000000";
        device(json!({"shareID": id, "consumedCapacity": {"memory": memory}}))
    };
    let all = [share("2Gi"), share("3Gi"), device(json!({})), device(json!({}))];
    let mut taken = AllocatedDevices::default();
    for allocation in &all {
        taken.add(allocation);
    }
    taken.add(&device(json!({"adminAccess": true})));
    for ending in &all[1..] {
        taken.remove(ending);
    }
    let mut rest = AllocatedDevices::default();
    rest.add(&all[0]);
    assert_eq!(taken, rest);
    taken.remove(&all[0]);
    assert_eq!(taken, AllocatedDevices::default());
    taken.remove(&all[0]);
    assert_eq!(taken, AllocatedDevices::default(), "an unknown allocation changes nothing");
}

#[test]
fn slices_of_other_nodes_change_no_answer_but_for_unfinished_counters() {
    let ours = slice("s", 1, devices(&["a"]));
    let mut theirs = slice("t", 1, devices(&["b"]));
    theirs["spec"]["nodeName"] = "n2".into();
    theirs["spec"]["pool"]["name"] = "q".into();
    let mut unfinished = slice("u", 2, Value::Null);
    unfinished["spec"]["nodeName"] = "n3".into();
    unfinished["spec"]["pool"]["name"] = "w".into();
    unfinished["spec"]["sharedCounters"] =
        json!([{"name": "gpu", "counters": {"parts": {"value": "2"}}}]);
    let all = claims(json!([request("r", json!({"allocationMode": "All"}))]));
    let ask = |slices: &[Value]| {
        outcome(&all, &Pools::new(&shared(slices), &node("n1")), &AllocatedDevices::default())
    };
    assert_eq!(ask(std::slice::from_ref(&ours)), "a");
    assert_eq!(ask(&[theirs.clone(), ours.clone()]), "a");
    let mut rest = slice("x", 2, devices(&["c"]));
    rest["spec"]["nodeName"] = "n3".into();
    rest["spec"]["pool"]["name"] = "w".into();
    assert_eq!(ask(&[unfinished.clone(), rest, ours.clone()]), "a");
    assert_eq!(
        ask(&[unfinished, ours]),
        "claim default/c, request r: asks for all devices, but resource pool d.com/w is currently being updated"
    );
}
