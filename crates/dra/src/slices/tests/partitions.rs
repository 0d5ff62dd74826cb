//! Allocations of partitions by the scheduler's allocator from published slices.

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_sched::allocator::{AllocationInput, allocate};

use super::*;
use crate::catalog::tests::partitions::{
    gpu_in_mig_mode, node_switching_mig_mode, node_with_partitions,
};

fn from_json<T: DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a document")
}

/// This number of H100 in MIG mode.
fn h100(gpus: u32) -> Vec<Device> {
    (0..gpus).map(|index| gpu_in_mig_mode("dgx-h100", index)).collect()
}

/// The contents of the pool of a node.
fn contents(state: &NodeState) -> Vec<SliceContent> {
    let driver = DriverName::default();
    let options = SliceOptions { driver: &driver, taints: DraTaints::NoSchedule };
    let mut desired = slices(&Catalog::of(state, "n1", &driver, &Ledger::default()), options);
    assert!(desired.omitted.is_empty(), "{:?}", desired.omitted);
    desired.pools.remove("n1/nvidia").expect("the pool")
}

fn published(contents: &[SliceContent]) -> Vec<ResourceSlice> {
    let slice = |(index, content): (usize, &SliceContent)| {
        let non_empty = |list: Value| if list == json!([]) { Value::Null } else { list };
        from_json(json!({
            "metadata": {"name": format!("{index:05x}-n1")},
            "spec": {
                "driver": "windlass.dev", "nodeName": "n1", "devices": non_empty(json!(content.devices)),
                "sharedCounters": non_empty(json!(content.shared_counters)),
                "pool": {"name": "n1/nvidia", "generation": 1, "resourceSliceCount": contents.len()},
            },
        }))
    };
    contents.iter().enumerate().map(slice).collect()
}

/// Placements of claims on GPUs without a full entry.
fn placed(gpus: u32, requested: &[&str]) -> String {
    placed_on(&node_with_partitions(h100(gpus)), requested)
}

/// Places one claim after the other. Each asks for a profile, for a `gpu`, or for a share with this memory. Returns GPU
/// and placement of each claim, or `-`.
fn placed_on(state: &NodeState, requested: &[&str]) -> String {
    let slices = published(&contents(state));
    let class = |kind: &str| {
        let expression = format!("device.attributes['gpu.nvidia.com'].type == '{kind}'");
        let selectors = json!([{"cel": {"expression": expression}}]);
        from_json(json!({"metadata": {"name": kind}, "spec": {"selectors": selectors}}))
    };
    let (classes, node): ([DeviceClass; 2], Node) =
        (["mig", "gpu"].map(class), from_json(json!({"metadata": {"name": "n1"}})));
    let mut allocated: Vec<ResourceClaim> = Vec::new();
    let allocate_claim = |(index, request): (usize, &&str)| {
        let name = format!("c{index}");
        let mut claim: ResourceClaim = from_json(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly(request)}]}},
        }));
        let input = AllocationInput { classes: &classes, slices: &slices, claims: &allocated };
        let Ok(mut results) = allocate(std::slice::from_ref(&claim), input, &node) else {
            return "-".to_owned();
        };
        let result = json!(results.remove(0));
        claim.status = Some(from_json(json!({"allocation": result})));
        allocated.push(claim);
        let device = result["devices"]["results"][0]["device"].as_str().expect("a name");
        let (gpu, placement) = device.split_once("-mig-").unwrap_or((device, "whole"));
        format!("{}:{placement}", gpu["gpu-".len()..][..8].trim_start_matches('0'))
    };
    requested.iter().enumerate().map(allocate_claim).collect::<Vec<_>>().join(" ")
}

fn exactly(request: &str) -> Value {
    if request == "gpu" {
        return json!({"deviceClassName": "gpu"});
    }
    if request.ends_with("Gi") {
        let requests = json!({"gpu.nvidia.com/memory": request});
        return json!({"deviceClassName": "gpu", "capacity": {"requests": requests}});
    }
    let cel = format!("device.attributes['gpu.nvidia.com'].profile == '{request}'");
    json!({"deviceClassName": "mig", "selectors": [{"cel": {"expression": cel}}]})
}

#[test]
fn a_gpu_is_filled_without_overlaps_before_the_next_is_begun() {
    let seven_of_the_smallest = "1:1g-10gb-19-6 1:1g-10gb-19-5 1:1g-10gb-19-4 1:1g-10gb-19-3 1:1g-10gb-19-2 \
                 1:1g-10gb-19-1 1:1g-10gb-19-0";
    let with_one_gpu = |text: &str| text.replace("1:", ":");
    let placed_on_one = placed(1, &["1g.10gb"; 8]);
    assert_eq!(placed_on_one, format!("{} -", with_one_gpu(seven_of_the_smallest)));
    assert_eq!(
        placed(2, &["1g.10gb"; 8]),
        format!("{} 1:1g-10gb-19-6", with_one_gpu(seven_of_the_smallest))
    );
    for halves in [["3g.40gb", "4g.40gb", "1g.10gb"], ["4g.40gb", "3g.40gb", "1g.10gb"]] {
        let outcome = placed(1, &halves);
        assert!(outcome.ends_with(" -") && !outcome.starts_with('-'), "{outcome}");
        assert!(
            outcome.contains(":3g-40gb-9-4 ") && outcome.contains(":4g-40gb-5-0 "),
            "{outcome}"
        );
    }
}

#[test]
fn small_profiles_leave_room_for_large_ones_and_media_engines_are_allocated_once() {
    let mixed = ["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb", "1g.10gb"];
    let expected = ":1g-10gb-19-6 :1g-10gb-19-5 :1g-10gb-19-4 :4g-40gb-5-0 -";
    assert_eq!(placed(1, &mixed), expected);
    let media = ["1g.10gb+me", "1g.10gb+me", "2g.20gb", "3g.40gb"];
    assert_eq!(placed(1, &media), ":1g-10gb-me-20-6 - :2g-20gb-14-4 :3g-40gb-9-0");
    assert_eq!(placed(1, &["7g.80gb", "1g.10gb"]), ":7g-80gb-0-0 -");
}

#[test]
fn more_than_eight_gpus_have_their_counters_in_more_than_one_slice() {
    let contents = contents(&node_with_partitions(h100(10)));
    let sizes = contents.iter().map(|slice| (slice.shared_counters.len(), slice.devices.len()));
    let expected: Vec<_> = [(8, 0), (2, 0)].into_iter().chain([(0, 25); 10]).collect();
    assert_eq!(sizes.collect::<Vec<_>>(), expected);
    let placements = placed(10, &["7g.80gb"; 10]);
    assert!(placements.ends_with(" 9:7g-80gb-0-0"), "{placements}");
}

#[test]
fn full_gpus_are_allocated_from_the_last_and_partitions_from_the_first_without_overlap() {
    let state = node_switching_mig_mode(h100(3), Vec::new());
    let requested = ["gpu", "4g.40gb", "gpu", "gpu", "3g.40gb", "1g.10gb"];
    assert_eq!(placed_on(&state, &requested), "2:whole :4g-40gb-5-0 1:whole - :3g-40gb-9-4 -");
    let sizes: Vec<_> = contents(&state)
        .iter()
        .map(|slice| (slice.shared_counters.len(), slice.devices.len()))
        .collect();
    assert_eq!(sizes, [(3, 0), (0, 25), (0, 25), (0, 25), (0, 3)]);
}

#[test]
fn the_first_share_of_a_gpu_takes_all_of_its_partitions() {
    let rule = ShareRule {
        devices: Selector::all(DeviceKind::Gpu),
        manner: ShareSettings { method: ShareMethod::Mps, limits: ShareLimits::Enforced },
    };
    let state = node_switching_mig_mode(h100(2), vec![rule]);
    let requested = ["30Gi", "30Gi", "1g.10gb", "30Gi", "20Gi", "gpu", "7g.80gb"];
    let expected = "1:whole 1:whole :1g-10gb-19-6 - 1:whole - -";
    assert_eq!(placed_on(&state, &requested), expected);
}
