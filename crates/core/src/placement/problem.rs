//! Numeric form of a placement request. Interchangeable devices form a class, and the search chooses a count per class.
//!
//! A packed affinity is one number with two measures, by links and by PCIe ([`super::affinity`]).

use super::{
    Topology,
    affinity::Affinity,
    policy::Term,
    topology::{Group, PlacedDevice},
};

/// Input of the search: the required devices, and classes of the optional ones.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) terms: &'static [Term],
    /// Required positions, ascending.
    pub(super) required: Vec<usize>,
    /// Number of further devices.
    pub(super) missing: usize,
    /// Classes of the optional devices, by first member.
    pub(super) classes: Vec<Class>,
    /// Packed affinity between members of two classes, `weights[a * classes + b]`; symmetric.
    weights: Vec<i64>,
    /// Contribution of the required devices.
    pub(super) base: BaseTotals,
    pub(super) groups: Vec<GroupLoad>,
}

/// Contribution of the required devices and the container's other devices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BaseTotals {
    /// Packed affinity among these devices.
    pub(super) weight: i64,
    pub(super) nic_affinity: i64,
    /// NUMA nodes of these devices, as bits.
    pub(super) numa: u64,
}

/// Interchangeable devices: exchanging one for another changes only the position term.
#[derive(Debug)]
pub(super) struct Class {
    /// Positions, ascending; a choice takes the lowest.
    pub(super) members: Vec<usize>,
    /// Number of eligible members: all or none.
    pub(super) eligible: usize,
    /// Common properties of the members.
    pub(super) properties: Properties,
}

/// Properties of a device besides its affinity with other optional devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Properties {
    /// Packed affinity with the required devices and the container's other devices.
    pub(super) fixed_affinity: i64,
    pub(super) nic_affinity: i64,
    /// Shares that other containers hold.
    pub(super) shares: i64,
    /// Index into the groups.
    pub(super) group: usize,
    /// Bit of the NUMA node; 0 for unknown.
    pub(super) numa: u64,
    is_eligible: bool,
}

/// Load of a group before the choice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupLoad {
    /// Unavailable devices.
    pub(super) in_use: i64,
    pub(super) required: i64,
}

/// A request in positions; each list is ascending and unique.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions<'a> {
    pub(super) available: &'a [usize],
    /// A subset of `available`.
    pub(super) required: &'a [usize],
    /// The container's other devices.
    pub(super) near: &'a [usize],
    /// Shares of each available device that other containers hold; empty for unshared devices.
    pub(super) shares: &'a [i64],
    /// Devices of another kind in a joint choice: distances to them distinguish classes.
    pub(super) other_kind: &'a [usize],
}

/// Packed affinity of two positions.
type AffinityMeasure = fn(&Topology, usize, usize) -> i64;

/// Indices of groups and NUMA nodes.
struct Numbering<'a> {
    topology: &'a Topology,
    measure: AffinityMeasure,
    groups: Vec<&'a Group>,
    numa_nodes: Vec<u32>,
}

// === impl Problem ===

impl Problem {
    /// The problem of choosing `size` devices: the required ones, and others for which `eligible` is true.
    pub(super) fn new(
        topology: &Topology,
        positions: Positions<'_>,
        size: usize,
        terms: &'static [Term],
        eligible: impl Fn(usize) -> bool,
    ) -> Self {
        let measure = affinity_measure(terms);
        let numbering = Numbering::of(topology, positions, measure);
        let Positions { available, required, near, .. } = positions;
        let is_required = |position: &usize| required.binary_search(position).is_ok();
        let free: Vec<_> =
            available.iter().copied().filter(|position| !is_required(position)).collect();
        let fixed_devices: Vec<_> = required.iter().chain(near).copied().collect();
        let others: Vec<_> = free.iter().chain(positions.other_kind).copied().collect();
        let are_interchangeable = |a, b| {
            let is_equal =
                |&other: &usize| measure(topology, a, other) == measure(topology, b, other);
            others.iter().filter(|&&other| other != a && other != b).all(is_equal)
        };
        let properties = |position| Properties {
            shares: positions.shares_of(position),
            ..numbering.properties(position, &fixed_devices, eligible(position))
        };
        let mut classes: Vec<Class> = Vec::with_capacity(free.len());
        for &position in &free {
            let properties = properties(position);
            let is_same = |class: &&mut Class| {
                class.properties == properties && are_interchangeable(class.members[0], position)
            };
            match classes.iter_mut().find(is_same) {
                Some(class) => class.add(position),
                None => classes.push(Class::new(position, properties)),
            }
        }
        Self {
            terms,
            required: required.to_vec(),
            missing: size - required.len(),
            weights: weights(&classes, |a, b| measure(topology, a, b)),
            classes,
            base: numbering.base_totals(required, near),
            groups: numbering.loads(positions),
        }
    }

    /// Packed affinity between members of two classes, or of two members of one class.
    pub(super) fn weight(&self, a: usize, b: usize) -> i64 {
        self.weights[a * self.classes.len() + b]
    }

    /// Affinity between members of two classes.
    pub(super) fn affinity(&self, a: usize, b: usize) -> Affinity {
        Affinity::unpacked(self.weight(a, b))
    }

    /// Number of eligible devices.
    pub(super) fn eligible(&self) -> usize {
        self.classes.iter().map(|class| class.eligible).sum()
    }

    /// Positions of an answer, ascending.
    pub(super) fn positions(&self, counts: &[usize], positions: &mut Vec<usize>) {
        positions.clear();
        positions.extend(&self.required);
        for (class, &count) in self.classes.iter().zip(counts) {
            positions.extend(&class.members[..count]);
        }
        positions.sort_unstable();
    }
}

/// Affinity of an objective. If links are a term of their own, PCIe does not replace missing links.
fn affinity_measure(terms: &[Term]) -> AffinityMeasure {
    if terms.contains(&Term::Links) { Topology::packed_links } else { Topology::packed_affinity }
}

fn weights(classes: &[Class], measure: impl Fn(usize, usize) -> i64) -> Vec<i64> {
    let pairs = classes.iter().flat_map(|a| classes.iter().map(move |b| (a, b)));
    let weight = |(a, b): (&Class, &Class)| match (a.members[0], b.members[0]) {
        (first, other) if first != other => measure(first, other),
        (first, _) => a.members.get(1).map_or(0, |&second| measure(first, second)),
    };
    pairs.map(weight).collect()
}

// === impl Positions ===

impl Positions<'_> {
    fn shares_of(&self, position: usize) -> i64 {
        let index = self.available.binary_search(&position).ok();
        index.and_then(|index| self.shares.get(index)).copied().unwrap_or(0)
    }
}

// === impl Class ===

impl Class {
    fn new(first: usize, properties: Properties) -> Self {
        Self { members: vec![first], eligible: properties.is_eligible.into(), properties }
    }

    fn add(&mut self, member: usize) {
        self.members.push(member);
        self.eligible += usize::from(self.properties.is_eligible);
    }
}

// === impl Numbering ===

impl<'a> Numbering<'a> {
    fn of(topology: &'a Topology, positions: Positions<'_>, measure: AffinityMeasure) -> Self {
        let devices = || positions.available.iter().map(|&position| topology.device(position));
        let near = positions.near.iter().map(|&position| topology.device(position));
        let mut groups: Vec<_> = devices().map(|device| &device.group).collect();
        let mut numa_nodes: Vec<_> =
            devices().chain(near).filter_map(|device| device.numa_node).collect();
        groups.sort_unstable();
        groups.dedup();
        numa_nodes.sort_unstable();
        numa_nodes.dedup();
        Self { topology, measure, groups, numa_nodes }
    }

    fn properties(
        &self,
        position: usize,
        fixed_devices: &[usize],
        is_eligible: bool,
    ) -> Properties {
        let device = self.topology.device(position);
        Properties {
            fixed_affinity: fixed_devices
                .iter()
                .map(|&other| (self.measure)(self.topology, position, other))
                .sum(),
            nic_affinity: device.nic_affinity,
            shares: 0,
            group: self.group(device).expect("the groups are those of the available devices"),
            numa: self.numa_bit(device),
            is_eligible,
        }
    }

    fn base_totals(&self, required: &[usize], near: &[usize]) -> BaseTotals {
        let mut totals = BaseTotals::default();
        for (index, &position) in required.iter().enumerate() {
            let others = required[index + 1..].iter().chain(near);
            totals.weight +=
                others.map(|&other| (self.measure)(self.topology, position, other)).sum::<i64>();
            totals.nic_affinity += self.topology.device(position).nic_affinity;
        }
        let fixed_devices =
            required.iter().chain(near).map(|&position| self.topology.device(position));
        totals.numa = fixed_devices.fold(0, |bits, device| bits | self.numa_bit(device));
        totals
    }

    /// Loads of all groups. Unavailable devices count as in use.
    fn loads(&self, positions: Positions<'_>) -> Vec<GroupLoad> {
        let mut loads = vec![GroupLoad::default(); self.groups.len()];
        let others = (0..self.topology.len())
            .filter(|position| positions.available.binary_search(position).is_err())
            .filter_map(|position| self.group(self.topology.device(position)));
        others.for_each(|group| loads[group].in_use += 1);
        for &position in positions.required {
            let group = self.group(self.topology.device(position));
            loads[group.expect("required devices are available")].required += 1;
        }
        loads
    }

    fn group(&self, device: &PlacedDevice) -> Option<usize> {
        self.groups.binary_search(&&device.group).ok()
    }

    /// Node number as a bit. Machines have at most 64 nodes with accelerators; further nodes share the last
    /// bit.
    fn numa_bit(&self, device: &PlacedDevice) -> u64 {
        let bit = device.numa_node.and_then(|node| self.numa_nodes.binary_search(&node).ok());
        bit.map_or(0, |bit| 1 << bit.min(63))
    }
}
