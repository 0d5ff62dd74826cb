//! Pools over several slices, nodes and generations; counters and binding conditions.

use super::*;

fn one_device() -> Value {
    json!([request("r", json!({}))])
}

fn on_node(slice: Value, node: &str) -> Value {
    spec(slice, json!({"nodeName": node}))
}

/// Slice for all nodes with the label.
fn labelled(slice: Value, key: &str, value: &str) -> Value {
    spec(slice, json!({"nodeName": null, "nodeSelector": selector(key, value)}))
}

fn selector(key: &str, value: &str) -> Value {
    let expression = json!({"key": key, "operator": "In", "values": [value]});
    json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]})
}

fn node_n1() -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    json!({"nodeSelectorTerms": [{"matchFields": [field]}]})
}

/// Slice of pool `p` in a generation of two slices.
fn generation(name: &str, node: &str, generation: i64, device: &str) -> Value {
    let pool = json!({"name": "p", "generation": generation, "resourceSliceCount": 2});
    on_node(spec(slice(name, 2, plain(&[device])), json!({"pool": pool})), node)
}

#[track_caller]
fn check_selector(case: &Case, expected: Value) {
    assert_eq!(case.allocate().expect("devices")[0]["nodeSelector"], expected);
}

#[test]
fn the_node_selector_of_a_claim_is_the_intersection_of_its_devices_nodes() {
    let in_zone = |zone: &str| labelled(slice("s", 1, plain(&["a"])), "zone", zone);
    check(&case(vec![in_zone("a")], one_device()), "r=a");
    check_selector(&case(vec![in_zone("a")], one_device()), selector("zone", "a"));
    check_no_fit(&case(vec![in_zone("b")], one_device()));
    let everywhere = spec(
        of_pool(slice("t", 1, plain(&["b"])), "q", 1),
        json!({"nodeName": null, "allNodes": true}),
    );
    check_selector(&case(vec![everywhere.clone()], one_device()), Value::Null);
    let local = of_pool(slice("u", 1, plain(&["c"])), "u", 1);
    let count = |count: i64| json!([request("r", json!({"count": count}))]);
    let both = case(vec![in_zone("a"), local.clone()], count(2));
    check(&both, "r=a r=c");
    check_selector(&both, node_n1());
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let by_field = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let by_name = spec(local, json!({"nodeName": null, "nodeSelector": by_field}));
    let three = case(vec![in_zone("a"), everywhere, by_name], count(3));
    let mut intersection = selector("zone", "a");
    intersection["nodeSelectorTerms"][0]["matchFields"] = json!([field]);
    check_selector(&three, intersection);
}

#[test]
fn an_outdated_duplicate_or_incomplete_pool_has_no_devices() {
    let mut newer = slice("s2", 2, plain(&["b"]));
    newer["spec"]["pool"]["generation"] = 2.into();
    check_no_fit(&case(vec![slice("s", 2, plain(&["a"])), newer], one_device()));
    let twice =
        |count: i64| vec![slice("s", count, plain(&["a"])), slice("t", count, plain(&["a"]))];
    check_no_fit(&case(twice(2), one_device()));
    let mut with_other_pool = case(twice(2), one_device());
    with_other_pool.slices.push(of_pool(slice("u", 1, plain(&["b"])), "q", 1));
    check(&with_other_pool, "r=b");
    let other = json!([{"request": "r", "driver": "d.com", "pool": "q", "device": "b"}]);
    check(
        &with_other_pool.with_allocated(other),
        "cannot allocate all claims: request r found 0 of 1 among 1 devices (1 in use); pool d.com/p is invalid: \
         duplicate device name a",
    );
}

#[test]
fn a_node_uses_only_its_own_devices_of_a_pool() {
    let two = || vec![slice("s", 2, plain(&["a"])), on_node(slice("t", 2, plain(&["b"])), "n2")];
    check(&case(two(), json!([request_all("r", json!({}))])), "r=a");
    check(&case(two(), one_device()), "r=a");
    let stale = vec![generation("s", "n1", 1, "a"), generation("t", "n2", 2, "b")];
    check_no_fit(&case(stale, one_device()));
    let moved = |from: &str, to: &str, new: usize| {
        let old = [generation("s", from, 1, "a"), generation("t", from, 1, "b")];
        let new = [generation("u", to, 2, "c"), generation("v", to, 2, "d")].into_iter().take(new);
        case(old.into_iter().chain(new).collect(), one_device())
    };
    // A generation that is complete on this node stays valid while another node has a newer one.
    check(&moved("n1", "n2", 2), "r=a");
    check(&moved("n1", "n2", 1), "r=a");
    check(&moved("n2", "n1", 2), "r=c");
    check_no_fit(&moved("n2", "n1", 1));
}

#[test]
fn pools_and_slices_with_binding_conditions_come_last() {
    let bound = |name: &str| json!([{"name": name, "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}]);
    let two = json!([request("r", json!({"count": 2}))]);
    let pools = vec![
        of_pool(slice("s1", 1, bound("a")), "p1", 1),
        of_pool(slice("s3", 1, plain(&["c"])), "p3", 1),
        of_pool(slice("s2", 1, plain(&["b"])), "p2", 1),
    ];
    check(&case(pools, two.clone()), "r=b r=c");
    let slices = vec![
        slice("s1", 3, bound("a")),
        slice("s3", 3, plain(&["c"])),
        slice("s2", 3, plain(&["b"])),
    ];
    let slices = case(slices, two);
    check(&slices, "r=a r=b");
    let results = slices.allocate().expect("devices")[0]["devices"]["results"].clone();
    assert_eq!(results[0]["bindingConditions"], json!(["Ready"]));
    assert_eq!(results[0]["bindingFailureConditions"], json!(["Broken"]));
    assert_eq!(results[1]["bindingConditions"], Value::Null);
}

#[test]
fn a_device_with_binds_to_node_binds_its_claim_to_the_node() {
    let device = json!([{"name": "a", "bindsToNode": true}]);
    check_selector(
        &case(vec![labelled(slice("s", 1, device), "zone", "a")], one_device()),
        node_n1(),
    );
}

#[test]
fn partitions_are_allocated_while_their_counters_suffice() {
    let two = || json!([request("r", json!({})), request("s", json!({}))]);
    check(&case(gpu_of(json!([memory_part("a", "4Gi")])), one_device()), "r=a");
    let three = || {
        gpu_of(json!([memory_part("a", "4Gi"), memory_part("b", "6Gi"), memory_part("c", "4Gi")]))
    };
    check(&case(three(), two()), "r=a s=c");
    let either = json!([alternative("six", memory("6Gi")), alternative("four", memory("4Gi"))]);
    check(
        &case(three(), json!([request("r", json!({})), first_available("s", either)])),
        "r=a s/four=c",
    );
    let pair = json!([request("r", json!({"count": 2}))]);
    let unused = vec![
        counters(json!({"gpu": {"memory": "8Gi", "spare": "1Gi"}})),
        slice(
            "parts",
            2,
            json!([memory_part("a", "5Gi"), memory_part("b", "4Gi"), memory_part("c", "4Gi")]),
        ),
    ];
    check(&case(unused, pair), "r=b r=c");
    let full = |memory: &str| gpu_of(json!([memory_part("a", "4Gi"), memory_part("b", memory)]));
    check_no_fit(&case(full("5Gi"), one_device()).with_allocated(device_results(&["b"])));
    // Device b consumes more than the counter has, so no other device of the GPU can be allocated.
    check_no_fit(&case(full("20Gi"), one_device()).with_allocated(device_results(&["b"])));
}

#[test]
fn a_partition_needs_each_of_its_counters() {
    let two = || json!([request("r", json!({})), request("s", json!({}))]);
    let part = |name: &str, memory: &str, cpus: &str| {
        part(name, json!({"gpu": {"memory": memory}, "cpu": {"cpus": cpus}}))
    };
    let sets = || counters(json!({"gpu": {"memory": "18Gi"}, "cpu": {"cpus": "8"}}));
    let parts = json!([part("a", "4Gi", "4"), part("b", "6Gi", "6"), part("c", "4Gi", "4")]);
    check(&case(vec![sets(), slice("parts", 2, parts)], two()), "r=a s=c");
    let parts = json!([part("a", "4Gi", "6"), part("b", "6Gi", "4"), part("c", "4Gi", "4")]);
    check(&case(vec![sets(), slice("parts", 2, parts)], two()), "r=b s=c");
    // Each of the three partitions consumes its own counter and a common one.
    let own = |name: &str, special: bool| {
        let sets = json!({"gpu": {"memory": "10Gi"}, "cpu": {name: "1"}});
        merged(super::part(name, sets), json!({"attributes": {"special": {"bool": special}}}))
    };
    let sets = counters(json!({"gpu": {"memory": "30Gi"}, "cpu": {"a": "1", "b": "1", "c": "1"}}));
    let parts = json!([own("a", true), own("b", false), own("c", false)]);
    let requests =
        json!([request("r", json!({"count": 2})), request("s", has_value("special", "true"))]);
    check(&case(vec![sets, slice("parts", 2, parts)], requests), "r=b r=c s=a");
}

#[test]
fn each_pool_has_its_own_counters() {
    let in_q = |slice: Value| of_pool(slice, "q", 2);
    let mut slices =
        gpu_of(json!([memory_part("a", "6Gi"), memory_part("b", "4Gi"), memory_part("c", "4Gi")]));
    slices.extend(
        gpu_of(json!([memory_part("x", "6Gi"), memory_part("y", "1Gi"), memory_part("z", "1Gi")]))
            .into_iter()
            .map(in_q),
    );
    let two = json!([request("r", json!({})), request("s", json!({}))]);
    let mut allocated = device_results(&["b", "c", "x"]);
    allocated[2]["pool"] = "q".into();
    check(&case(slices, two).with_allocated(allocated), "r=y s=z");
}

#[test]
fn counters_that_contradict_their_devices_make_a_pool_invalid() {
    let none = "cannot allocate all claims: request r found 0 of 1 among 0 devices; pool d.com/p is invalid: ";
    let of = |parts: Value, sets: Value| {
        case(vec![counters(sets), slice("parts", 2, parts)], one_device())
    };
    let gpu = json!({"gpu": {"memory": "8Gi"}});
    let other = json!([part("a", json!({"other": {"memory": "1Gi"}}))]);
    check(&of(other, gpu.clone()), &format!("{none}counter set other not found"));
    let counter = json!([part("a", json!({"gpu": {"cores": "1"}}))]);
    check(&of(counter, gpu.clone()), &format!("{none}counter cores not found in counter set gpu"));
    let named = |name: &str| merged(counters(gpu.clone()), json!({"metadata": {"name": name}}));
    let twice =
        [named("c1"), named("c2"), slice("s1", 4, plain(&["a"])), slice("s2", 4, plain(&["b"]))];
    let twice = twice.into_iter().map(|slice| of_pool(slice, "p", 4)).collect();
    check(&case(twice, one_device()), &format!("{none}duplicate counter set name gpu"));
    // A device cannot consume the counters of another pool.
    let separate = vec![
        of_pool(counters(gpu.clone()), "q", 1),
        slice("parts", 1, json!([memory_part("a", "8Gi")])),
    ];
    check(&case(separate, one_device()), &format!("{none}counter set gpu not found"));
    let on_other_node =
        on_node(slice("t", 3, json!([part("z", json!({"other": {"memory": "6Gi"}}))])), "n2");
    let three = [counters(gpu), slice("s", 3, json!([memory_part("a", "6Gi")])), on_other_node];
    let three = three.into_iter().map(|slice| of_pool(slice, "p", 3)).collect();
    check(&case(three, one_device()), &format!("{none}counter set other not found"));
}

#[test]
fn devices_of_other_nodes_consume_counters_too() {
    let three = [
        counters(json!({"gpu": {"memory": "8Gi"}})),
        slice("s", 3, json!([memory_part("a", "6Gi"), memory_part("b", "2Gi")])),
        on_node(slice("t", 3, json!([memory_part("z", "6Gi")])), "n2"),
    ];
    let three = three.into_iter().map(|slice| of_pool(slice, "p", 3)).collect();
    let either = json!([alternative("six", memory("6Gi")), alternative("two", memory("2Gi"))]);
    check(
        &case(three, json!([first_available("r", either)])).with_allocated(device_results(&["z"])),
        "r/two=b",
    );
}

#[test]
fn each_device_may_have_its_own_node_selection() {
    let by_device = |parts: Value| {
        let slices = gpu_of(parts).into_iter();
        let selection = json!({"nodeName": null, "perDeviceNodeSelection": true});
        slices.map(|slice| spec(slice, selection.clone())).collect::<Vec<_>>()
    };
    let named = |name: &str, memory: &str, node: &str| {
        merged(memory_part(name, memory), json!({"nodeName": node}))
    };
    let either = json!([alternative("six", memory("6Gi")), alternative("two", memory("2Gi"))]);
    let two = by_device(json!([named("a", "2Gi", "n1"), named("b", "6Gi", "n2")]));
    let two = case(two, json!([first_available("r", either)]));
    check(&two, "r/two=a");
    check_selector(&two, node_n1());
    let zoned = || merged(memory_part("a", "2Gi"), json!({"nodeSelector": selector("zone", "a")}));
    let zone = case(by_device(json!([zoned()])), one_device());
    check(&zone, "r=a");
    check_selector(&zone, selector("zone", "a"));
    let everywhere = merged(memory_part("c", "2Gi"), json!({"allNodes": true}));
    let three = by_device(json!([zoned(), named("b", "2Gi", "n1"), everywhere]));
    let three = case(three, json!([request("r", json!({"count": 3}))]));
    check(&three, "r=a r=b r=c");
    check_selector(&three, node_n1());
}

#[test]
fn partitions_keep_their_binding_conditions_and_taints() {
    let bound = |part: Value| {
        merged(
            part,
            json!({"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}),
        )
    };
    let count = |count: i64| json!([request("r", json!({"count": count}))]);
    check(&case(gpu_of(json!([bound(memory_part("a", "4Gi"))])), one_device()), "r=a");
    let mixed = json!([
        bound(memory_part("a", "2Gi")),
        memory_part("b", "2Gi"),
        bound(memory_part("c", "4Gi"))
    ]);
    let mixed = case(gpu_of(mixed), count(3));
    check(&mixed, "r=a r=b r=c");
    let results = mixed.allocate().expect("devices")[0]["devices"]["results"].clone();
    let conditions: Vec<_> = (0..3).map(|at| results[at]["bindingConditions"].clone()).collect();
    assert_eq!(conditions, [json!(["Ready"]), Value::Null, json!(["Ready"])]);
    // Slices are ordered by name. Counters may be in any slice of the pool.
    let set = |name: &str, set: &str| {
        merged(counters(json!({set: {"memory": "8Gi"}})), json!({"metadata": {"name": name}}))
    };
    let own = |set: &str, device: &str| part(device, json!({set: {"memory": "4Gi"}}));
    let four = [
        slice("s4", 4, json!([bound(own("one", "a"))])),
        set("s3", "one"),
        slice("s2", 4, json!([own("two", "b")])),
        set("s1", "two"),
    ];
    let four = four.into_iter().map(|slice| of_pool(slice, "p", 4)).collect();
    check(&case(four, count(2)), "r=b r=a");
    let tainted = merged(
        bound(memory_part("a", "4Gi")),
        json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
    );
    let two = || gpu_of(json!([tainted, memory_part("b", "4Gi")]));
    check_no_fit(&case(two(), count(2)));
    let tolerant = json!({"count": 2, "tolerations": [{"key": "k", "operator": "Exists"}]});
    check(&case(two(), json!([request("r", tolerant)])), "r=a r=b");
}
