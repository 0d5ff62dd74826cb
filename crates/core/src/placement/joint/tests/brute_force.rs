//! Joint search against an independent comparison of every choice and pairing.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::{
    placement::{
        affinity,
        tests::brute_force::{pcie, usefulness},
    },
    topology::Connection,
};

/// A machine with its free devices, and a request.
#[derive(Clone, Debug)]
struct Case {
    devices: Vec<Device>,
    gpus: Part,
    nics: Part,
    within: Option<PcieLevel>,
}

/// The request for one kind of device, by index.
#[derive(Clone, Debug)]
struct Part {
    free: Vec<usize>,
    required: Vec<usize>,
    size: usize,
}

/// Score; more is better: links, pair levels (farthest first), PCIe, remaining pair levels, remaining
/// connections, positions.
type JointScore = (i64, Reverse<Vec<PcieLevel>>, i64, i64, i64, Reverse<(Vec<usize>, Vec<usize>)>);

impl Part {
    /// Every set of the size that contains the required indices.
    fn sets(&self) -> Vec<Vec<usize>> {
        let masks =
            (0..1_u32 << self.free.len()).filter(|mask| mask.count_ones() as usize == self.size);
        let set = |mask: u32| -> Vec<usize> {
            let chosen = self.free.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            let mut set: Vec<_> = chosen.map(|(_, &index)| index).collect();
            set.sort_unstable();
            set
        };
        let has_required = |set: &Vec<usize>| self.required.iter().all(|index| set.contains(index));
        masks.map(set).filter(has_required).collect()
    }

    fn without(&self, set: &[usize]) -> Vec<usize> {
        self.free.iter().copied().filter(|index| !set.contains(index)).collect()
    }
}

impl Case {
    fn answer(&self) -> Result<JointChoice, JointError> {
        let topology = Topology::from_devices(&self.devices);
        let ids = |indices: &[usize]| -> Vec<&str> {
            indices.iter().map(|&index| self.devices[index].id.as_str()).collect()
        };
        let (gpus, required_gpus) = (ids(&self.gpus.free), ids(&self.gpus.required));
        let (nics, required_nics) = (ids(&self.nics.free), ids(&self.nics.required));
        let request = JointRequest {
            gpus: DeviceRequest {
                available: &gpus,
                required: &required_gpus,
                size: self.gpus.size,
            },
            nics: DeviceRequest {
                available: &nics,
                required: &required_nics,
                size: self.nics.size,
            },
            alignment: self.within.map_or(Alignment::Preferred, Alignment::Required),
        };
        choose_joint(&topology, request)
    }

    fn between(&self, a: usize, b: usize) -> Connection {
        Connection::between(&self.devices[a], &self.devices[b])
    }

    /// The best choice within a level.
    fn best(&self, within: PcieLevel) -> Option<(Vec<usize>, Vec<usize>, JointScore)> {
        let nics = self.nics.sets();
        let sets = self.gpus.sets().into_iter();
        let choices =
            sets.flat_map(|gpus| nics.iter().map(move |nics| (gpus.clone(), nics.clone())));
        let scored = choices.map(|(gpus, nics)| {
            let score = self.score(&gpus, &nics);
            (gpus, nics, score)
        });
        let permitted = scored.filter(|(_, _, score)| score.1.0[0] <= within);
        permitted.max_by(|(_, _, a), (_, _, b)| a.cmp(b))
    }

    fn score(&self, gpus: &[usize], nics: &[usize]) -> JointScore {
        let sum_of = |measure: &dyn Fn(Connection) -> i64| -> i64 {
            let pairs = gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| (a, b)));
            pairs.filter(|(a, b)| a < b).map(|(a, b)| measure(self.between(a, b))).sum()
        };
        let is_linked =
            |connection: Connection| connection.nvlink.is_some() || connection.xgmi_mbps.is_some();
        let links =
            |connection: Connection| if is_linked(connection) { affinity(connection) } else { 0 };
        let (remaining_gpus, free_nics) = (self.gpus.without(gpus), self.nics.without(nics));
        let remaining = usefulness(&remaining_gpus, true, &|a, b| affinity(self.between(a, b)));
        (
            sum_of(&links),
            Reverse(self.pairing(gpus, nics)),
            sum_of(&pcie),
            self.remaining_pair_affinity(&remaining_gpus, &free_nics),
            remaining,
            Reverse((gpus.to_vec(), nics.to_vec())),
        )
    }

    /// The levels of the best of all even pairings, the farthest first.
    fn pairing(&self, gpus: &[usize], nics: &[usize]) -> Vec<PcieLevel> {
        let (more, fewer) = if gpus.len() >= nics.len() { (gpus, nics) } else { (nics, gpus) };
        let codes = 0..fewer.len().pow(number(more.len()));
        let pairings = codes.filter_map(|code| self.levels(more, fewer, code));
        pairings.min().expect("there is an even pairing")
    }

    /// Levels of one pairing, if it is even. Digits of `code` assign each device of the larger kind to one of
    /// the smaller.
    fn levels(&self, more: &[usize], fewer: &[usize], mut code: usize) -> Option<Vec<PcieLevel>> {
        let mut loads = [0; 6];
        let mut partners = [0; 6];
        for partner in &mut partners[..more.len()] {
            *partner = code % fewer.len();
            loads[*partner] += 1;
            code /= fewer.len();
        }
        let min_load = more.len() / fewer.len();
        if loads[..fewer.len()].iter().any(|&load| load < min_load || load > min_load + 1) {
            return None;
        }
        let pairs = more.iter().zip(partners).map(|(&one, other)| (one, fewer[other]));
        let mut levels: Vec<_> = pairs.map(|(a, b)| self.between(a, b).pcie).collect();
        levels.sort_unstable_by_key(|&level| Reverse(level));
        Some(levels)
    }

    /// Best affinity of the remaining devices, one to one: dynamic programming over sets of used NICs.
    fn remaining_pair_affinity(&self, gpus: &[usize], nics: &[usize]) -> i64 {
        let mut best = vec![None; 1 << nics.len()];
        best[0] = Some(0);
        for &gpu in gpus {
            for set in (0..best.len()).rev() {
                let Some(sum) = best[set] else { continue };
                for (bit, &nic) in nics.iter().enumerate().filter(|(bit, _)| set & (1 << bit) == 0)
                {
                    let extended = &mut best[set | 1 << bit];
                    *extended = (*extended).max(Some(sum + pcie(self.between(gpu, nic))));
                }
            }
        }
        best.into_iter().flatten().max().unwrap_or(0)
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("small")
}

/// A location: host bridge, port, and depth below the port (none, a switch, or a nested switch).
type Location = (u8, u8, u8, u8);

fn path((root, port, depth, below): Location, index: u8) -> String {
    let root = root * 0x20;
    // The device numbers switch slots and single-device ports.
    let (slot, address) = (8 + index, format!("0000:{:02x}:00.0", 0xc0 + index));
    let (first_bus, second_bus) = (root + 2 * port + 1, root + 8 + 2 * port + below);
    let bridges = match depth {
        0 => format!("0000:{root:02x}:{slot:02x}.0"),
        1 => format!(
            "0000:{root:02x}:{port:02x}.0/0000:{first_bus:02x}:00.0/0000:{:02x}:{slot:02x}.0",
            first_bus + 1
        ),
        _ => format!(
            "0000:{root:02x}:{port:02x}.0/0000:{first_bus:02x}:00.0/0000:{:02x}:{below:02x}.0/\
             0000:{second_bus:02x}:00.0/0000:{:02x}:{slot:02x}.0",
            first_bus + 1,
            second_bus + 8
        ),
    };
    format!("pci0000:{root:02x}/{bridges}/{address}")
}

prop_compose! {
    /// Up to six GPUs and six NICs at random places of a PCIe tree, some GPUs linked.
    fn machine()(
        gpus in prop::collection::vec((0..3_u8, 0..2_u8, 0..3_u8, 0..2_u8), 1..=6),
        nics in prop::collection::vec((0..3_u8, 0..2_u8, 0..3_u8, 0..2_u8), 1..=6),
        nodes in prop::collection::vec(prop::option::weighted(0.8, 0..2_u32), 3),
        links in prop::collection::vec((0..6_usize, 0..6_usize, 1..3_u32), 0..6),
        switched in prop::collection::vec(prop::bool::weighted(0.3), 6),
    ) -> (Vec<Device>, Vec<Device>) {
        let placed_at = |device: Device, location: Location, index: u8| {
            placed(device, &path(location, index), nodes[usize::from(location.0)])
        };
        let mut gpus: Vec<_> = (0_u8..).zip(&gpus).map(|(index, &location)| {
            let mut device = placed_at(gpu(index.into(), 0, 0), location, index);
            device.place.nvlinks.to_switches = u32::from(switched[usize::from(index)]) * 2;
            device
        }).collect();
        for (a, b, links) in links {
            if a != b && a < gpus.len() && b < gpus.len() {
                let peer = gpus[b].place.pci.expect("placed");
                gpus[a].place.nvlinks.peers.insert(peer, links);
            }
        }
        let nic = |(index, location): (u8, &Location)| {
            placed_at(nic(index.into(), 0), *location, 8 + index)
        };
        (gpus, (0_u8..).zip(&nics).map(nic).collect())
    }
}

/// Free indices in any order, the number to choose, and the required ones.
fn part(indices: std::ops::Range<usize>) -> impl Strategy<Value = Part> {
    let all_indices: Vec<_> = indices.collect();
    let free = prop::sample::subsequence(all_indices.clone(), 1..=all_indices.len()).prop_shuffle();
    free.prop_flat_map(|free| {
        let required = prop::sample::subsequence(free.clone(), 0..=free.len().min(2));
        (1..=free.len(), required, Just(free))
    })
    .prop_map(|(size, required, free)| {
        let required = required.into_iter().take(size).collect();
        Part { free, required, size }
    })
}

fn case_of(
    machine: impl Strategy<Value = (Vec<Device>, Vec<Device>)>,
) -> impl Strategy<Value = Case> {
    let with_parts = machine.prop_flat_map(|(gpus, nics)| {
        let (middle, end) = (gpus.len(), gpus.len() + nics.len());
        let devices: Vec<_> = gpus.into_iter().chain(nics).collect();
        let levels = prop::sample::select(LEVELS.to_vec());
        (Just(devices), part(0..middle), part(middle..end), prop::option::weighted(0.3, levels))
    });
    with_parts.prop_map(|(devices, gpus, nics, within)| Case { devices, gpus, nics, within })
}

prop_compose! {
    /// The same machine with NUMA nodes independent of host bridges.
    fn odd_machine()(
        machine in machine(),
        nodes in prop::collection::vec(prop::option::weighted(0.8, 0..2_u32), 12),
    ) -> (Vec<Device>, Vec<Device>) {
        let (mut gpus, mut nics) = machine;
        for (device, node) in gpus.iter_mut().chain(&mut nics).zip(nodes) {
            device.place.numa_node = node;
        }
        (gpus, nics)
    }
}

impl Case {
    /// Checks that the answer is valid, and returns its score.
    fn checked_score(&self, choice: &JointChoice) -> (Vec<usize>, Vec<usize>, JointScore) {
        let index = |id: &DeviceId| self.devices.iter().position(|device| device.id == *id);
        let indices = |ids: &[DeviceId]| -> Vec<usize> {
            ids.iter().map(|id| index(id).expect("of the machine")).collect()
        };
        let (gpus, nics) = (indices(&choice.gpus), indices(&choice.nics));
        assert!(self.gpus.sets().contains(&gpus) && self.nics.sets().contains(&nics));
        let is_even = |ids: &[DeviceId], device_of: &dyn Fn(&Pair) -> DeviceId| {
            let load =
                |id: &DeviceId| choice.pairs.iter().filter(|pair| device_of(pair) == *id).count();
            let min_load = choice.pairs.len() / ids.len();
            ids.iter().all(|id| load(id) == min_load || load(id) == min_load + 1)
        };
        assert_eq!(choice.pairs.len(), gpus.len().max(nics.len()));
        assert!(is_even(&choice.gpus, &|pair| pair.gpu.clone()));
        assert!(is_even(&choice.nics, &|pair| pair.nic.clone()));
        let mut score = self.score(&gpus, &nics);
        let level = |pair: &Pair| {
            let (gpu, nic) = (index(&pair.gpu).expect("chosen"), index(&pair.nic).expect("chosen"));
            assert_eq!(pair.level, self.between(gpu, nic).pcie);
            pair.level
        };
        score.1 = Reverse(choice.pairs.iter().map(level).collect());
        score.1.0.sort_unstable_by_key(|&level| Reverse(level));
        (gpus, nics, score)
    }

    /// The nearest level with a possible choice.
    fn nearest(&self) -> PcieLevel {
        let levels = LEVELS.into_iter().rev().find(|&level| self.best(level).is_some());
        levels.unwrap_or(PcieLevel::Sys)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_choice_is_better(case in case_of(machine())) {
        match (case.best(case.within.unwrap_or(PcieLevel::Sys)), case.answer()) {
            (Some(best), Ok(choice)) => {
                prop_assert!(choice.exact);
                prop_assert_eq!(case.checked_score(&choice), best);
            }
            (None, Err(JointError::TooFar { nearest, .. })) => {
                prop_assert_eq!(nearest, case.nearest());
            }
            (best, answer) => prop_assert!(false, "{best:?} but {answer:?}"),
        }
    }

    #[test]
    fn levels_that_form_no_tree_get_a_sound_answer(case in case_of(odd_machine())) {
        let best = case.best(case.within.unwrap_or(PcieLevel::Sys));
        match case.answer() {
            Ok(choice) => {
                let checked = case.checked_score(&choice);
                prop_assert!(checked.2.1.0[0] <= case.within.unwrap_or(PcieLevel::Sys));
                prop_assert!(!choice.exact || Some(checked) == best);
            }
            Err(JointError::TooFar { nearest, .. }) => prop_assert!(nearest >= case.nearest()),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn the_order_of_ids_does_not_matter(case in case_of(machine()), rotation: usize) {
        let mut reordered = case.clone();
        for part in [&mut reordered.gpus, &mut reordered.nics] {
            let free = part.free.len();
            part.free.rotate_left(rotation % free);
            part.required.reverse();
        }
        reordered.devices.reverse();
        let last_index = case.devices.len() - 1;
        for part in [&mut reordered.gpus, &mut reordered.nics] {
            let indices = part.free.iter_mut().chain(&mut part.required);
            indices.for_each(|index| *index = last_index - *index);
        }

        prop_assert_eq!(case.answer(), reordered.answer());
    }
}
