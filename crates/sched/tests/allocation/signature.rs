//! Signatures of nodes: equal signatures give equal results, and an allocation without signatures has the same results.

use std::{collections::HashMap, sync::Arc};

use windlass_sched::{
    allocator::{
        AllocatedDevices, ChosenDevice, Claims, DeviceSignatures, NodeLosses, NodeSignature, Pools,
        Selections,
    },
    random::Random,
};

use super::*;

/// Number of random nodes.
const NODES: usize = 10_000;

/// A node with random names, and with devices that differ little but for names and UUIDs.
fn random_node(random: &mut Random) -> (Vec<Arc<ResourceSlice>>, Node, AllocatedDevices) {
    let (name, mut allocated) = (random.uuid(), AllocatedDevices::default());
    let is_shared = random.below(3) == 0;
    let has_sets = !is_shared && random.below(2) == 0;
    let (mut devices, mut results) = (Vec::new(), Vec::new());
    for index in 0..=random.below(4) {
        let mut device = random_device(random, index);
        let mut result =
            json!({"request": "r", "driver": "d.com", "pool": name, "device": device["name"]});
        if is_shared {
            device["allowMultipleAllocations"] = true.into();
            result["shareID"] = random.uuid().into();
            result["consumedCapacity"] = json!({"memory": "5"});
        }
        if has_sets {
            let counters = counters(1 + random.below(2));
            device["consumesCounters"] = json!([{"counterSet": name, "counters": counters}]);
        }
        if random.below(3) == 0 {
            results.push(result);
        }
        devices.push(device);
    }
    allocated.add(&serde_json::from_value(json!({"devices": {"results": results}})).expect("one"));
    let (generation, count) = (random.below(9), 1 + usize::from(has_sets));
    let pool = json!({"name": name, "generation": generation, "resourceSliceCount": count});
    let spec = json!({"driver": "d.com", "nodeName": name, "pool": pool});
    let (mut first, mut second) = (spec.clone(), spec);
    first["devices"] = devices.into();
    second["sharedCounters"] = json!([{"name": name, "counters": counters(3)}]);
    let slices = [first, second].into_iter().take(count).enumerate();
    let slices = slices.map(
        |(index, spec)| json!({"metadata": {"name": format!("{name}-{index}")}, "spec": spec}),
    );
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
    (typed(&slices.collect::<Vec<_>>()).into_iter().map(Arc::new).collect(), node, allocated)
}

fn random_device(random: &mut Random, index: usize) -> Value {
    let mut device = json!({"name": random.uuid(), "attributes": {
        "type": {"string": (["gpu", "nic"][random.below(4) / 3])},
        "uuid": {"string": random.uuid()},
        "x.com/pcieRoot": {"string": format!("pci{}", index / 2)},
    }, "capacity": {"memory": {"value": (["8", "16"][random.below(2)])}}});
    if random.below(8) == 0 {
        device["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    }
    device
}

fn counters(amount: usize) -> Value {
    json!({"parts": {"value": amount.to_string()}})
}

fn prepared(requests: Value, constraints: Value) -> Claims {
    let mut claim = claim(requests);
    claim["spec"]["devices"]["constraints"] = constraints;
    let classes = typed::<DeviceClass>(&[class("gpu", "device.driver == 'd.com'")]);
    Claims::new(&typed::<ResourceClaim>(&[claim]), &classes).expect("valid claims")
}

fn claim_sets() -> Vec<Claims> {
    let of_kind = |kind: &str| cel(&format!("device.attributes['d.com'].type == '{kind}'"));
    let root = || json!([{"matchAttribute": "x.com/pcieRoot"}]);
    let uuid = || json!([{"distinctAttribute": "d.com/uuid"}]);
    let gpu = || request("gpu", of_kind("gpu"));
    let share = json!({"capacity": {"requests": {"memory": "3"}}});
    vec![
        prepared(json!([gpu()]), json!([])),
        prepared(json!([gpu(), request("nic", of_kind("nic"))]), root()),
        prepared(json!([request("two", json!({"count": 2}))]), root()),
        prepared(json!([request("one", share), gpu()]), uuid()),
        prepared(json!([request("all", json!({"allocationMode": "All"}))]), json!([])),
    ]
}

/// Positions of the devices that are allocated without signatures, or `None` if the claims do not fit.
fn allocated_positions(
    claims: &Claims,
    pools: &Pools,
    allocated: &AllocatedDevices,
) -> Option<Vec<usize>> {
    let results = claims.allocate(pools, allocated).ok()?;
    let results = results.into_iter().filter_map(|it| it.devices?.results).flatten();
    let position = |name: String| {
        (0..pools.len()).find(|it| pools.device(*it).1.name == name).expect("a device of the node")
    };
    Some(results.map(|result| position(result.device)).collect())
}

#[test]
fn nodes_of_equal_signatures_have_equal_choices_and_losses() {
    type Answer = Option<(Vec<ChosenDevice>, NodeLosses)>;
    let (mut random, claim_sets) = (Random::new(3), claim_sets());
    let mut answers: HashMap<(usize, NodeSignature), Answer> = HashMap::new();
    let mut caches: Vec<_> =
        claim_sets.iter().map(|_| (DeviceSignatures::default(), Selections::default())).collect();
    let (mut fitting, mut repeated) = (0, 0);
    for _ in 0..NODES {
        let (slices, node, allocated) = random_node(&mut random);
        let pools = Pools::new(&slices, &node);
        let index = random.below(claim_sets.len());
        let claims = &claim_sets[index];
        let chosen = claims.choose(&pools, &allocated).ok();
        let positions = chosen.as_ref().map(|it| it.iter().map(|it| it.device).collect::<Vec<_>>());
        assert_eq!(positions, allocated_positions(claims, &pools, &allocated), "{slices:?}");
        let answer = chosen.map(|chosen| {
            let losses = NodeLosses::of(&pools, &allocated, &chosen);
            (chosen, losses)
        });
        fitting += usize::from(answer.is_some());
        let (devices, selections) = &mut caches[index];
        let signature = NodeSignature::of(&pools, &allocated, &claims.attributes_read(), devices);
        let by_signature =
            claims.choose_by_signature(&pools, &allocated, &signature, selections).ok();
        assert_eq!(by_signature, answer.as_ref().map(|it| it.0.clone()), "{slices:?}");
        if let Some(earlier) = answers.get(&(index, signature.clone())) {
            assert_eq!(*earlier, answer, "{slices:?}");
            repeated += 1;
        } else {
            answers.insert((index, signature), answer);
        }
    }
    assert!(
        fitting > NODES / 4 && repeated > NODES / 4,
        "{fitting} fit, {repeated} have an earlier signature"
    );
}

#[test]
fn a_signature_ignores_names_and_unread_attributes_but_nothing_else() {
    let (mut devices, mut devices_by_uuid) =
        (DeviceSignatures::default(), DeviceSignatures::default());
    let signature = |claims: &Claims, device: &Value, devices: &mut DeviceSignatures| {
        let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).expect("a node");
        let slices = typed(&[slice(device["name"].as_str().expect("a name"), 1, json!([device]))]);
        let slices: Vec<_> = slices.into_iter().map(Arc::new).collect();
        let attributes_read = claims.attributes_read();
        assert!(!attributes_read.is_any());
        NodeSignature::of(
            &Pools::new(&slices, &node),
            &AllocatedDevices::default(),
            &attributes_read,
            devices,
        )
    };
    let claim_sets = claim_sets();
    let mut plain = |device: &Value| signature(&claim_sets[0], device, &mut devices);
    let mut by_uuid = |device: &Value| signature(&claim_sets[3], device, &mut devices_by_uuid);
    let first =
        json!({"name": "a", "attributes": {"uuid": {"string": "1"}, "type": {"string": "gpu"}}});
    let mut second = first.clone();
    second["name"] = "b".into();
    assert_eq!(by_uuid(&first), by_uuid(&second));
    second["attributes"]["uuid"]["string"] = "2".into();
    assert_eq!(plain(&first), plain(&second));
    assert_ne!(by_uuid(&first), by_uuid(&second));
    for (pointer, value) in [
        ("/attributes/type", json!({"string": "nic"})),
        ("/attributes/type", json!({"version": "gpu"})),
        ("/capacity", json!({"memory": {"value": "8"}})),
        ("/allowMultipleAllocations", true.into()),
        ("/taints", json!([{"key": "k", "effect": "NoExecute"}])),
    ] {
        let mut changed = first.clone();
        match pointer.strip_prefix("/attributes/") {
            Some(name) => changed["attributes"][name] = value,
            None => changed[&pointer[1..]] = value,
        }
        assert_ne!(plain(&first), plain(&changed), "{pointer}");
    }
    let every = "['x'].exists(it, device.attributes['d.com'][it] == '')";
    assert!(prepared(json!([request("r", cel(every))]), json!([])).attributes_read().is_any());
}
