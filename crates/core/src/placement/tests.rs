//! Placement on small machines with known answers.

pub(super) mod brute_force;

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::{
    device::{Device, DeviceKind, Location, SourceName},
    health::{HealthTracker, Observation, Reason},
    inventory::Inventory,
    nvlink::NvLinks,
    pci::{PciAddress, PciePath},
};

/// A GPU on bus `bus` below a host bridge of its own NUMA node.
pub(super) fn gpu(index: u32, bus: u8, numa: u32) -> Device {
    let pci: PciAddress = format!("0000:{bus:02x}:00.0").parse().expect("valid");
    let path =
        PciePath::from_sysfs(&format!("pci0000:{numa:02x}/0000:{numa:02x}:{index:02x}.0/{pci}"));
    let id = format!("GPU-{index}").parse().expect("valid");
    Device {
        index,
        place: Location { pci: Some(pci), path, numa_node: Some(numa), ..Location::default() },
        ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
    }
}

/// A NIC below the host bridge of a NUMA node.
pub(super) fn nic(index: u32, numa: u32) -> Device {
    let id = format!("NIC-{index}").parse().expect("valid");
    let bus = 0x80 + u8::try_from(index).expect("small");
    Device { id, kind: DeviceKind::Nic, ..gpu(index, bus, numa) }
}

/// The device moved to the end of a sysfs path.
pub(super) fn placed(device: Device, path: &str, numa_node: Option<u32>) -> Device {
    let pci = path.rsplit('/').next().and_then(|address| address.parse().ok());
    let path = PciePath::from_sysfs(path);
    Device { place: Location { pci, path, numa_node, ..device.place }, ..device }
}

/// Eight GPUs on two NUMA nodes, four each.
pub(super) fn two_sockets() -> Vec<Device> {
    (0..8).map(|index| gpu(index, 0x10 + u8::try_from(index).expect("small"), index / 4)).collect()
}

/// The same machine with direct NVLinks between the given pairs.
pub(super) fn linked(pairs: &[(usize, usize, u32)]) -> Vec<Device> {
    let mut devices = two_sockets();
    let address = |devices: &[Device], index: usize| devices[index].place.pci.expect("set above");
    for &(a, b, links) in pairs {
        let (to_b, to_a) = (address(&devices, b), address(&devices, a));
        devices[a].place.nvlinks.peers.insert(to_b, links);
        devices[b].place.nvlinks.peers.insert(to_a, links);
    }
    devices
}

pub(super) fn switched() -> Vec<Device> {
    let mut devices = two_sockets();
    for device in &mut devices {
        device.place.nvlinks = NvLinks { to_switches: 18, ..NvLinks::default() };
    }
    devices
}

/// The chosen indices under the aligned policy.
fn chosen(devices: &[Device], free: &[usize], required: &[&str], size: usize) -> String {
    chosen_by(devices, free, required, size, Policy::Aligned)
}

/// The chosen indices under a policy.
fn chosen_by(
    devices: &[Device],
    free: &[usize],
    required: &[&str],
    size: usize,
    policy: Policy,
) -> String {
    let available: Vec<_> = free.iter().map(|&index| devices[index].id.as_str()).collect();
    let request = Request { available: &available, required, near: &[], size, policy };
    let choice = choose(&Topology::from_devices(devices), request).expect("an answer");
    choice.devices.iter().map(|id| id.as_str().trim_start_matches("GPU-")).collect()
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn one_numa_node_is_preferred_if_links_are_equal() {
    assert_eq!(chosen(&switched(), &ALL, &[], 4), "0123");
    assert_eq!(chosen(&switched(), &[1, 2, 4, 5, 6, 7], &[], 4), "4567");
    assert_eq!(chosen(&two_sockets(), &[3, 4, 5], &[], 2), "45");
}

#[test]
fn nvlink_outweighs_the_numa_node() {
    let bridged = linked(&[(0, 4, 4), (1, 5, 4)]);
    assert_eq!(chosen(&bridged, &ALL, &[], 2), "04");
    assert_eq!(chosen(&bridged, &ALL, &["GPU-1"], 2), "15");
}

#[test]
fn a_single_device_leaves_the_most_useful_remainder() {
    // 0-1 is a pair, 2 and 3 are unlinked: a single device comes from 2 and 3.
    let bridged = linked(&[(0, 1, 4)]);
    assert_eq!(chosen(&bridged, &[0, 1, 2, 3], &[], 1), "2");
    // A node with a single free device serves the request; the other node keeps its four.
    assert_eq!(chosen(&switched(), &[0, 4, 5, 6, 7], &[], 1), "0");
}

#[test]
fn a_linked_quad_is_kept_whole_for_a_request_of_one() {
    // With four and five free, the device comes from the five, although the four would lose fewer
    // connections.
    let devices: Vec<_> = (0..9)
        .map(|index| gpu(index, 0x10 + u8::try_from(index).expect("small"), u32::from(index >= 4)))
        .collect();
    assert_eq!(chosen(&devices, &[0, 1, 2, 3, 4, 5, 6, 7, 8], &[], 1), "4");
}

#[test]
fn impossible_requests_are_refused_with_the_numbers() {
    let devices = two_sockets();
    let topology = Topology::from_devices(&devices);
    let request = |required, size, policy| {
        let available = &["GPU-1", "GPU-0", "GPU-4", "GPU-4", "GPU-99"];
        choose(&topology, Request { available, required, near: &[], size, policy })
    };
    let error =
        |required, size, policy| request(required, size, policy).expect_err("refused").to_string();
    let (aligned, strict) = (Policy::Aligned, Policy::NumaStrict);
    for (required, size, policy, expected) in [
        (&[][..], 0, aligned, "0 devices requested"),
        (&[], 4, aligned, "4 devices requested, 3 available"),
        (&["GPU-0", "GPU-1"], 1, aligned, "2 devices are required in a choice of 1"),
        (&["GPU-7"], 1, aligned, "required device GPU-7 is not among the available ones"),
        (&["GPU-99"], 1, aligned, "required device GPU-99 is not among the available ones"),
        (
            &[],
            3,
            strict,
            "3 devices of one NUMA node requested, and no node has more than 2 available",
        ),
        (
            &["GPU-4"],
            2,
            strict,
            "2 devices of one NUMA node requested, and no node has more than 1 available, \
             the required ones included",
        ),
    ] {
        assert_eq!(error(required, size, policy), expected);
    }
    let twice = request(&["GPU-1", "GPU-1"], 2, aligned).expect("a repeated id is one device");
    assert_eq!(twice.devices.len(), 2);
}

#[test]
fn each_policy_chooses_by_its_terms() {
    let devices = two_sockets();
    for (policy, free, size, expected) in [
        (Policy::Aligned, &[1, 4, 5][..], 2, "45"),
        (Policy::First, &[1, 4, 5], 2, "14"),
        (Policy::NumaStrict, &[1, 4, 5], 2, "45"),
        // Node 0 has three in use, node 1 two.
        (Policy::Packed, &[1, 4, 5], 1, "1"),
        (Policy::Distributed, &[1, 4, 5], 1, "4"),
        (Policy::Distributed, &ALL, 2, "04"),
        (Policy::Packed, &ALL, 4, "0123"),
    ] {
        assert_eq!(chosen_by(&devices, free, &[], size, policy), expected, "{policy} {free:?}");
    }
}

#[test]
fn partitions_are_distributed_over_gpus_or_packed_into_one() {
    let mut devices: Vec<_> = (0..6).map(|index| gpu(index, 0x10, 0)).collect();
    for device in &mut devices {
        let whole = format!("WHOLE-{}", device.index / 3);
        device.parent = Some(whole.parse().expect("valid"));
        device.place.pci = format!("0000:1{}:00.0", device.index / 3).parse().ok();
    }
    for (policy, free, size, expected) in [
        (Policy::Distributed, &[0, 1, 2, 3, 4, 5][..], 2, "03"),
        (Policy::Distributed, &[1, 2, 3, 4, 5], 1, "3"),
        (Policy::Packed, &[0, 1, 2, 4, 5], 1, "4"),
        (Policy::Aligned, &[0, 1, 2, 5], 1, "5"),
        (Policy::Aligned, &[0, 1, 2, 4, 5], 2, "45"),
        (Policy::Aligned, &[1, 2, 4, 5], 2, "12"),
    ] {
        assert_eq!(chosen_by(&devices, free, &[], size, policy), expected, "{policy} {free:?}");
    }
}

#[test]
fn a_vanished_device_is_not_in_use() {
    let mut devices: Vec<_> = (0..4).map(|index| gpu(index, 0x10, 0)).collect();
    for device in &mut devices {
        let whole = format!("WHOLE-{}", device.index / 2);
        device.parent = Some(whole.parse().expect("valid"));
    }
    let ids = ["GPU-1", "GPU-2"];
    let choice = |devices: &[Device]| {
        let inventory = Inventory { devices: devices.to_vec(), ..Inventory::default() };
        let policy = Policy::Distributed;
        let request = Request { available: &ids, required: &[], near: &[], size: 1, policy };
        choose(&Topology::from_inventory(&inventory), request).expect("an answer").devices[0]
            .to_string()
    };
    let mut vanished_health = HealthTracker::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    let vanished = Observation::Failed(Reason::Vanished, "another layout".to_owned());
    vanished_health.observe(&vanished, Timestamp::UNIX_EPOCH);
    devices[3].health = vanished_health.health().clone();
    assert_eq!(choice(&devices), "GPU-2", "GPU-3 has vanished, GPU-0 is in use");
    devices[0].health = vanished_health.health().clone();
    assert_eq!(choice(&devices), "GPU-1");
}

#[test]
fn a_choice_is_near_the_containers_other_devices() {
    let mut devices = two_sockets();
    devices.push(nic(0, 1));
    let topology = Topology::from_devices(&devices);
    let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
    let choice = |near: &[&str]| {
        let policy = Policy::Aligned;
        let request = Request { available: &ids[..8], required: &[], near, size: 1, policy };
        choose(&topology, request).expect("an answer").devices[0].to_string()
    };
    assert_eq!(choice(&["NIC-0"]), "GPU-4");
    assert_eq!(choice(&[]), "GPU-0", "without a NIC in the container, GPUs near the NIC stay free");
}

#[test]
fn the_answer_is_explained_in_a_line() {
    let devices = switched();
    let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
    let connections = |size| {
        let policy = Policy::Aligned;
        let request = Request { available: &ids, required: &[], near: &[], size, policy };
        let choice = choose(&Topology::from_devices(&devices), request);
        choice.expect("an answer").connections.to_string()
    };
    assert_eq!(connections(1), "a single device, NUMA node 0");
    assert_eq!(connections(2), "the pair over NV18 through NVSwitch, NUMA node 0");
    assert_eq!(connections(4), "all 6 pairs NV18 through NVSwitch, NUMA node 0");
    assert_eq!(connections(8), "all 28 pairs NV18 through NVSwitch, NUMA nodes 0 and 1");
}
