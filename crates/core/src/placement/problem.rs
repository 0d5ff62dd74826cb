//! A question as numbers: interchangeable devices become one class, of which only the count matters.

use super::{
    Topology,
    affinity::Worth,
    policy::Term,
    topology::{Group, Spot},
};

/// What is searched: how many to take of each class, beside what is required.
#[derive(Debug)]
pub(super) struct Problem {
    /// What sets are compared by.
    pub(super) terms: &'static [Term],
    /// Positions that the answer must hold, ascending.
    pub(super) required: Vec<usize>,
    /// How many more the answer needs.
    pub(super) missing: usize,
    /// The available devices that are not required, in the order of their first members.
    pub(super) classes: Vec<Class>,
    /// What the connection of two members is worth by two measures, `weights[a * classes + b]`;
    /// symmetric.
    weights: Vec<i64>,
    /// Before the free choice.
    pub(super) start: Start,
    pub(super) groups: Vec<GroupLoad>,
}

/// What the required devices and the companions bring along.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// What their connections are worth by two measures.
    pub(super) weight: i64,
    pub(super) near_nics: i64,
    /// The bits of their NUMA nodes.
    pub(super) numa: u64,
}

/// Devices that no term can tell apart but the position.
#[derive(Debug)]
pub(super) struct Class {
    /// Ascending positions; a choice takes the first of them.
    pub(super) members: Vec<usize>,
    /// How many may be chosen: all, or none of them.
    pub(super) eligible: usize,
    /// What a member has in common with the others.
    pub(super) traits: Traits,
}

/// What tells devices apart besides their connections with other free devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// What the connections with the required devices and the companions are worth by two measures.
    pub(super) fixed: i64,
    pub(super) near_nics: i64,
    /// Shares that others have of it.
    pub(super) shares: i64,
    /// An index into the groups.
    pub(super) group: usize,
    /// The bit of its NUMA node; none where the machine does not tell.
    pub(super) numa: u64,
    is_eligible: bool,
}

/// How full a group is before the free choice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupLoad {
    /// Devices that are not available.
    pub(super) in_use: i64,
    /// Devices that are required.
    pub(super) required: i64,
}

/// A question by positions; each list ascending and without repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions<'a> {
    pub(super) available: &'a [usize],
    /// Some of the available.
    pub(super) required: &'a [usize],
    /// Devices that the container gets besides.
    pub(super) near: &'a [usize],
    /// The shares that others have of each available device; empty for devices that are not shared.
    pub(super) shares: &'a [i64],
    /// Devices of another kind that are chosen together with these: how near each of them is tells
    /// devices apart.
    pub(super) beside: &'a [usize],
}

/// What the connection of two positions is worth by two measures.
type Weigh = fn(&Topology, usize, usize) -> i64;

/// Names groups and NUMA nodes by number.
struct Numbering<'a> {
    topology: &'a Topology,
    weigh: Weigh,
    groups: Vec<&'a Group>,
    numa_nodes: Vec<u32>,
}

// === impl Problem ===

impl Problem {
    /// The problem of choosing `size` devices, of which those that are not required must be eligible.
    pub(super) fn new(
        topology: &Topology,
        positions: Positions<'_>,
        size: usize,
        terms: &'static [Term],
        eligible: impl Fn(usize) -> bool,
    ) -> Self {
        let weigh = weigh_by(terms);
        let numbering = Numbering::of(topology, positions, weigh);
        let Positions { available, required, near, .. } = positions;
        let is_required = |at: &usize| required.binary_search(at).is_ok();
        let free: Vec<_> = available.iter().copied().filter(|at| !is_required(at)).collect();
        let given: Vec<_> = required.iter().chain(near).copied().collect();
        let others: Vec<_> = free.iter().chain(positions.beside).copied().collect();
        let are_twins = |a, b| {
            let alike = |&other: &usize| weigh(topology, a, other) == weigh(topology, b, other);
            others.iter().filter(|&&other| other != a && other != b).all(alike)
        };
        let traits = |at| Traits {
            shares: positions.shares_of(at),
            ..numbering.traits(at, &given, eligible(at))
        };
        let mut classes: Vec<Class> = Vec::with_capacity(free.len());
        for &at in &free {
            let traits = traits(at);
            let is_twin =
                |class: &&mut Class| class.traits == traits && are_twins(class.members[0], at);
            match classes.iter_mut().find(is_twin) {
                Some(class) => class.add(at),
                None => classes.push(Class::new(at, traits)),
            }
        }
        Self {
            terms,
            required: required.to_vec(),
            missing: size - required.len(),
            weights: weights(&classes, |a, b| weigh(topology, a, b)),
            classes,
            start: numbering.start(required, near),
            groups: numbering.loads(positions),
        }
    }

    /// The worth of the connection of a member of one class with a member of another, or of two
    /// members of one.
    pub(super) fn weight(&self, a: usize, b: usize) -> i64 {
        self.weights[a * self.classes.len() + b]
    }

    /// The two measures of a weight.
    pub(super) fn worth(&self, a: usize, b: usize) -> Worth {
        Worth::unpacked(self.weight(a, b))
    }

    /// How many devices may be chosen freely.
    pub(super) fn eligible(&self) -> usize {
        self.classes.iter().map(|class| class.eligible).sum()
    }

    /// The positions of an answer, ascending.
    pub(super) fn positions(&self, counts: &[usize], into: &mut Vec<usize>) {
        into.clear();
        into.extend(&self.required);
        for (class, &count) in self.classes.iter().zip(counts) {
            into.extend(&class.members[..count]);
        }
        into.sort_unstable();
    }
}

/// Where links are a term of their own, PCIe does not stand in for them.
fn weigh_by(terms: &[Term]) -> Weigh {
    if terms.contains(&Term::Links) { Topology::links_first } else { Topology::worth }
}

fn weights(classes: &[Class], weigh: impl Fn(usize, usize) -> i64) -> Vec<i64> {
    let pairs = classes.iter().flat_map(|a| classes.iter().map(move |b| (a, b)));
    let weight = |(a, b): (&Class, &Class)| match (a.members[0], b.members[0]) {
        (first, other) if first != other => weigh(first, other),
        (first, _) => a.members.get(1).map_or(0, |&second| weigh(first, second)),
    };
    pairs.map(weight).collect()
}

// === impl Positions ===

impl Positions<'_> {
    fn shares_of(&self, at: usize) -> i64 {
        let number = self.available.binary_search(&at).ok();
        number.and_then(|number| self.shares.get(number)).copied().unwrap_or(0)
    }
}

// === impl Class ===

impl Class {
    fn new(first: usize, traits: Traits) -> Self {
        Self { members: vec![first], eligible: traits.is_eligible.into(), traits }
    }

    fn add(&mut self, member: usize) {
        self.members.push(member);
        self.eligible += usize::from(self.traits.is_eligible);
    }
}

// === impl Numbering ===

impl<'a> Numbering<'a> {
    fn of(topology: &'a Topology, positions: Positions<'_>, weigh: Weigh) -> Self {
        let spots = || positions.available.iter().map(|&at| topology.spot(at));
        let near = positions.near.iter().map(|&at| topology.spot(at));
        let mut groups: Vec<_> = spots().map(|spot| &spot.group).collect();
        let mut numa_nodes: Vec<_> =
            spots().chain(near).filter_map(|spot| spot.numa_node).collect();
        groups.sort_unstable();
        groups.dedup();
        numa_nodes.sort_unstable();
        numa_nodes.dedup();
        Self { topology, weigh, groups, numa_nodes }
    }

    fn traits(&self, at: usize, given: &[usize], is_eligible: bool) -> Traits {
        let spot = self.topology.spot(at);
        Traits {
            fixed: given.iter().map(|&other| (self.weigh)(self.topology, at, other)).sum(),
            near_nics: spot.nic,
            shares: 0,
            group: self.group(spot).expect("the groups are those of the available devices"),
            numa: self.numa_bit(spot),
            is_eligible,
        }
    }

    fn start(&self, required: &[usize], near: &[usize]) -> Start {
        let mut start = Start::default();
        for (nth, &at) in required.iter().enumerate() {
            let others = required[nth + 1..].iter().chain(near);
            start.weight +=
                others.map(|&other| (self.weigh)(self.topology, at, other)).sum::<i64>();
            start.near_nics += self.topology.spot(at).nic;
        }
        let given = required.iter().chain(near).map(|&at| self.topology.spot(at));
        start.numa = given.fold(0, |bits, spot| bits | self.numa_bit(spot));
        start
    }

    /// What is not available is in use, or might as well be.
    fn loads(&self, positions: Positions<'_>) -> Vec<GroupLoad> {
        let mut loads = vec![GroupLoad::default(); self.groups.len()];
        let others = (0..self.topology.len())
            .filter(|at| positions.available.binary_search(at).is_err())
            .filter_map(|at| self.group(self.topology.spot(at)));
        others.for_each(|group| loads[group].in_use += 1);
        for &at in positions.required {
            let group = self.group(self.topology.spot(at));
            loads[group.expect("required devices are available")].required += 1;
        }
        loads
    }

    fn group(&self, spot: &Spot) -> Option<usize> {
        self.groups.binary_search(&&spot.group).ok()
    }

    /// No machine has more than 64 nodes with accelerators; beyond, the last bit stands for several.
    fn numa_bit(&self, spot: &Spot) -> u64 {
        let number = spot.numa_node.and_then(|node| self.numa_nodes.binary_search(&node).ok());
        number.map_or(0, |number| 1 << number.min(63))
    }
}
