//! Published slices of nodes.

mod partitions;

use jiff::Timestamp;
use windlass_allocations::ledger::Ledger;
use windlass_config::{
    DraPolicy, PerContainer, Policy, Selector, ShareLimits, ShareMethod, ShareRule, ShareSettings,
    Shared, Sharing, SharingMethod,
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Quantity, standard},
    device::{Device, DeviceKind, SourceName},
    health::{Health, HealthState},
    inventory::Inventory,
};
use windlass_resources::NodeState;

use super::*;

fn healthy(id: &str, kind: DeviceKind, source: SourceName) -> Device {
    let health = Health { state: HealthState::Healthy, ..Health::unknown(Timestamp::UNIX_EPOCH) };
    Device {
        health,
        ..Device::new(id.parse().expect("an id"), kind, source, Timestamp::UNIX_EPOCH)
    }
}

fn gpu(index: u32) -> Device {
    let uuid = format!("GPU-{index:08x}-0000-4000-8000-000000000000");
    let mut gpu = Device { index, ..healthy(&uuid, DeviceKind::Gpu, SourceName::NVIDIA) };
    let name = |name| AttributeName::new("nvidia.com", name);
    gpu.attributes.insert(name("productName"), AttributeValue::string("NVIDIA H100 80GB HBM3"));
    gpu.attributes.insert(name("driverVersion"), AttributeValue::version("580.95.05"));
    let root = AttributeValue::string(format!("pci0000:{index:02x}"));
    gpu.attributes.insert(standard::PCIE_ROOT, root);
    gpu.attributes.insert(standard::NUMA_NODE, AttributeValue::Int(i64::from(index / 4)));
    gpu.capacity.insert(name("memory"), Quantity::Bytes(80 << 30));
    gpu
}

fn nic(index: u32) -> Device {
    let id = format!("0000:{index:02x}:00.0");
    let mut nic = Device { index, ..healthy(&id, DeviceKind::Nic, SourceName::NICS) };
    let root = AttributeValue::string(format!("pci0000:{index:02x}"));
    nic.attributes.insert(standard::PCIE_ROOT, root);
    nic
}

fn published(devices: Vec<Device>, sharing: Sharing) -> DesiredSlices {
    published_under(Policy::default(), devices, sharing)
}

fn published_under(policy: Policy, devices: Vec<Device>, sharing: Sharing) -> DesiredSlices {
    let claimable = devices.iter().map(|device| (device.id.clone(), sharing)).collect();
    let inventory = Inventory { devices, ..Inventory::default() };
    let state = NodeState { inventory, claimable, policy: policy.into(), ..NodeState::default() };
    let driver = DriverName::default();
    let options = SliceOptions { driver: &driver, taints: DraTaints::NoSchedule };
    slices(&Catalog::of(&state, "n1", &driver, &Ledger::default()), options)
}

/// One line for each device: pool, index of its slice, the device as JSON.
fn lines(desired: &DesiredSlices) -> String {
    let slices = desired.pools.iter().flat_map(|(pool, slices)| {
        slices.iter().enumerate().map(move |(index, slice)| (pool, index, slice))
    });
    let lines = slices.flat_map(|(pool, index, slice)| {
        slice.devices.iter().map(move |device| {
            let device = serde_json::to_string(device).expect("plain");
            format!("{pool} {index} {device}\n")
        })
    });
    lines.collect()
}

#[test]
fn a_machine_with_eight_gpus_and_its_nics_has_a_pool_for_each_source() {
    let mut devices: Vec<_> = (0..8).map(gpu).chain((0..8).map(nic)).collect();
    devices[7].health.state = HealthState::Unknown;
    insta::assert_snapshot!("eight_gpus", lines(&published(devices, Sharing::Exclusive)));
}

#[test]
fn a_machine_with_nics_has_the_pool_of_its_nics() {
    insta::assert_snapshot!("nics", lines(&published(vec![nic(1), nic(2)], Sharing::Exclusive)));
}

#[test]
fn a_shared_device_has_one_share_by_default_for_each_claim() {
    let shared = |replicas: u64| {
        let replicas = replicas.try_into().expect("a number");
        let (method, per_container) = (SharingMethod::TimeSlicing, PerContainer::One);
        Sharing::Shared(Shared { method, replicas, per_container, memory_mib: None })
    };
    let text =
        lines(&published(vec![gpu(0)], shared(4))) + &lines(&published(vec![gpu(0)], shared(1)));
    insta::assert_snapshot!("shares", text);
}

#[test]
fn a_claim_without_amounts_gets_the_whole_gpu_that_is_shared_by_amounts() {
    let manner = ShareSettings { method: ShareMethod::Mps, limits: ShareLimits::Enforced };
    let rule = ShareRule { devices: Selector::all(DeviceKind::Gpu), manner };
    let dra = DraPolicy { shares: vec![rule], ..DraPolicy::default() };
    let policy = Policy { dra, ..Policy::default() };
    let mut gpu = gpu(0);
    gpu.capacity.insert(AttributeName::new("nvidia.com", "decoders"), Quantity::Count(7));
    let version = AttributeValue::version("9.0.0");
    gpu.attributes.insert(AttributeName::new("nvidia.com", "cudaComputeCapability"), version);
    let text = lines(&published_under(policy, vec![gpu, nic(1)], Sharing::Exclusive));
    insta::assert_snapshot!("amounts", text);
}

#[test]
fn a_slice_has_room_for_taints() {
    let desired = published((0..130).map(nic).collect(), Sharing::Exclusive);
    let sizes: Vec<_> = desired.pools["n1/nics"].iter().map(|slice| slice.devices.len()).collect();
    assert_eq!(sizes, [64, 64, 2]);
}

#[test]
fn a_device_that_exceeds_a_limit_is_left_out_of_its_pool() {
    let mut invalid_nic = nic(1);
    let long_value = AttributeValue::String("ä".repeat(40));
    invalid_nic.attributes.insert(AttributeName::new("windlass.dev", "model"), long_value);
    let desired = published(vec![invalid_nic, nic(2), nic(2)], Sharing::Exclusive);
    assert_eq!(desired.pools["n1/nics"][0].devices.len(), 1);
    let reasons: Vec<_> = desired.omitted.iter().map(|device| device.reason.as_str()).collect();
    assert!(reasons[0].contains("windlass.dev/model"), "{reasons:?}");
    assert_eq!(reasons[1], "another device of the pool has this name");
}
