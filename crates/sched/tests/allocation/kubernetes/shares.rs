//! Shares of devices by capacity.

use super::*;

/// Device with this capacity, which several requests may share.
fn shared(name: &str, capacity: Value) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "capacity": capacity})
}

fn units(value: i64) -> Value {
    json!({"units": {"value": value.to_string()}})
}

/// Capacity with requests rounded up to 2 or 4 units.
fn in_steps_of_two(value: i64) -> Value {
    let range = json!({"min": "2", "step": "2", "max": "4"});
    json!({"units": {"value": value.to_string(), "requestPolicy": {"default": "2", "validRange": range}}})
}

/// Capacity with requests rounded up to one of the valid values. The first is the default.
fn with_valid_values(value: i64, valid: &[&str]) -> Value {
    let policy = json!({"default": valid[0], "validValues": valid});
    json!({"units": {"value": value.to_string(), "requestPolicy": policy}})
}

fn with_units(units: i64) -> Value {
    json!({"capacity": {"requests": {"units": units.to_string()}}})
}

fn case_of(devices: Value, requests: &[Value]) -> Case {
    case(vec![slice("s", 1, devices)], json!(requests))
}

/// Case with one claim per request.
fn one_claim_each(devices: Value, requests: &[Value]) -> Case {
    let mut case = case_of(devices, &requests[..1]);
    case.claims.extend(requests[1..].iter().map(|request| claim(json!([request]))));
    case
}

/// Allocation of a share of a device.
fn share(name: &str, units: i64) -> Value {
    json!([{
        "request": "r", "driver": "d.com", "pool": "p", "device": name,
        "shareID": "00000000-0000-4000-8000-000000000000", "consumedCapacity": {"units": units.to_string()},
    }])
}

/// Checks the devices of the results, and the units that each one consumes.
#[track_caller]
fn check_units(case: &Case, expected: &str) {
    let results = case.allocate().expect("devices");
    let claims = results.as_array().expect("a list").iter();
    let devices = claims.flat_map(|claim| claim["devices"]["results"].as_array().expect("a list"));
    let text = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    let line = devices.map(|it| {
        format!(
            "{}={}:{}",
            text(&it["request"]),
            text(&it["device"]),
            text(&it["consumedCapacity"]["units"])
        )
    });
    assert_eq!(line.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn a_device_without_the_requested_capacity_is_skipped() {
    let cores = json!([shared("a", json!({"cores": {"value": "1"}}))]);
    check_no_fit(&case_of(cores.clone(), &[request("r", with_units(1))]));
    check_no_fit(&case_of(cores, &[request_all("r", with_units(1))]));
    let ab = |b: Value| json!([shared("a", units(2)), b]);
    check_units(&case_of(ab(shared("b", json!({}))), &[request_all("r", with_units(2))]), "r=a:2");
    check_units(&case_of(ab(shared("b", units(1))), &[request_all("r", with_units(2))]), "r=a:2");
}

#[test]
fn a_share_without_an_amount_is_the_default_or_the_whole_capacity() {
    let two = || [request("r", json!({})), request("s", json!({}))];
    check_units(&one_claim_each(json!([shared("a", json!({}))]), &two()), "r=a:none s=a:none");
    check_units(
        &one_claim_each(json!([shared("a", units(1)), shared("b", units(1))]), &two()),
        "r=a:1 s=b:1",
    );
    check_no_fit(&one_claim_each(json!([shared("a", units(2))]), &two()));
    check_units(&one_claim_each(json!([shared("a", in_steps_of_two(4))]), &two()), "r=a:2 s=a:2");
    check_units(
        &one_claim_each(json!([shared("a", with_valid_values(1, &["0"]))]), &two()),
        "r=a:0 s=a:0",
    );
}

#[test]
fn an_amount_is_rounded_up_to_a_permitted_amount() {
    let two = |units: i64| [request("r", with_units(units)), request("s", with_units(units))];
    check_units(&one_claim_each(json!([shared("a", units(2))]), &two(1)), "r=a:1 s=a:1");
    check_units(&one_claim_each(json!([shared("a", in_steps_of_two(4))]), &two(1)), "r=a:2 s=a:2");
    let one = |units: i64, capacity: Value| {
        case_of(json!([shared("a", capacity)]), &[request("r", with_units(units))])
    };
    check_units(&one(3, in_steps_of_two(4)), "r=a:4");
    check_units(&one(2, with_valid_values(4, &["1", "2"])), "r=a:2");
    check_units(&one(2, with_valid_values(3, &["1", "3"])), "r=a:3");
    check_no_fit(&one(1, with_valid_values(1, &["0"])));
    check_no_fit(&one(6, in_steps_of_two(10)));
    check_no_fit(&one_claim_each(
        json!([shared("a", in_steps_of_two(2))]),
        &[request("r", with_units(1)), request("s", with_units(2))],
    ));
}

#[test]
fn shares_of_other_claims_are_counted() {
    let two =
        |first: i64| json!([shared("a", in_steps_of_two(first)), shared("b", in_steps_of_two(2))]);
    let request_two = || [request("r", with_units(2))];
    check_units(&case_of(two(4), &request_two()).with_allocated(share("a", 2)), "r=a:2");
    check_units(&case_of(two(2), &request_two()).with_allocated(share("a", 2)), "r=b:2");
    check_no_fit(
        &case_of(json!([shared("a", in_steps_of_two(2))]), &request_two())
            .with_allocated(share("a", 2)),
    );
    // Two shares are allocated, so no unit is free.
    check_no_fit(
        &case_of(json!([shared("a", in_steps_of_two(4))]), &request_two())
            .with_allocated(share("a", 2))
            .with_allocated(share("a", 2)),
    );
    check_no_fit(
        &case_of(json!([shared("a", in_steps_of_two(2))]), &[request("r", with_units(1))])
            .with_allocated(device_results(&["a"])),
    );
    let exclusive = json!([{"name": "a", "capacity": in_steps_of_two(2)}]);
    check_no_fit(&case_of(exclusive, &[request("r", with_units(1))]).with_allocated(share("a", 1)));
}

#[test]
fn mode_all_counts_the_devices_whose_capacity_sufficed_before_the_search() {
    let ab = |a: i64| json!([shared("a", units(a)), shared("b", units(1))]);
    let both = || [request("r", with_units(1)), request_all("s", with_units(1))];
    check_units(&case_of(ab(2), &both()), "r=a:1 s=a:1 s=b:1");
    check_no_fit(&case_of(ab(1), &both()));
    check_units(
        &case_of(ab(2), &[request_all("r", with_units(1))]).with_allocated(share("a", 1)),
        "r=a:1 r=b:1",
    );
    check_units(
        &case_of(ab(1), &[request_all("r", with_units(1))]).with_allocated(share("a", 1)),
        "r=b:1",
    );
}

#[test]
fn the_search_releases_shares_when_it_backtracks() {
    let device = |name: &str, group: &str, units: i64| {
        merged(
            shared(name, in_steps_of_two(units)),
            json!({"attributes": {"group": {"string": group}}}),
        )
    };
    let devices = json!([device("a", "x", 2), device("b", "y", 4)]);
    let pair = [request("r", with_units(2)), request("s", with_units(2))];
    let mut case = case_of(devices, &pair).constrained(json!({"matchAttribute": "d.com/group"}));
    case.claims.push(claim(json!([request("t", with_units(2))])));
    check_units(&case, "r=b:2 s=b:2 t=a:2");
    let alternatives = json!([
        alternative("four", with_units(4)),
        alternative("two", with_units(2)),
        alternative("any", json!({}))
    ]);
    check_units(
        &case_of(json!([shared("a", in_steps_of_two(2))]), &[first_available("r", alternatives)]),
        "r/two=a:2",
    );
}

#[test]
fn a_device_without_multiple_allocations_serves_one_request() {
    let exclusive = json!([{"name": "a", "capacity": units(1)}]);
    let results =
        case_of(exclusive.clone(), &[request("r", with_units(1))]).allocate().expect("devices");
    assert_eq!(results[0]["devices"]["results"][0]["shareID"], Value::Null);
    assert_eq!(results[0]["devices"]["results"][0]["consumedCapacity"], Value::Null);
    let larger = json!([{"name": "a", "capacity": in_steps_of_two(2)}]);
    check_no_fit(&one_claim_each(
        larger,
        &[request("r", with_units(1)), request("s", with_units(1))],
    ));
    let whole = merged(with_units(1), cel("!device.allowMultipleAllocations"));
    check_no_fit(&case_of(json!([shared("a", units(1))]), &[request("r", whole)]));
}

#[test]
fn shares_of_a_partition_consume_its_counters_once() {
    let shared = |name: &str, memory: &str| {
        merged(memory_part(name, memory), json!({"allowMultipleAllocations": true}))
    };
    let three = gpu_of(json!([shared("a", "4Gi"), shared("b", "6Gi"), shared("c", "4Gi")]));
    let either = json!([alternative("six", memory("6Gi")), alternative("four", memory("4Gi"))]);
    check(
        &case(three, json!([request("r", json!({})), first_available("s", either)])),
        "r=a s/four=c",
    );
    // An allocated share consumes the counters of its partition.
    let modes = gpu_of(json!([shared("a", "8Gi"), shared("b", "8Gi")]));
    let mut allocated = share("a", 1);
    allocated[0]["consumedCapacity"] = json!({"memory": "1Gi"});
    let other = json!([request(
        "r",
        cel("device.capacity['d.com'].memory.compareTo(quantity('8Gi')) == 0")
    )]);
    check_no_fit(&case(modes, other).with_allocated(allocated));
    let part = |name: &str, units: &str| {
        let part = part(name, json!({"gpu": {"units": units}, "slot": {"steps": "4"}}));
        let mut part = merged(part, json!({"allowMultipleAllocations": true}));
        part["capacity"]["steps"] = in_steps_of_two(4)["units"].clone();
        part
    };
    let sets = counters(json!({"gpu": {"units": "4"}, "slot": {"steps": "8"}}));
    let parts = slice("parts", 2, json!([part("a", "2"), part("b", "4"), part("c", "2")]));
    let at_least = |units: i64| {
        merged(
            with_units(1),
            cel(&format!("device.capacity['d.com'].units.compareTo(quantity('{units}')) >= 0")),
        )
    };
    let either = first_available(
        "t",
        json!([alternative("four", at_least(4)), alternative("two", at_least(2))]),
    );
    let requests = json!([request("r", with_units(1)), request("s", with_units(2)), either]);
    check_units(&case(vec![sets, parts], requests), "r=a:1 s=c:2 t/two=a:1");
}

#[test]
fn distinct_attributes_keep_shares_on_different_devices() {
    let group = |name: &str, group: &str, units: i64| {
        merged(
            shared(name, in_steps_of_two(units)),
            json!({"attributes": {"group": {"string": group}}}),
        )
    };
    let distinct = || json!({"distinctAttribute": "d.com/group"});
    let two = || [request("r", with_units(1)), request("s", with_units(1))];
    check_no_fit(&case_of(json!([group("a", "x", 4)]), &two()).constrained(distinct()));
    check_units(
        &case_of(json!([group("a", "x", 4), group("b", "y", 4)]), &two()).constrained(distinct()),
        "r=a:2 s=b:2",
    );
    let none = json!([shared("a", units(2))]);
    check_no_fit(&case_of(none, &[request("r", json!({}))]).constrained(distinct()));
}
