//! The search against a comparison of every set, which shares no line with it.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::{nvlink::NvLinks, topology::Connection};

/// A machine, what is free of it, and a question.
#[derive(Clone, Debug)]
struct Case {
    devices: Vec<Device>,
    free: Vec<usize>,
    required: Vec<usize>,
    near: Vec<usize>,
    size: usize,
    policy: Policy,
}

/// What a set is worth, the weightiest first, more is better; then the lowest positions.
type Worth = (Vec<i64>, Reverse<Vec<usize>>);

impl Case {
    fn ids(&self, indices: &[usize]) -> Vec<&str> {
        indices.iter().map(|&index| self.devices[index].id.as_str()).collect()
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

    /// Every set of the size that holds the required devices.
    fn sets(&self) -> impl Iterator<Item = Vec<usize>> {
        let mut free = self.free.clone();
        free.sort_unstable();
        free.dedup();
        let masks = (0..1_u32 << free.len()).filter(|mask| mask.count_ones() as usize == self.size);
        let members = move |mask: u32| -> Vec<usize> {
            let of_mask = free.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            of_mask.map(|(_, &index)| index).collect()
        };
        let holds = |set: &Vec<usize>| self.required.iter().all(|index| set.contains(index));
        masks.map(members).filter(holds).filter(|set| self.is_allowed(set))
    }

    fn is_allowed(&self, set: &[usize]) -> bool {
        let node = |index: &usize| self.devices[*index].place.numa_node;
        let tells_none = self.free.iter().all(|index| node(index).is_none());
        let first = node(&set[0]);
        self.policy != Policy::NumaStrict
            || set.len() == 1
            || tells_none
            || (first.is_some() && set.iter().all(|index| node(index) == first))
    }

    fn best(&self) -> Option<Vec<usize>> {
        self.sets().max_by_key(|set| self.worth(set))
    }

    fn worth(&self, set: &[usize]) -> Worth {
        let rest: Vec<_> = self.free.iter().copied().filter(|index| !set.contains(index)).collect();
        let affinity = self.affinity(set);
        let remaining = rest.iter().map(|&index| self.usefulness(index, &rest)).sum();
        let numa = -self.numa_nodes(set);
        let in_use = set.iter().map(|&index| self.in_use(&self.group(index))).sum();
        let groups = number(self.groups(set).len());
        let terms = match self.policy {
            Policy::Aligned | Policy::NumaStrict => {
                vec![affinity, remaining, -self.near_nics(set), numa, in_use, -groups]
            }
            Policy::Packed => vec![in_use, -groups, affinity, remaining, numa],
            Policy::Distributed => vec![-self.imbalance(set), affinity, remaining, numa],
            Policy::First => vec![],
        };
        let positions = set.iter().map(|&index| self.position(index));
        let mut positions: Vec<_> = positions.collect();
        positions.sort_unstable();
        (terms, Reverse(positions))
    }

    fn between(&self, a: usize, b: usize) -> i64 {
        affinity(Connection::between(&self.devices[a], &self.devices[b]))
    }

    fn affinity(&self, set: &[usize]) -> i64 {
        let near = set.iter().flat_map(|&a| self.near.iter().map(move |&b| (a, b)));
        let inside = set.iter().flat_map(|&a| set.iter().map(move |&b| (a, b)));
        let pairs = inside.filter(|(a, b)| a < b).chain(near);
        pairs.map(|(a, b)| self.between(a, b)).sum()
    }

    fn usefulness(&self, of: usize, rest: &[usize]) -> i64 {
        let others = rest.iter().filter(|&&other| other != of);
        let mut worths: Vec<_> = others.map(|&other| self.between(of, other)).collect();
        worths.sort_unstable_by_key(|&worth| Reverse(worth));
        let best = |most: usize| worths.iter().take(most).sum::<i64>();
        21 * best(1) + 7 * best(3) + 3 * best(7)
    }

    fn near_nics(&self, set: &[usize]) -> i64 {
        let nics = |&of: &usize| {
            let is_nic = |index: &usize| self.devices[*index].kind == DeviceKind::Nic;
            let nics = (0..self.devices.len()).filter(is_nic).filter(|_| !is_nic(&of));
            nics.map(|nic| self.between(of, nic)).max().unwrap_or(0)
        };
        set.iter().map(nics).sum()
    }

    fn numa_nodes(&self, set: &[usize]) -> i64 {
        let all = set.iter().chain(&self.near);
        let nodes: BTreeSet<_> = all.filter_map(|&at| self.devices[at].place.numa_node).collect();
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
        let order = |index: usize| self.devices[index].order();
        (0..self.devices.len()).filter(|&other| order(other) < order(index)).count()
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).expect("small")
}

prop_compose! {
    /// Twelve GPUs or parts of GPUs at random places with random links, and two NICs.
    fn machine()(
        numa in prop::collection::vec(prop::option::weighted(0.9, 0..3_u32), 12),
        links in prop::collection::vec((0..12_usize, 0..12_usize, 1..4_u32), 0..20),
        switched in prop::collection::vec(prop::bool::weighted(0.3), 12),
        wholes in prop::option::of(prop::collection::vec(0..4_u8, 12)),
        nics in prop::collection::vec(0..3_u32, 0..3),
    ) -> Vec<Device> {
        let gpus = numa.iter().enumerate();
        let mut devices: Vec<_> = gpus.map(|(index, numa)| {
            let bus = u8::try_from(0x10 + index).expect("small");
            let mut device = gpu(bus.into(), bus, numa.unwrap_or(7));
            device.place.numa_node = *numa;
            device.place.nvlinks.to_switches = u32::from(switched[index]) * 2;
            device
        }).collect();
        for (a, b, links) in links.into_iter().filter(|(a, b, _)| a != b) {
            let peer = devices[b].place.pci.expect("set above");
            devices[a].place.nvlinks.peers.insert(peer, links);
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

/// The devices that are free, and those that the container has besides.
fn scene() -> impl Strategy<Value = (Vec<Device>, Vec<usize>, Vec<usize>)> {
    machine().prop_flat_map(|devices| {
        let nics: Vec<_> = (12..devices.len()).collect();
        let free = prop::sample::subsequence((0..12_usize).collect::<Vec<_>>(), 1..=12);
        let near = prop::sample::subsequence(nics.clone(), 0..=nics.len());
        (Just(devices), free.prop_shuffle(), near)
    })
}

prop_compose! {
    fn case()(scene in scene())(
        size in 1..=scene.1.len(),
        required in prop::sample::subsequence(scene.1.clone(), 0..=scene.1.len().min(3)),
        policy in prop::sample::select(Policy::ALL.to_vec()),
        scene in Just(scene),
    ) -> Case {
        let required = required.into_iter().take(size).collect();
        let (devices, free, near) = scene;
        Case { devices, free, required, near, size, policy }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_set_is_better(case in case()) {
        match (case.best(), case.answer()) {
            (None, Err(PlacementError::NoNumaNode { .. })) => {}
            (Some(best), Ok(choice)) => {
                let mut best: Vec<_> = case.ids(&best);
                let mut chosen: Vec<_> = choice.devices.iter().map(DeviceId::as_str).collect();
                best.sort_unstable();
                chosen.sort_unstable();
                prop_assert!(choice.exact);
                prop_assert_eq!(chosen, best);
            }
            (best, answer) => prop_assert!(false, "{best:?} but {answer:?}"),
        }
    }

    #[test]
    fn the_order_of_asking_does_not_matter(case in case(), seed: usize) {
        let mut other = case.clone();
        other.free.rotate_left(seed % case.free.len());
        other.free.reverse();
        other.required.reverse();
        prop_assert_eq!(case.answer(), other.answer());
    }
}
