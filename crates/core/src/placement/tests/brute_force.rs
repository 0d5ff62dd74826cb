//! Search against an independent comparison of every set.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::{
    nvlink::NvLinks,
    topology::{Connection, PcieLevel},
};

/// A machine with its free devices, and a request.
#[derive(Clone, Debug)]
struct Case {
    devices: Vec<Device>,
    free: Vec<usize>,
    required: Vec<usize>,
    near: Vec<usize>,
    size: usize,
    policy: Policy,
}

/// Values of the terms in order of weight, more is better; then the lowest positions.
type SetScore = (Vec<i64>, Reverse<Vec<usize>>);

impl Case {
    fn ids(&self, indices: &[usize]) -> Vec<&str> {
        indices.iter().map(|&index| self.devices[index].id.as_str()).collect()
    }

    fn sorted(&self, indices: &[usize]) -> Vec<String> {
        let mut ids: Vec<_> = self.ids(indices).into_iter().map(str::to_owned).collect();
        ids.sort_unstable();
        ids
    }

    fn answer(&self) -> Result<Choice, PlacementError> {
        let topology = Topology::from_devices(&self.devices);
        let (available, required) = (self.ids(&self.free), self.ids(&self.required));
        let near = self.ids(&self.near);
        let (size, policy) = (self.size, self.policy);
        let request =
            Request { available: &available, required: &required, near: &near, size, policy };
        choose(&topology, request)
    }

    /// Every set of the size that contains the required devices.
    fn sets(&self) -> impl Iterator<Item = Vec<usize>> {
        let mut free = self.free.clone();
        free.sort_unstable();
        free.dedup();
        let masks = (0..1_u32 << free.len()).filter(|mask| mask.count_ones() as usize == self.size);
        let members = move |mask: u32| -> Vec<usize> {
            let chosen = free.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            chosen.map(|(_, &index)| index).collect()
        };
        let has_required = |set: &Vec<usize>| self.required.iter().all(|index| set.contains(index));
        masks.map(members).filter(has_required).filter(|set| self.is_allowed(set))
    }

    fn is_allowed(&self, set: &[usize]) -> bool {
        let node = |index: &usize| self.devices[*index].place.numa_node;
        let are_all_unknown = self.free.iter().all(|index| node(index).is_none());
        let first_node = node(&set[0]);
        self.policy != Policy::NumaStrict
            || set.len() == 1
            || are_all_unknown
            || (first_node.is_some() && set.iter().all(|index| node(index) == first_node))
    }

    fn best(&self) -> Option<Vec<usize>> {
        self.sets().max_by_key(|set| self.score(set))
    }

    fn score(&self, set: &[usize]) -> SetScore {
        let unchosen: Vec<_> =
            self.free.iter().copied().filter(|index| !set.contains(index)).collect();
        let (data, pcie_sum) = (self.sum(set, affinity), self.sum(set, pcie));
        let remaining = usefulness(&unchosen, self.is_few(), &|a, b| self.between(a, b, affinity));
        let numa = -self.numa_nodes(set);
        let in_use = set.iter().map(|&index| self.in_use(&self.group(index))).sum();
        let groups = number(self.groups(set).len());
        let terms = match self.policy {
            Policy::Aligned | Policy::NumaStrict => {
                let remaining_pcie = partners(&unchosen, &|a, b| self.between(a, b, pcie));
                let nics = -self.near_nics(set);
                vec![data, remaining, pcie_sum, nics, numa, remaining_pcie, in_use, -groups]
            }
            Policy::Packed => vec![in_use, -groups, data, remaining, pcie_sum, numa],
            Policy::Distributed => vec![-self.imbalance(set), data, remaining, pcie_sum, numa],
            Policy::First => vec![],
        };
        let positions = set.iter().map(|&index| self.position(index));
        let mut positions: Vec<_> = positions.collect();
        positions.sort_unstable();
        (terms, Reverse(positions))
    }

    /// True if all divisions of the remainder are compared.
    fn is_few(&self) -> bool {
        self.free.len() - self.required.len() <= 12
    }

    fn between(&self, a: usize, b: usize, score: fn(Connection) -> i64) -> i64 {
        score(Connection::between(&self.devices[a], &self.devices[b]))
    }

    fn sum(&self, set: &[usize], score: fn(Connection) -> i64) -> i64 {
        let near = set.iter().flat_map(|&a| self.near.iter().map(move |&b| (a, b)));
        let inside = set.iter().flat_map(|&a| set.iter().map(move |&b| (a, b)));
        let pairs = inside.filter(|(a, b)| a < b).chain(near);
        pairs.map(|(a, b)| self.between(a, b, score)).sum()
    }

    fn near_nics(&self, set: &[usize]) -> i64 {
        let nearest_nic = |&device: &usize| {
            let is_nic = |index: &usize| self.devices[*index].kind == DeviceKind::Nic;
            let nics = (0..self.devices.len()).filter(is_nic).filter(|_| !is_nic(&device));
            nics.map(|nic| self.between(device, nic, pcie)).max().unwrap_or(0)
        };
        set.iter().map(nearest_nic).sum()
    }

    fn numa_nodes(&self, set: &[usize]) -> i64 {
        let all = set.iter().chain(&self.near);
        let nodes: BTreeSet<_> =
            all.filter_map(|&index| self.devices[index].place.numa_node).collect();
        number(nodes.len())
    }

    fn group(&self, index: usize) -> String {
        let device = &self.devices[index];
        match &device.parent {
            Some(whole) => format!("part of {whole}"),
            None => format!("{} on {:?}", device.kind, device.place.numa_node),
        }
    }

    fn in_use(&self, group: &str) -> i64 {
        let is_in_use = |&index: &usize| self.group(index) == group && !self.free.contains(&index);
        number((0..self.devices.len()).filter(is_in_use).count())
    }

    fn groups(&self, set: &[usize]) -> BTreeSet<String> {
        set.iter().map(|&index| self.group(index)).collect()
    }

    fn imbalance(&self, set: &[usize]) -> i64 {
        let square = |group: String| {
            let chosen = set.iter().filter(|&&index| self.group(index) == group).count();
            (self.in_use(&group) + number(chosen)).pow(2)
        };
        self.groups(&self.free).into_iter().map(square).sum()
    }

    fn position(&self, index: usize) -> usize {
        let order = |index: usize| self.devices[index].sort_key();
        (0..self.devices.len()).filter(|&other| order(other) < order(index)).count()
    }
}

fn ids(choice: &Choice) -> Vec<String> {
    let mut ids: Vec<_> = choice.devices.iter().map(ToString::to_string).collect();
    ids.sort_unstable();
    ids
}

/// PCIe affinity of two devices.
pub(in crate::placement) fn pcie(connection: Connection) -> i64 {
    match connection.pcie {
        PcieLevel::Device | PcieLevel::Board => 60,
        PcieLevel::Pix => 50,
        PcieLevel::Pxb => 40,
        PcieLevel::Phb => 30,
        PcieLevel::Node => 20,
        PcieLevel::Sys => 10,
    }
}

/// Usefulness of devices for pairs, quads and octets.
pub(in crate::placement) fn usefulness(
    remaining: &[usize],
    is_few: bool,
    score: &dyn Fn(usize, usize) -> i64,
) -> i64 {
    let weighted = |size, weight| weight * best_division(remaining, size, score);
    if is_few {
        weighted(2, 21) + weighted(4, 7) + weighted(8, 3)
    } else {
        partners(remaining, score)
    }
}

/// Best affinity of a division into as many sets of one size as fit.
fn best_division(remaining: &[usize], size: usize, score: &dyn Fn(usize, usize) -> i64) -> i64 {
    let Some((&first, others)) = remaining.split_first().filter(|_| remaining.len() >= size) else {
        return 0;
    };
    let mut best = if remaining.len().is_multiple_of(size) {
        i64::MIN
    } else {
        best_division(others, size, score)
    };
    for mask in 0..1_u32 << others.len() {
        if mask.count_ones() as usize + 1 == size {
            let is_chosen = |(bit, _): &(usize, &usize)| mask & (1 << bit) != 0;
            let (mates, unchosen): (Vec<_>, Vec<_>) =
                others.iter().enumerate().partition(is_chosen);
            let set: Vec<_> = mates.into_iter().map(|(_, &mate)| mate).chain([first]).collect();
            let unchosen: Vec<_> = unchosen.into_iter().map(|(_, &other)| other).collect();
            let pairs = set.iter().flat_map(|&a| set.iter().map(move |&b| (a, b)));
            let inside: i64 = pairs.filter(|(a, b)| a < b).map(|(a, b)| score(a, b)).sum();
            best = best.max(inside + best_division(&unchosen, size, score));
        }
    }
    best
}

/// Affinity of each device with its best partners, in a pair, a quad and an octet.
fn partners(remaining: &[usize], score: &dyn Fn(usize, usize) -> i64) -> i64 {
    let usefulness_of = |device: &usize| {
        let others = remaining.iter().filter(|other| *other != device);
        let mut scores: Vec<_> = others.map(|&other| score(*device, other)).collect();
        scores.sort_unstable_by_key(|&score| Reverse(score));
        let best = |count: usize| scores.iter().take(count).sum::<i64>();
        21 * best(1) + 7 * best(3) + 3 * best(7)
    };
    remaining.iter().map(usefulness_of).sum()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).expect("small")
}

/// A path below one of two PCIe switches, in a row below one of two root ports.
fn below_a_switch((port, switch): (u8, u8), bus: u8) -> Option<PciePath> {
    let switch = 0x60 + 2 * port + switch;
    PciePath::from_sysfs(&format!(
        "pci0000:f0/0000:f0:0{port}.0/0000:5{port}:00.0/0000:{switch:02x}:00.0/0000:{bus:02x}:00.0"
    ))
}

prop_compose! {
    /// Twelve GPUs or parts of GPUs at random places with random links, and two NICs.
    fn machine()(
        numa in prop::collection::vec(prop::option::weighted(0.9, 0..3_u32), 12),
        links in prop::collection::vec((0..12_usize, 0..12_usize, 1..4_u32), 0..20),
        switched in prop::collection::vec(prop::bool::weighted(0.3), 12),
        slots in prop::collection::vec(prop::option::of((0..2_u8, 0..2_u8)), 12),
        wholes in prop::option::of(prop::collection::vec(0..4_u8, 12)),
        nics in prop::collection::vec(0..3_u32, 0..3),
    ) -> Vec<Device> {
        let gpus = numa.iter().enumerate();
        let mut devices: Vec<_> = gpus.map(|(index, numa)| {
            let bus = u8::try_from(0x10 + index).expect("small");
            let mut device = gpu(bus.into(), bus, numa.unwrap_or(7));
            device.place.numa_node = *numa;
            device.place.nvlinks.to_switches = u32::from(switched[index]) * 2;
            if let Some(slot) = slots[index] {
                device.place.path = below_a_switch(slot, bus);
            }
            device
        }).collect();
        for (a, b, links) in links.into_iter().filter(|(a, b, _)| a != b) {
            let peer = devices[b].place.pci.expect("set above");
            match links {
                3 => drop(devices[a].place.xgmi.insert(peer, 64_000)),
                _ => drop(devices[a].place.nvlinks.peers.insert(peer, links)),
            }
        }
        for (device, whole) in devices.iter_mut().zip(wholes.into_iter().flatten()) {
            device.parent = Some(format!("WHOLE-{whole}").parse().expect("valid"));
            device.place.pci = format!("0000:{whole:02x}:00.0").parse().ok();
            device.place.nvlinks = NvLinks::default();
        }
        devices.extend((0..).zip(nics).map(|(index, numa)| nic(index, numa)));
        devices
    }
}

/// Free devices, and the container's other devices.
fn setup() -> impl Strategy<Value = (Vec<Device>, Vec<usize>, Vec<usize>)> {
    machine().prop_flat_map(|devices| {
        let nics: Vec<_> = (12..devices.len()).collect();
        let free = prop::sample::subsequence((0..12_usize).collect::<Vec<_>>(), 1..=12);
        let near = prop::sample::subsequence(nics.clone(), 0..=nics.len());
        (Just(devices), free.prop_shuffle(), near)
    })
}

prop_compose! {
    fn case()(setup in setup())(
        size in 1..=setup.1.len(),
        required in prop::sample::subsequence(setup.1.clone(), 0..=setup.1.len().min(3)),
        policy in prop::sample::select(Policy::ALL.to_vec()),
        setup in Just(setup),
    ) -> Case {
        let required = required.into_iter().take(size).collect();
        let (devices, free, near) = setup;
        Case { devices, free, required, near, size, policy }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_set_is_better(case in case()) {
        match (case.best(), case.answer()) {
            (
                None,
                Err(PlacementError::NoNumaNode { .. } | PlacementError::RequiredOnSeveralNumaNodes),
            ) => {}
            (Some(best), Ok(choice)) => {
                prop_assert!(choice.exact);
                prop_assert_eq!(ids(&choice), case.sorted(&best));
            }
            (best, answer) => prop_assert!(false, "{best:?} but {answer:?}"),
        }
    }

    #[test]
    fn no_set_is_better_where_many_are_free(mut case in case()) {
        case.free = (0..12).collect();
        let more = (0..2).map(|index| gpu(index, 0x60 + u8::try_from(index).expect("small"), 0));
        case.devices.extend(more);
        case.free.extend(case.devices.len() - 2..case.devices.len());
        case.required.truncate(1);
        case.size = case.size.min(4).max(case.required.len());
        prop_assert!(!case.is_few());
        let best = case.best().map(|best| case.sorted(&best));
        let chosen = case.answer().ok().map(|choice| ids(&choice));
        prop_assert_eq!(chosen, best);
    }

    #[test]
    fn the_order_of_ids_does_not_matter(case in case(), seed: usize) {
        let mut reordered = case.clone();
        reordered.free.rotate_left(seed % case.free.len());
        reordered.free.reverse();
        reordered.required.reverse();
        prop_assert_eq!(case.answer(), reordered.answer());
    }
}
