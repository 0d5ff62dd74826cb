//! Further cases of Kubernetes' own allocator tests (default feature gates), with devices of two drivers.

mod combinations;
mod pools;
mod shares;

use windlass_sched::allocator::AllocationError;

use super::*;

/// Case with the classes `gpu` of driver `d.com` and `nic` of driver `e.com`.
fn case(slices: Vec<Value>, requests: Value) -> Case {
    let mut case = Case::new(slices, requests);
    case.classes.push(class("nic", "device.driver == 'e.com'"));
    case
}

/// Slice with other fields of its specification.
fn spec(mut slice: Value, fields: Value) -> Value {
    slice["spec"] = merged(slice["spec"].take(), fields);
    slice
}

/// Slice of a pool with `count` slices.
fn of_pool(slice: Value, pool: &str, count: i64) -> Value {
    spec(slice, json!({"pool": {"name": pool, "generation": 1, "resourceSliceCount": count}}))
}

/// Whole pool of driver `e.com`.
fn nics(names: &[&str]) -> Value {
    spec(of_pool(slice("nics", 1, plain(names)), "nics", 1), json!({"driver": "e.com"}))
}

/// Devices without attributes.
fn plain(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

fn nic(name: &str, fields: Value) -> Value {
    request(name, merged(json!({"deviceClassName": "nic"}), fields))
}

fn request_all(name: &str, fields: Value) -> Value {
    request(name, merged(json!({"allocationMode": "All"}), fields))
}

/// Request with alternatives.
fn first_available(name: &str, alternatives: Value) -> Value {
    json!({"name": name, "firstAvailable": alternatives})
}

fn alternative(name: &str, fields: Value) -> Value {
    merged(json!({"name": name, "deviceClassName": "gpu"}), fields)
}

/// Selects devices whose attribute `name` of driver `d.com` has the value.
fn has_value(name: &str, value: &str) -> Value {
    cel(&format!("device.attributes['d.com'].{name} == {value}"))
}

/// Selects devices whose capacity `memory` of driver `d.com` is at least this amount.
fn memory(minimum: &str) -> Value {
    cel(&format!("device.capacity['d.com'].memory.compareTo(quantity('{minimum}')) >= 0"))
}

fn sized(name: &str, memory: &str) -> Value {
    json!({"name": name, "capacity": {"memory": {"value": memory}}})
}

/// Allocation results of whole devices of pool `p`.
fn device_results(names: &[&str]) -> Value {
    let result =
        |name: &&str| json!({"request": "r", "driver": "d.com", "pool": "p", "device": name});
    names.iter().map(result).collect()
}

/// Slice of counters by set, one of two slices of pool `p`.
fn counters(sets: Value) -> Value {
    let sets: Value = sets.as_object().expect("sets").iter().map(counter_set).collect();
    spec(slice("counters", 2, Value::Null), json!({"sharedCounters": sets}))
}

fn counter_set((name, counters): (&String, &Value)) -> Value {
    json!({"name": name, "counters": values(counters)})
}

/// Amounts as quantities of counters or capacities.
fn values(amounts: &Value) -> Value {
    let value = |(name, amount): (&String, &Value)| (name.clone(), json!({"value": amount}));
    Value::Object(amounts.as_object().expect("amounts").iter().map(value).collect())
}

/// Device that consumes counters by set, and has their amounts as its capacity.
fn part(name: &str, sets: Value) -> Value {
    let sets = sets.as_object().expect("sets");
    let consumption =
        |(set, amounts): (&String, &Value)| json!({"counterSet": set, "counters": values(amounts)});
    let consumes: Value = sets.iter().map(consumption).collect();
    let capacity = sets.values().fold(json!({}), |all, amounts| merged(all, values(amounts)));
    json!({"name": name, "consumesCounters": consumes, "capacity": capacity})
}

/// Part that consumes this much of the counter `memory` of the set `gpu`.
fn memory_part(name: &str, memory: &str) -> Value {
    part(name, json!({"gpu": {"memory": memory}}))
}

/// Pool of a GPU with 8 Gi and these parts.
fn gpu_of(parts: Value) -> Vec<Value> {
    vec![counters(json!({"gpu": {"memory": "8Gi"}})), slice("parts", 2, parts)]
}

#[track_caller]
fn check_no_fit(case: &Case) {
    let outcome = case.allocate();
    assert!(matches!(outcome, Err(AllocationError::NoFit(_))), "{outcome:?}");
}

#[track_caller]
fn check_error(case: &Case, text: &str) {
    let outcome = case.allocate();
    let is_expected =
        matches!(&outcome, Err(AllocationError::Invalid(error)) if error.contains(text));
    assert!(is_expected, "{outcome:?} is no error about {text:?}");
}

/// `count` device names, numbered from `first`.
fn numbered(first: usize, count: usize) -> Vec<String> {
    (first..first + count).map(|number| format!("n{number:02}")).collect()
}

fn numbered_devices(count: usize) -> Value {
    let names = numbered(0, count);
    plain(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Outcome in which one request gets these devices.
fn expected_outcome(request: &str, names: &[String]) -> String {
    names.iter().map(|name| format!("{request}={name}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn claims_without_requests_fit_and_requests_without_devices_do_not() {
    let mut nothing = case(vec![slice("s", 1, plain(&["a"]))], json!([]));
    check(&nothing, "");
    nothing.claims.clear();
    check(&nothing, "");
    let one = || json!([request("r", json!({}))]);
    check_no_fit(&case(Vec::new(), one()));
    check_no_fit(&case(vec![nics(&["n"])], one()));
    let on_other_node = spec(slice("s", 1, plain(&["a"])), json!({"nodeName": "n2"}));
    let on_this_node = of_pool(slice("t", 1, plain(&["b"])), "q", 1);
    check(&case(vec![on_other_node, on_this_node], one()), "r=b");
    let mut two = case(vec![slice("s", 1, plain(&["a"]))], one());
    two.claims.push(claim(json!([request("s", json!({}))])));
    check_no_fit(&two);
    check_no_fit(
        &case(vec![slice("s", 1, plain(&["a"]))], one())
            .with_allocated(device_results(&["a", "b"])),
    );
}

#[test]
fn equal_device_names_of_two_drivers_are_different_devices() {
    let mut both = case(
        vec![slice("s", 1, plain(&["a", "b"])), nics(&["a"])],
        json!([request("r", json!({}))]),
    );
    both.claims.push(claim(json!([nic("r", json!({}))])));
    let results = both.allocate().expect("devices");
    let driver = |claim: usize| results[claim]["devices"]["results"][0]["driver"].clone();
    assert_eq!((driver(0), driver(1)), (json!("d.com"), json!("e.com")));
    check(&both, "r=a r=a");
}

#[test]
fn a_large_request_gets_the_large_device_in_any_order() {
    let requests = || [request("small", memory("1Gi")), request("large", memory("2Gi"))];
    for sizes in [
        json!([sized("s", "1Gi"), sized("l", "2Gi")]),
        json!([sized("l", "2Gi"), sized("s", "1Gi")]),
    ] {
        check(&case(vec![slice("s", 1, sizes.clone())], json!(requests())), "small=s large=l");
        let [small, large] = requests();
        let mut two = case(vec![slice("s", 1, sizes)], json!([small]));
        two.claims.push(claim(json!([large])));
        check(&two, "small=s large=l");
    }
}

#[test]
fn unknown_parts_of_claims_and_invalid_expressions_end_the_search() {
    let case_with =
        |more: Value| case(vec![slice("s", 1, plain(&["a"]))], json!([request("r", more)]));
    check_error(
        &case_with(json!({"deviceClassName": "other"})),
        "could not retrieve device class other",
    );
    check_error(&case_with(json!({"deviceClassName": ""})), "claim default/c, request r: ");
    check_error(&case_with(json!({"allocationMode": "Future"})), "unsupported count mode Future");
    check_error(&case_with(json!({})).constrained(json!({})), "unsupported constraint type?");
    check_error(
        &case_with(json!({"selectors": [{}]})),
        "claim default/c: selector #0: CEL compile error",
    );
    check_error(&case_with(cel("nobody")), "claim default/c: selector #0: CEL compile error");
    let everything = merged(cel("nobody"), json!({"allocationMode": "All"}));
    check_error(&case_with(everything), "claim default/c: selector #0: CEL compile error");
    let mut class_itself = case_with(json!({}));
    class_itself.classes[0] = class("gpu", "nobody");
    check_error(&class_itself, "class gpu: selector #0: CEL compile error");
}

#[test]
fn a_claim_has_at_most_32_devices() {
    let case_with = |devices: usize, requests: Value| {
        case(vec![slice("s", 1, numbered_devices(devices))], requests)
    };
    let count = |count: usize| json!({"count": count});
    check_error(
        &case_with(1, json!([request("r", count(500))])),
        "500 exceeds the claim limit of 32",
    );
    check_no_fit(&case_with(1, json!([request("r", count(32))])));
    check(
        &case_with(33, json!([request("r", count(32))])),
        &expected_outcome("r", &numbered(0, 32)),
    );
    let both = json!([request("r", count(32)), request("s", json!({}))]);
    check_error(&case_with(33, both), "33 exceeds the claim limit of 32");
    check_error(
        &case_with(33, json!([request_all("r", json!({}))])),
        "33 exceeds the claim limit of 32",
    );
    let first = json!([alternative("many", count(500)), alternative("one", json!({}))]);
    check(&case_with(1, json!([first_available("r", first)])), "r/one=n00");
    // Each request alone is within the limit. Both requests are within it only with their second alternatives.
    let half = json!([alternative("all", count(32)), alternative("half", count(16))]);
    let twice = json!([first_available("r", half.clone()), first_available("s", half)]);
    let expected = [
        expected_outcome("r/half", &numbered(0, 16)),
        expected_outcome("s/half", &numbered(16, 16)),
    ]
    .join(" ");
    check(&case_with(64, twice), &expected);
    let few =
        json!([alternative("all", json!({"allocationMode": "All"})), alternative("two", count(2))]);
    let mut with_nics = case_with(31, json!([first_available("r", few), nic("s", count(2))]));
    with_nics.slices.push(nics(&["x", "y"]));
    check(&with_nics, "r/two=n00 r/two=n01 s=x s=y");
}

#[test]
fn all_devices_are_those_of_all_pools_without_those_of_other_claims() {
    let two =
        || vec![slice("s", 1, plain(&["a", "b"])), of_pool(slice("t", 1, plain(&["c"])), "q", 1)];
    check(&case(two(), json!([request_all("r", json!({}))])), "r=a r=b r=c");
    let (mut first, mut last) = (two(), two());
    first.push(nics(&["n"]));
    last.push(nics(&["n"]));
    let mut first = case(first, json!([request_all("r", json!({}))]));
    first.claims.push(claim(json!([nic("s", json!({}))])));
    check(&first, "r=a r=b r=c s=n");
    let mut last = case(last, json!([nic("s", json!({}))]));
    last.claims.push(claim(json!([request_all("r", json!({}))])));
    check(&last, "s=n r=a r=b r=c");
    for requests in [
        [request_all("r", json!({})), request("s", json!({}))],
        [request("s", json!({})), request_all("r", json!({}))],
    ] {
        let [one, other] = requests;
        let mut contested = case(vec![slice("s", 1, plain(&["a"]))], json!([one]));
        contested.claims.push(claim(json!([other])));
        check_no_fit(&contested);
    }
    check_no_fit(&case(vec![slice("s", 1, json!([]))], json!([request_all("r", json!({}))])));
    check_no_fit(&case(Vec::new(), json!([request_all("r", json!({}))])));
    check(
        &case(gpu_of(json!([memory_part("a", "4Gi")])), json!([request_all("r", json!({}))])),
        "r=a",
    );
}

#[test]
fn admin_access_shares_devices_between_claims_but_not_within_one() {
    let admin = json!({"adminAccess": true});
    let ab = || vec![slice("s", 1, plain(&["a", "b"]))];
    check(
        &case(ab(), json!([request_all("r", admin.clone())]))
            .with_allocated(device_results(&["a"])),
        "r=a r=b",
    );
    let two = json!([request("r", merged(admin.clone(), json!({"count": 2})))]);
    check(&case(ab(), two).with_allocated(device_results(&["a"])), "r=a r=b");
    check_no_fit(&case(
        ab(),
        json!([request("r", admin.clone()), request_all("s", admin.clone())]),
    ));
    let mut both = case(ab(), json!([request("r", admin.clone())]));
    both.claims.push(claim(json!([request("s", admin.clone())])));
    check(&both, "r=a s=a");
    let mut one = case(ab(), json!([request("r", json!({}))]));
    one.claims.push(claim(json!([request("s", admin.clone())])));
    check(&one, "r=a s=a");
    check(
        &case(ab(), json!([request("r", admin)])).with_allocated(device_results(&["a", "b"])),
        "r=a",
    );
}

#[test]
fn a_tainted_device_requires_a_toleration_of_each_taint() {
    let taint = |effect: &str| json!({"key": effect, "value": "v", "effect": effect});
    let tolerate = |effect: &str| json!({"key": effect, "value": "v", "effect": effect});
    let tainted = |name: &str, effects: &[&str]| {
        let taints: Value = effects.iter().map(|effect| taint(effect)).collect();
        json!({"name": name, "taints": taints})
    };
    let (schedule, execute) = ("NoSchedule", "NoExecute");
    let two = || vec![slice("s", 1, json!([tainted("a", &[schedule]), tainted("b", &[execute])]))];
    let one = |effects: &[&str]| vec![slice("s", 1, json!([tainted("a", effects)]))];
    let tolerant = |effects: &[&str]| {
        let tolerations: Value = effects.iter().map(|effect| tolerate(effect)).collect();
        json!({"tolerations": tolerations})
    };
    check_no_fit(&case(two(), json!([request("r", json!({}))])));
    check_no_fit(&case(one(&[schedule, execute]), json!([request("r", json!({}))])));
    let case_of_b = case(two(), json!([request("r", tolerant(&[execute]))]));
    check(&case_of_b, "r=b");
    let results = case_of_b.allocate().expect("devices");
    assert_eq!(results[0]["devices"]["results"][0]["tolerations"][0]["key"], execute);
    let either = json!([alternative("no", json!({})), alternative("yes", tolerant(&[execute]))]);
    check(&case(two(), json!([first_available("r", either)])), "r/yes=b");
    check(&case(one(&["None"]), json!([request("r", json!({}))])), "r=a");
    check(
        &case(one(&[schedule, execute]), json!([request("r", tolerant(&[schedule, execute]))])),
        "r=a",
    );
    check_no_fit(&case(one(&[schedule, execute]), json!([request("r", tolerant(&[schedule]))])));
    let neither = json!([
        alternative("nic", json!({"deviceClassName": "nic"})),
        alternative("gpu", json!({}))
    ]);
    check_no_fit(&case(one(&[schedule]), json!([first_available("r", neither)])));
    check_no_fit(&case(one(&[schedule]), json!([request("r", json!({"adminAccess": true}))])));
    check_no_fit(&case(one(&[schedule]), json!([request_all("r", json!({}))])));
}
