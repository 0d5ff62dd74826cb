//! Placement on machines that a person can check by eye, and against brute force on any other.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    device::{DeviceKind, Place},
    health::Health,
    nvlink::NvLinks,
    pci::{PciAddress, PciePath},
};

/// A GPU on bus `bus` below a host bridge of its own NUMA node.
pub(super) fn gpu(index: u32, bus: u8, numa: u32) -> Device {
    let pci: PciAddress = format!("0000:{bus:02x}:00.0").parse().expect("valid");
    let path =
        PciePath::from_sysfs(&format!("pci0000:{numa:02x}/0000:{numa:02x}:{index:02x}.0/{pci}"));
    Device {
        id: format!("GPU-{index}").parse().expect("valid"),
        kind: DeviceKind::Gpu,
        index,
        health: Health::unknown(Timestamp::UNIX_EPOCH),
        attributes: BTreeMap::new(),
        capacity: BTreeMap::new(),
        place: Place { pci: Some(pci), path, numa_node: Some(numa), ..Place::default() },
        nodes: Vec::new(),
        parent: None,
        part: None,
        partitioned: false,
    }
}

/// Eight GPUs on two NUMA nodes, four each.
pub(super) fn two_sockets() -> Vec<Device> {
    (0..8).map(|index| gpu(index, 0x10 + u8::try_from(index).expect("small"), index / 4)).collect()
}

/// The same with direct NVLinks between the pairs given.
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

fn chosen(devices: &[Device], free: &[usize], required: &[&str], size: usize) -> String {
    let available: Vec<_> = free.iter().map(|&index| &devices[index]).collect();
    let choice = choose(Request { available: &available, required, size }).expect("an answer");
    choice.devices.iter().map(|id| id.as_str().trim_start_matches("GPU-")).collect()
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn one_numa_node_is_preferred_where_links_are_equal() {
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
fn a_single_device_is_taken_where_it_breaks_the_least() {
    // 0-1 is a pair, 2 and 3 are not linked: the one device comes from those.
    let bridged = linked(&[(0, 1, 4)]);
    assert_eq!(chosen(&bridged, &[0, 1, 2, 3], &[], 1), "2");
    // A node with one device left serves it, and the four of the other stay together.
    assert_eq!(chosen(&switched(), &[0, 4, 5, 6, 7], &[], 1), "0");
}

#[test]
fn impossible_questions_are_refused_with_the_numbers() {
    let devices = two_sockets();
    let available: Vec<_> = devices.iter().take(2).collect();
    let ask = |required: &[&str], size| {
        choose(Request { available: &available, required, size }).expect_err("refused").to_string()
    };
    assert_eq!(ask(&[], 0), "a choice of 0 devices was asked for");
    assert_eq!(ask(&[], 3), "3 devices were asked for and 2 are available");
    assert_eq!(ask(&["GPU-0", "GPU-1"], 1), "2 devices are required in a choice of 1");
    assert_eq!(ask(&["GPU-7"], 1), "required device GPU-7 is not among the available ones");
}

#[test]
fn the_answer_is_explained_in_a_line() {
    let devices = switched();
    let available: Vec<_> = devices.iter().collect();
    let why = |size| {
        let choice = choose(Request { available: &available, required: &[], size });
        choice.expect("an answer").connections.to_string()
    };
    assert_eq!(why(1), "a single device, NUMA node 0");
    assert_eq!(why(2), "the pair over NV18 through NVSwitch, NUMA node 0");
    assert_eq!(why(4), "all 6 pairs NV18 through NVSwitch, NUMA node 0");
    assert_eq!(why(8), "all 28 pairs NV18 through NVSwitch, NUMA nodes 0 and 1");
}

#[test]
fn beyond_the_bound_the_answer_is_full_and_says_that_it_is_not_exact() {
    let devices: Vec<_> =
        (0..40).map(|i| gpu(i, 0x10 + u8::try_from(i).expect("small"), i % 2)).collect();
    let available: Vec<_> = devices.iter().collect();
    let choice =
        choose(Request { available: &available, required: &[], size: 20 }).expect("an answer");
    assert!(!choice.exact);
    assert_eq!((choice.devices.len(), choice.connections.numa_nodes.len()), (20, 1));
}

prop_compose! {
    /// Eight GPUs with random links, a random subset of them free, a size, and an order of asking.
    fn question()(
        links in prop::collection::vec((0..8_usize, 0..8_usize, 1..5_u32), 0..12),
        free in prop::sample::subsequence((0..8_usize).collect::<Vec<_>>(), 1..=8),
    )(
        size in 1..=free.len(),
        shuffled in Just(free.clone()).prop_shuffle(),
        links in Just(links.into_iter().filter(|(a, b, _)| a != b).collect::<Vec<_>>()),
    ) -> (Vec<Device>, Vec<usize>, usize) {
        (linked(&links), shuffled, size)
    }
}

/// The best sum of affinities that any set of the size has.
fn best_by_brute_force(devices: &[Device], free: &[usize], size: usize) -> i64 {
    let sets = (0..1_u32 << free.len()).filter(|set| set.count_ones() as usize == size);
    let members = |set: u32| -> Vec<&Device> {
        let bit = |(position, _): &(usize, &usize)| set & (1 << position) != 0;
        free.iter().enumerate().filter(bit).map(|(_, &index)| &devices[index]).collect()
    };
    sets.map(|set| sum_of_affinities(&members(set))).max().expect("at least one set")
}

fn sum_of_affinities(set: &[&Device]) -> i64 {
    let mut sum = 0;
    for (position, a) in set.iter().enumerate() {
        for b in &set[position + 1..] {
            sum += affinity(Connection::between(a, b));
        }
    }
    sum
}

proptest! {
    #[test]
    fn no_set_is_better_connected((devices, free, size) in question()) {
        let available: Vec<_> = free.iter().map(|&index| &devices[index]).collect();
        let choice = choose(Request { available: &available, required: &[], size }).expect("an answer");
        let chosen: Vec<_> = choice.devices.iter()
            .map(|id| devices.iter().find(|device| device.id == *id).expect("known"))
            .collect();
        prop_assert!(choice.exact);
        prop_assert_eq!(chosen.len(), size);
        prop_assert_eq!(sum_of_affinities(&chosen), best_by_brute_force(&devices, &free, size));
    }

    #[test]
    fn the_order_of_asking_does_not_matter((devices, free, size) in question()) {
        let mut ascending = free.clone();
        ascending.sort_unstable();
        prop_assert_eq!(
            chosen(&devices, &free, &[], size),
            chosen(&devices, &ascending, &[], size)
        );
    }
}
