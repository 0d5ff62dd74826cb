//! Losses that an allocation of devices causes on a small node.

use std::sync::Arc;

use windlass_sched::allocator::{AllocatedDevices, Claims, NodeLosses, Pools};

use super::*;

fn device(name: &str, kind: &str, root: usize) -> Value {
    json!({"name": name, "attributes": {
        "d.com/type": {"string": kind},
        "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:0{root}")},
        "resource.kubernetes.io/numaNode": {"int": root / 2},
    }})
}

/// A GPU of which several requests may share the memory.
fn shared(name: &str, root: usize) -> Value {
    let mut gpu = device(name, "gpu", root);
    gpu["allowMultipleAllocations"] = true.into();
    let policy = json!({"default": "8", "validRange": {"min": "1"}});
    gpu["capacity"] = json!({"memory": {"value": "8", "requestPolicy": policy}});
    gpu
}

/// A GPU of four slices as devices: its partitions, then the whole GPU.
fn partitions(name: &str) -> Vec<Value> {
    let parts: [&[usize]; 7] = [&[3], &[2], &[1], &[0], &[2, 3], &[0, 1], &[0, 1, 2, 3]];
    let part = |slots: &[usize]| {
        let kind = if slots.len() == 4 { "gpu" } else { "mig" };
        let mut part = device(&format!("{name}-{}-{}", slots.len(), slots[0]), kind, 0);
        part["attributes"]["slices"] = json!({"int": slots.len()});
        part["consumesCounters"] = json!([{"counterSet": name, "counters": counters(slots)}]);
        part
    };
    parts.into_iter().map(part).collect()
}

fn counters(slots: &[usize]) -> Value {
    let slots = slots.iter().map(|it| (format!("slice-{it}"), json!({"value": "1"})));
    Value::Object(slots.collect())
}

fn of_kind(kind: &str) -> Value {
    cel(&format!("device.attributes['d.com'].type == '{kind}'"))
}

/// Losses by a claim with these requests, while the named devices are allocated to other claims.
fn losses(slices: &[Value], allocated: &[&str], requests: Value) -> NodeLosses {
    let classes = typed::<DeviceClass>(&[class("gpu", "device.driver == 'd.com'")]);
    let claims = Claims::new(&typed::<ResourceClaim>(&[claim(requests)]), &classes);
    let claims = claims.expect("valid claims");
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).expect("a node");
    let slices: Vec<_> = typed::<ResourceSlice>(slices).into_iter().map(Arc::new).collect();
    let pools = Pools::new(&slices, &node);
    let results = allocated.iter().map(|device| {
        let mut result = json!({"request": "r", "driver": "d.com", "pool": "p", "device": device});
        if device.starts_with("shared") {
            result["shareID"] = "00000000-0000-4000-8000-000000000000".into();
            result["consumedCapacity"] = json!({"memory": "2"});
        }
        result
    });
    let results: Vec<_> = results.collect();
    let mut allocated = AllocatedDevices::default();
    allocated.add(&serde_json::from_value(json!({"devices": {"results": results}})).expect("one"));
    let chosen = claims.choose(&pools, &allocated).expect("it fits");
    NodeLosses::of(&pools, &allocated, &chosen)
}

#[test]
fn a_share_breaks_only_a_free_gpu() {
    let gpus = [slice("s", 1, json!([shared("shared-a", 0), shared("shared-b", 1)]))];
    let share = || json!([request("r", json!({"capacity": {"requests": {"memory": "2"}}}))]);
    assert_eq!(losses(&gpus, &[], share()).broken_gpus, 1);
    assert_eq!(losses(&gpus, &["shared-a"], share()).broken_gpus, 0);
    assert_eq!(losses(&gpus, &["shared-a"; 4], share()).broken_gpus, 1, "the first GPU is full");
    // A request without an amount takes the whole capacity.
    assert_eq!(losses(&gpus, &[], json!([request("r", json!({}))])).broken_gpus, 0);
    let whole = [slice("s", 1, json!([device("a", "gpu", 0)]))];
    assert_eq!(losses(&whole, &[], json!([request("r", json!({}))])), NodeLosses::default());
}

#[test]
fn a_partition_loses_the_difference_of_the_largest_free_partition() {
    let mut first = slice("0", 2, Value::Null);
    first["spec"]["sharedCounters"] = json!([{"name": "a", "counters": counters(&[0, 1, 2, 3])}]);
    let gpu = [first, slice("1", 2, partitions("a").into())];
    let part = |slices: usize| {
        json!([request("r", cel(&format!("device.attributes['d.com'].slices == {slices}")))])
    };
    let gpu_losses = |allocated: &[&str], slices: usize| {
        let losses = losses(&gpu, allocated, part(slices));
        (losses.broken_gpus, losses.partition_milli)
    };
    assert_eq!(
        gpu_losses(&[], 1),
        (1, 1000 - 500 - 250),
        "at most 4 free slices become at most 2, and 1 is allocated"
    );
    assert_eq!(gpu_losses(&["a-1-3"], 1), (0, 0), "the other slice of the same half");
    assert_eq!(
        gpu_losses(&["a-2-2"], 1),
        (0, 0),
        "at most 500 free become at most 250, and 250 are allocated"
    );
    assert_eq!(gpu_losses(&[], 2), (1, 0), "two halves");
    assert_eq!(gpu_losses(&[], 4), (0, 0));
}

#[test]
fn a_pcie_root_with_a_free_nic_but_no_free_gpu_is_stranded_and_the_reverse() {
    let gpus = json!([device("a", "gpu", 0), device("b", "gpu", 1), device("c", "gpu", 1)]);
    let mut nics = slice("t", 1, json!([device("nic-a", "nic", 0), device("nic-b", "nic", 1)]));
    nics["spec"]["pool"]["name"] = "q".into();
    let node = [slice("s", 1, gpus), nics];
    let gpu = || request("gpu", of_kind("gpu"));
    assert_eq!(losses(&node, &[], json!([gpu()])).stranded, 1, "NIC a has no GPU");
    assert_eq!(losses(&node, &["a"], json!([gpu()])).stranded, 0, "NIC b keeps GPU c");
    assert_eq!(losses(&node, &["a", "b"], json!([gpu()])).stranded, 1);
    let both = json!([gpu(), request("nic", of_kind("nic"))]);
    assert_eq!(losses(&node, &[], both).stranded, 0, "GPU and NIC of one root");
    let nic = json!([request("nic", of_kind("nic"))]);
    assert_eq!(losses(&node, &[], nic).stranded, 1, "GPU a has no NIC");
}

#[test]
fn the_distance_is_the_mean_over_pairs() {
    let device = |(index, root): (usize, &usize)| device(&format!("gpu-{index}"), "gpu", *root);
    let distance = |roots: &[usize], count: usize| {
        let gpus = roots.iter().enumerate().map(device).collect();
        let requests = json!([request("r", json!({"count": count}))]);
        losses(&[slice("s", 1, gpus)], &[], requests).distance_milli
    };
    assert_eq!(distance(&[0, 0], 1), 0);
    assert_eq!(distance(&[0, 0], 2), 0);
    assert_eq!(distance(&[0, 1], 2), 1000, "two roots of one NUMA node");
    assert_eq!(distance(&[0, 2], 2), 2000);
    assert_eq!(distance(&[0, 0, 2], 3), 4000 / 3);
    let plain = slice("s", 1, devices(&["a", "b"]));
    let two = json!([request("r", json!({"count": 2}))]);
    assert_eq!(losses(&[plain], &[], two), NodeLosses::default(), "no device has a PCIe root");
}

#[test]
fn devices_of_one_island_or_switch_are_near_and_a_driver_without_switches_is_compared_by_roots() {
    let with = |mut device: Value, attribute: &str, value: &str| {
        device["attributes"][format!("windlass.dev/{attribute}")] = json!({"string": value});
        device
    };
    let distance = |devices: [Value; 2]| {
        let requests = json!([request("r", json!({"count": 2}))]);
        losses(&[slice("s", 1, json!(devices))], &[], requests).distance_milli
    };
    // Roots 0 and 2 are on different NUMA nodes.
    let pair = [device("a", "gpu", 0), device("b", "gpu", 2)];
    let pair_with = |attribute: &str, values: [&str; 2]| {
        let [first, second] = pair.clone();
        [with(first, attribute, values[0]), with(second, attribute, values[1])]
    };
    assert_eq!(distance(pair.clone()), 2000);
    assert_eq!(distance(pair_with("island", ["x", "x"])), 0);
    assert_eq!(distance(pair_with("island", ["x", "y"])), 2000);
    assert_eq!(distance(pair_with("pcieSwitch", ["x", "x"])), 0);
    let one_root = [with(device("a", "gpu", 0), "pcieSwitch", "x"), device("b", "nic", 0)];
    assert_eq!(distance(one_root.clone()), 0, "the other driver publishes no switch");
    // The GPU takes the NIC's root away from it, by the root that both have.
    let gpu = json!([request("r", of_kind("gpu"))]);
    let stranded = losses(&[slice("s", 1, json!(one_root))], &[], gpu).stranded;
    assert_eq!(stranded, 1);
}

#[test]
fn each_loss_has_negative_points() {
    let losses =
        NodeLosses { broken_gpus: 1, partition_milli: 250, stranded: 2, distance_milli: 1500 };
    let points: Vec<_> = losses.terms().iter().map(|term| term.points).collect();
    assert_eq!(points, [-100, -50, -100, -60]);
    assert_eq!(losses.points(), -310);
}
