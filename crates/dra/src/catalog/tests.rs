//! Catalogs of nodes.

pub(crate) mod partitions;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;
use windlass_allocations::ledger::{CHECKPOINT_GRACE, Overlaps, RecordedDevices, SharedLedger};
use windlass_core::{
    attribute::{AttributeValue, PCIE_SWITCH, Quantity, standard},
    device::{DeviceKind, SourceName},
    health::{Health, HealthState},
    inventory::Inventory,
};
use windlass_resources::offers::ClaimableDevices;

use super::{attributes::MAX_PER_DEVICE, *};

fn gpu(id: &str, index: u32) -> Device {
    let name = |name| AttributeName::new("nvidia.com", name);
    let mut gpu = Device {
        index,
        health: Health { state: HealthState::Healthy, ..Health::unknown(Timestamp::UNIX_EPOCH) },
        ..Device::new(
            id.parse().expect("an id"),
            DeviceKind::Gpu,
            SourceName::NVIDIA,
            Timestamp::UNIX_EPOCH,
        )
    };
    gpu.attributes.insert(name("productName"), AttributeValue::string("NVIDIA H100"));
    gpu.attributes.insert(name("type"), AttributeValue::string("gpu"));
    gpu.attributes.insert(name("serial"), AttributeValue::string("1650"));
    gpu.capacity.insert(name("memory"), Quantity::Bytes(80 << 30));
    gpu
}

fn state(devices: Vec<Device>) -> NodeState {
    let claimable = devices.iter().map(|device| (device.id.clone(), Sharing::Exclusive)).collect();
    let inventory = Inventory { devices, ..Inventory::default() };
    let overlaps = Arc::new(Overlaps::from_inventory(&inventory));
    NodeState { inventory, claimable, overlaps, policy: Arc::default(), ..NodeState::default() }
}

fn catalog(devices: Vec<Device>) -> Catalog {
    Catalog::of(&state(devices), "n1", &DriverName::default(), &Ledger::default())
}

/// Taints of the device that is published under this name.
fn taints(state: &NodeState, ledger: &SharedLedger, name: &str) -> Vec<String> {
    let ledger = ledger.watch().borrow().clone();
    let catalog = Catalog::of(state, "n1", &DriverName::default(), &ledger);
    let entry = catalog.find("n1/nvidia", name).expect("a published device");
    entry.taints.iter().map(|Taint { key, value }| format!("{key}={value}")).collect()
}

#[test]
fn devices_of_a_kind_lack_the_same_attributes_with_and_without_a_switch_repeated_names_first() {
    let own = |name: &str| AttributeName::try_new("windlass.dev", name).expect("a name");
    let nic = |id: &str, switch: Option<&str>| {
        let mut nic = Device { kind: DeviceKind::Nic, source: SourceName::NICS, ..gpu(id, 0) };
        // With the type and the source, these are the 32 that a device may have.
        let names = (0..28).map(|number| own(&format!("a{number:02}")));
        let names = names.chain([own("mtu"), AttributeName::new("dra.net", "mtu")]);
        nic.attributes = names.map(|name| (name, AttributeValue::Int(1))).collect();
        nic.capacity.clear();
        nic.attributes.extend(switch.map(|it| (PCIE_SWITCH, AttributeValue::string(it))));
        nic
    };
    let catalog = catalog(vec![nic("nic-a", None), nic("nic-b", Some("0000:16:00.0"))]);
    let names = |device: &str| {
        let entry = catalog.find("n1/nics", device).expect("a published device");
        let names: Vec<_> = entry.attributes.keys().map(ToString::to_string).collect();
        assert!(names.len() <= MAX_PER_DEVICE, "{names:?}");
        names
    };
    let mut with_switch = names("nic-b");
    with_switch.retain(|name| *name != PCIE_SWITCH.to_string());
    assert_eq!(names("nic-a"), with_switch);
    assert!(with_switch.contains(&"windlass.dev/mtu".to_owned()), "{with_switch:?}");
    assert!(!with_switch.contains(&"dra.net/mtu".to_owned()), "{with_switch:?}");
}

#[test]
fn nvidias_devices_have_the_names_of_nvidias_driver_and_no_serial_number() {
    let catalog = catalog(vec![gpu("GPU-0a", 0)]);
    let entry = catalog.find("n1/nvidia", "gpu-0a").expect("a published device");
    let names: Vec<_> = entry.attributes.keys().map(ToString::to_string).collect();
    let expected = ["gpu.nvidia.com/productName", "gpu.nvidia.com/type"];
    assert_eq!(names, [&expected[..], &["windlass.dev/source", "windlass.dev/type"]].concat());
    let names: Vec<_> = entry.capacity.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["gpu.nvidia.com/memory"]);
}

#[test]
fn devices_of_a_kind_have_the_same_attributes_except_placement() {
    let mut first_gpu = gpu("GPU-0a", 0);
    first_gpu.attributes.insert(AttributeName::new("nvidia.com", "minor"), AttributeValue::Int(3));
    first_gpu.attributes.insert(standard::NUMA_NODE, AttributeValue::Int(1));
    let catalog = catalog(vec![first_gpu, gpu("GPU-0b", 1)]);
    let second_gpu = catalog.find("n1/nvidia", "gpu-0b").expect("a published device");
    let minor = AttributeName::new("gpu.nvidia.com", "minor");
    assert_eq!(second_gpu.attributes.get(&minor), Some(&AttributeValue::Int(0)));
    assert_eq!(second_gpu.attributes.get(&standard::NUMA_NODE), None);
}

/// A device that the configuration describes, with these attributes.
fn configured_device(source: &str, id: &str, attributes: &[(String, i64)]) -> Device {
    let source = source.parse().expect("a name");
    let id = id.parse().expect("an id");
    let mut device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
    let attribute = |(name, number): &(String, i64)| {
        (AttributeName::from_slice_name("acme.dev", name), AttributeValue::Int(*number))
    };
    device.attributes.extend(attributes.iter().map(attribute));
    device
}

#[test]
fn configured_devices_have_the_attributes_of_all_sources() {
    let camera = configured_device("cameras", "camera", &[("usbVendor".to_owned(), 5)]);
    let catalog = catalog(vec![camera, configured_device("boards", "board", &[])]);
    let attribute = |pool: &str, device: &str, domain: &str, name: &str| {
        let entry = catalog.find(pool, device).expect("a published device");
        entry.attributes.get(&AttributeName::from_slice_name(domain, name)).cloned()
    };
    let vendor = |pool, device| attribute(pool, device, "acme.dev", "usbVendor");
    assert_eq!(vendor("n1/cameras", "camera"), Some(AttributeValue::Int(5)));
    assert_eq!(vendor("n1/boards", "board"), Some(AttributeValue::Int(0)));
    let source = attribute("n1/boards", "board", "windlass.dev", "source");
    assert_eq!(source, Some(AttributeValue::string("boards")));
}

#[test]
fn attributes_of_the_own_source_come_first() {
    let attributes =
        |letter: char| (0..20).map(move |i| (format!("{letter}{i}"), 1)).collect::<Vec<_>>();
    let (first, second) = (
        configured_device("ones", "one", &attributes('a')),
        configured_device("others", "other", &attributes('b')),
    );
    let catalog = catalog(vec![first, second]);
    for (pool, device, letter) in [("n1/ones", "one", 'a'), ("n1/others", "other", 'b')] {
        let entry = catalog.find(pool, device).expect("a published device");
        assert_eq!(entry.attributes.len(), 32, "the limit of a device");
        let own_attributes =
            entry.attributes.values().filter(|value| **value == AttributeValue::Int(1)).count();
        assert_eq!(own_attributes, 20, "all of {letter}");
    }
}

#[test]
fn a_device_that_was_not_probed_is_tainted() {
    let mut unprobed = gpu("GPU-0a", 0);
    unprobed.health = Health::unknown(Timestamp::UNIX_EPOCH);
    let catalog = catalog(vec![unprobed]);
    let entry = catalog.find("n1/nvidia", "gpu-0a").expect("a published device");
    assert_eq!(entry.taints, [Taint { key: UNHEALTHY, value: "not-probed".to_owned() }]);
}

#[test]
fn every_device_is_tainted_while_devices_of_claims_are_unknown() {
    let (ledger, state) = (SharedLedger::default(), state(vec![gpu("GPU-0a", 0)]));
    ledger.mark_claims_unknown();
    assert_eq!(taints(&state, &ledger, "gpu-0a"), ["claimed=not-known"]);
    ledger.mark_claims_known();
    assert!(taints(&state, &ledger, "gpu-0a").is_empty());
}

#[test]
fn a_containers_device_and_its_overlap_are_tainted_until_its_release() {
    let part = Device { parent: Some("GPU-0a".parse().expect("an id")), ..gpu("MIG-0c", 0) };
    let (ledger, state) =
        (SharedLedger::default(), state(vec![gpu("GPU-0a", 0), gpu("GPU-0b", 1), part]));
    let resource = "nvidia.com/gpu.shared".parse().expect("a name");
    let overlap = state.overlaps.overlap(&"GPU-0a".parse().expect("an id"));
    ledger.take_for_container(&resource, &[overlap]).expect("free");
    assert_eq!(taints(&state, &ledger, "gpu-0a"), ["device-plugin=gpu.shared"]);
    assert_eq!(taints(&state, &ledger, "mig-0c"), ["device-plugin=gpu.shared"]);
    assert!(taints(&state, &ledger, "gpu-0b").is_empty());
    ledger.apply_checkpoint(
        &RecordedDevices::default(),
        Instant::now() + CHECKPOINT_GRACE,
        Duration::ZERO,
    );
    assert!(taints(&state, &ledger, "gpu-0a").is_empty());
}

#[test]
fn every_device_is_tainted_while_devices_of_containers_are_unknown() {
    let (ledger, state) = (SharedLedger::with_unknown_containers(), state(vec![gpu("GPU-0a", 0)]));
    assert_eq!(taints(&state, &ledger, "gpu-0a"), ["device-plugin=not-known"]);
}
