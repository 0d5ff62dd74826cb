//! Combinations of alternatives, constraints and configuration, and backtracking.

use super::*;

fn attributes(name: &str, attributes: Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

fn typed(name: &str, kind: &str) -> Value {
    attributes(name, json!({"kind": {"string": kind}}))
}

fn case_of(devices: Value, requests: Value) -> Case {
    case(vec![slice("s", 1, devices)], requests)
}

#[test]
fn alternatives_are_tried_one_by_one_in_order() {
    let nic_first = |count: i64| {
        json!([first_available(
            "r",
            json!([
                alternative("nic", json!({"deviceClassName": "nic", "count": count})),
                alternative("gpu", json!({"count": count})),
            ])
        )])
    };
    check(&case_of(plain(&["a"]), nic_first(1)), "r/gpu=a");
    check_no_fit(&case(vec![slice("s", 1, plain(&["a"])), nics(&["n"])], nic_first(2)));
    let by_size = |name: &str, large: &str, small: &str| {
        first_available(
            name,
            json!([alternative("large", memory(large)), alternative("small", memory(small))]),
        )
    };
    let sizes = || json!([sized("a", "8Gi"), sized("b", "4Gi")]);
    check(
        &case_of(sizes(), json!([request("r", memory("8Gi")), by_size("s", "8Gi", "4Gi")])),
        "r=a s/small=b",
    );
    check(
        &case_of(sizes(), json!([by_size("s", "8Gi", "4Gi"), request("r", memory("8Gi"))])),
        "s/small=b r=a",
    );
    let two = first_available(
        "s",
        json!([
            alternative("large", memory("4Gi")),
            alternative("pair", merged(memory("2Gi"), json!({"count": 2}))),
        ]),
    );
    let three = json!([sized("a", "2Gi"), sized("b", "2Gi"), sized("c", "1Gi")]);
    check(&case_of(three, json!([request("r", memory("1Gi")), two])), "r=c s/pair=a s/pair=b");
}

#[test]
fn an_alternative_for_all_devices_needs_all_of_them_and_at_least_one() {
    let everything = json!({"allocationMode": "All"});
    let all_or_one = || {
        first_available(
            "r",
            json!([alternative("all", everything.clone()), alternative("one", json!({}))]),
        )
    };
    let ab = || plain(&["a", "b"]);
    check(&case_of(ab(), json!([all_or_one()])), "r/all=a r/all=b");
    check(&case_of(ab(), json!([all_or_one()])).with_allocated(device_results(&["a"])), "r/one=b");
    check(&case_of(ab(), json!([all_or_one()])).with_allocated(device_results(&["b"])), "r/one=a");
    check(&case_of(ab(), json!([request("q", json!({})), all_or_one()])), "q=a r/one=b");
    let or_nic = || {
        let nic = alternative("nic", json!({"deviceClassName": "nic"}));
        json!([first_available("r", json!([alternative("all", everything.clone()), nic]))])
    };
    check(&case(vec![slice("s", 1, json!([])), nics(&["n"])], or_nic()), "r/nic=n");
    check(&case(vec![nics(&["n"])], or_nic()), "r/nic=n");
    check(
        &case(vec![slice("s", 1, ab()), nics(&["n"])], or_nic())
            .with_allocated(device_results(&["a"])),
        "r/nic=n",
    );
    let of_kind = |name: &str, kind: &str| {
        alternative(name, merged(everything.clone(), has_value("kind", kind)))
    };
    let newest =
        || json!([first_available("r", json!([of_kind("new", "'v6'"), of_kind("old", "'v5'")]))]);
    check(&case_of(json!([typed("a", "v5")]), newest()), "r/old=a");
    let second = || of_pool(slice("t", 1, json!([typed("b", "v5")])), "q", 1);
    let first = || slice("s", 1, json!([typed("a", "v5")]));
    check(&case(vec![first(), second()], newest()), "r/old=a r/old=b");
    let elsewhere = json!([typed("b", "v5"), typed("c", "v6")]);
    let elsewhere = spec(of_pool(slice("t", 1, elsewhere), "q", 1), json!({"nodeName": "n2"}));
    check(&case(vec![first(), elsewhere], newest()), "r/old=a");
    let chosen = |name: &str, kind: &str, chosen: bool| {
        attributes(name, json!({"kind": {"string": kind}, "chosen": {"bool": chosen}}))
    };
    let mut subset = case_of(
        json!([chosen("a", "v6", false), chosen("b", "v5", false), chosen("c", "v5", true)]),
        newest(),
    );
    subset.classes[0] =
        class("gpu", "device.driver == 'd.com' && device.attributes['d.com'].chosen");
    check(&subset, "r/old=c");
}

#[test]
fn constraints_compare_values_of_each_type() {
    let two = || json!([request("r", json!({"count": 2}))]);
    let pair = |one: Value, other: Value| {
        json!([attributes("a", json!({"it": one})), attributes("b", json!({"it": other}))])
    };
    let same = || json!({"matchAttribute": "d.com/it"});
    for (one, other) in [
        (json!({"int": 1}), json!({"int": 2})),
        (json!({"string": "x"}), json!({"string": "y"})),
        (json!({"bool": true}), json!({"bool": false})),
        (json!({"version": "1.0.0"}), json!({"version": "2.0.0"})),
    ] {
        check(&case_of(pair(one.clone(), one.clone()), two()).constrained(same()), "r=a r=b");
        check_no_fit(&case_of(pair(one.clone(), other.clone()), two()).constrained(same()));
        let each = json!([request("r", json!({})), request("s", json!({}))]);
        let distinct = json!({"distinctAttribute": "d.com/it"});
        check(
            &case_of(pair(one.clone(), other.clone()), each.clone()).constrained(distinct.clone()),
            "r=a s=b",
        );
        check_no_fit(&case_of(pair(one.clone(), one.clone()), each).constrained(distinct));
        check_error(
            &case_of(pair(one, other), json!([request_all("r", json!({}))])).constrained(same()),
            "claim default/c, request r: cannot add device d.com/p/b because a claim constraint would not be satisfied",
        );
    }
    check_no_fit(&case_of(plain(&["a"]), json!([request("r", json!({}))])).constrained(same()));
}

#[test]
fn constraints_name_requests_and_alternatives() {
    let version = |name: &str, memory: &str, version: &str| {
        merged(sized(name, memory), json!({"attributes": {"version": {"version": version}}}))
    };
    let by_size = || {
        first_available(
            "s",
            json!([alternative("two", memory("2Gi")), alternative("one", memory("1Gi"))]),
        )
    };
    let requests = || json!([request("r", memory("8Gi")), by_size()]);
    let same = |names: Value| json!({"matchAttribute": "d.com/version", "requests": names});
    let devices = json!([
        version("a", "8Gi", "1.0.0"),
        version("b", "2Gi", "2.0.0"),
        version("c", "1Gi", "1.0.0")
    ]);
    check(&case_of(devices, requests()).constrained(same(json!(["r", "s"]))), "r=a s/one=c");
    let devices = json!([version("a", "8Gi", "1.0.0"), version("b", "2Gi", "2.0.0")]);
    check(&case_of(devices, requests()).constrained(same(json!(["r", "s/two"]))), "r=a s/one=b");
    let pair = json!([version("a", "1Gi", "1.0.0"), version("b", "1Gi", "2.0.0")]);
    let two = json!([request("r", json!({})), request("s", json!({}))]);
    check(&case_of(pair, two.clone()).constrained(same(json!(["r"]))), "r=a s=b");
    // The second constraint makes the search backtrack over the first device.
    let grouped = |name: &str, version: &str, group: &str| {
        attributes(name, json!({"version": {"version": version}, "group": {"string": group}}))
    };
    let three =
        json!([grouped("a", "1.0.0", "x"), grouped("b", "2.0.0", "y"), grouped("c", "3.0.0", "y")]);
    let mut case = case_of(three, two);
    case.claims[0]["spec"]["devices"]["constraints"] =
        json!([same(json!(["r"])), {"matchAttribute": "d.com/group"}]);
    check(&case, "r=b s=c");
}

#[test]
fn distinct_constraints_hold_for_the_requests_they_name() {
    let of_three = |name: &str, version: &str, numa: i64, even: bool| {
        let values =
            json!({"version": {"version": version}, "numa": {"int": numa}, "even": {"bool": even}});
        merged(attributes(name, values), json!({"allowMultipleAllocations": true}))
    };
    let devices = json!([
        of_three("a", "1.0.0", 0, true),
        of_three("b", "1.0.1", 1, false),
        of_three("c", "1.0.2", 2, true),
        of_three("d", "1.0.0", 3, true),
    ]);
    let requests: Value =
        ["r", "s", "t", "u"].iter().map(|name| request(name, json!({}))).collect();
    let mut four = case_of(devices, requests);
    four.claims[0]["spec"]["devices"]["constraints"] = json!([
        {"distinctAttribute": "d.com/even", "requests": ["r", "s"]},
        {"distinctAttribute": "d.com/version", "requests": ["r", "s", "t"]},
        {"distinctAttribute": "d.com/numa", "requests": ["r", "s", "t", "u"]},
    ]);
    check(&four, "r=a s=b t=c u=d");
    let even = |name: &str| {
        first_available(
            name,
            json!([alternative("even", has_value("even", "true")), alternative("any", json!({}))]),
        )
    };
    let two = json!([of_three("a", "1.0.0", 0, true), of_three("b", "1.0.0", 0, false)]);
    let three = case_of(two, json!([even("r"), even("s"), even("t")]));
    let distinct = json!({"distinctAttribute": "d.com/even", "requests": ["r", "s"]});
    check(&three.constrained(distinct), "r/even=a s/any=b t/even=a");
}

#[test]
fn configuration_is_that_of_the_chosen_alternatives() {
    let opaque =
        |driver: &str, value: i64| json!({"driver": driver, "parameters": {"value": value}});
    let gpu_or_nics = json!([first_available(
        "r",
        json!([
            alternative("gpu", json!({})),
            alternative("nics", json!({"deviceClassName": "nic", "count": 2})),
        ])
    )]);
    let mut case = case(vec![nics(&["x", "y"])], gpu_or_nics);
    for (class, driver) in [(0, "d.com"), (1, "e.com")] {
        case.classes[class]["spec"]["config"] = json!([{"opaque": opaque(driver, 1)}]);
    }
    case.claims[0]["spec"]["devices"]["config"] = json!([
        {"requests": ["r/gpu"], "opaque": opaque("d.com", 2)},
        {"requests": ["r/nics"], "opaque": opaque("e.com", 3)},
    ]);
    check(&case, "r/nics=x r/nics=y");
    assert_eq!(
        case.allocate().expect("devices")[0]["devices"]["config"],
        json!([
            {"source": "FromClass", "requests": ["r/nics"], "opaque": opaque("e.com", 1)},
            {"source": "FromClaim", "requests": ["r/nics"], "opaque": opaque("e.com", 3)},
        ])
    );
}

#[test]
fn the_search_tries_each_combination_and_backtracks_over_slices_and_pools() {
    let five = || json!([request("r", json!({"count": 5}))]);
    let names = ["a", "b", "c", "d"];
    check_no_fit(&case_of(plain(&names), five()));
    let halves = [&names[..2], &names[2..]].map(|half| slice(half[0], 2, plain(half)));
    check_no_fit(&case(halves.to_vec(), five()));
    let pools = names.iter().map(|name| of_pool(slice(name, 1, plain(&[name])), name, 1));
    check_no_fit(&case(pools.collect(), five()));
    let special =
        || json!([request("r", json!({"count": 2})), request("s", has_value("kind", "'X'"))]);
    check(
        &case_of(json!([typed("a", "X"), typed("b", "Y"), typed("c", "Y")]), special()),
        "r=b r=c s=a",
    );
    let bound = merged(typed("c", "Y"), json!({"bindingConditions": ["Ready"]}));
    let separate = vec![
        slice("s1", 2, json!([typed("a", "X")])),
        slice("s2", 2, json!([typed("b", "Y")])),
        of_pool(slice("s3", 1, json!([bound])), "q", 1),
    ];
    check(&case(separate, special()), "r=b r=c s=a");
    let either = json!([
        first_available(
            "r",
            json!([
                alternative("three", merged(has_value("kind", "'Y'"), json!({"count": 3}))),
                alternative("two", json!({"count": 2})),
            ])
        ),
        first_available(
            "s",
            json!([
                alternative("two", json!({"count": 2})),
                alternative("one", has_value("kind", "'X'"))
            ])
        ),
    ]);
    check(
        &case_of(json!([typed("a", "X"), typed("b", "Y"), typed("c", "Y")]), either),
        "r/two=b r/two=c s/one=a",
    );
}
