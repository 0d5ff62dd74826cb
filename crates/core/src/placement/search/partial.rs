//! A partially chosen set of devices.

use crate::placement::{
    affinity::Affinity,
    policy::Term,
    problem::{Class, GroupLoad, Problem},
    remaining::count,
};

/// Number of devices taken from each class, with derived sums.
#[derive(Clone, Debug)]
pub(in crate::placement) struct PartialSet {
    pub(in crate::placement) counts: Vec<usize>,
    /// Packed affinity inside the set.
    pub(in crate::placement) weight: i64,
    /// Packed affinity of a member of each class with the set.
    pub(in crate::placement) affinities: Vec<i64>,
    /// Devices of each group in the set, required ones included.
    pub(in crate::placement) group_counts: Vec<i64>,
}

// === impl PartialSet ===

impl PartialSet {
    /// The required devices.
    pub(in crate::placement) fn new(problem: &Problem) -> Self {
        Self {
            counts: vec![0; problem.classes.len()],
            affinities: problem
                .classes
                .iter()
                .map(|class| class.properties.fixed_affinity)
                .collect(),
            weight: problem.base.weight,
            group_counts: problem.groups.iter().map(|group| group.required).collect(),
        }
    }

    /// Takes this many devices of a class.
    pub(in crate::placement) fn take(&mut self, problem: &Problem, class: usize, devices: usize) {
        self.counts[class] += devices;
        let devices = count(devices);
        self.weight += self.gain(problem, class, devices);
        self.group_counts[problem.classes[class].properties.group] += devices;
        for (other, affinity) in self.affinities.iter_mut().enumerate() {
            *affinity += devices * problem.weight(class, other);
        }
    }

    /// Reverts `take`.
    pub(in crate::placement) fn undo_take(
        &mut self,
        problem: &Problem,
        class: usize,
        devices: usize,
    ) {
        self.counts[class] -= devices;
        let devices = count(devices);
        for (other, affinity) in self.affinities.iter_mut().enumerate() {
            *affinity -= devices * problem.weight(class, other);
        }
        self.group_counts[problem.classes[class].properties.group] -= devices;
        self.weight -= self.gain(problem, class, devices);
    }

    /// Affinity that `devices` further devices of a class add: with the set, and among themselves.
    fn gain(&self, problem: &Problem, class: usize, devices: i64) -> i64 {
        devices * self.affinities[class]
            + devices * (devices - 1) / 2 * problem.weight(class, class)
    }

    /// Value of a term for the set; 0 for terms of the remainder and of pairs.
    pub(in crate::placement) fn value(&self, problem: &Problem, term: Term) -> i64 {
        match term {
            Term::Affinity | Term::Links => Affinity::unpacked(self.weight).primary,
            Term::Pcie => Affinity::unpacked(self.weight).pcie,
            Term::NearNics => {
                problem.base.nic_affinity + self.sum(problem, |class| class.properties.nic_affinity)
            }
            Term::NumaNodes => self.numa_nodes(problem),
            Term::InUse => {
                let required: i64 =
                    problem.groups.iter().map(|group| group.in_use * group.required).sum();
                required + self.sum(problem, |class| problem.groups[class.properties.group].in_use)
            }
            Term::Shares => self.sum(problem, |class| class.properties.shares),
            Term::Groups => count(self.group_counts.iter().filter(|&&taken| taken > 0).count()),
            Term::Imbalance => {
                let square = |(group, taken): (&GroupLoad, &i64)| (group.in_use + taken).pow(2);
                problem.groups.iter().zip(&self.group_counts).map(square).sum()
            }
            // The search evaluates these terms itself.
            Term::Remaining
            | Term::RemainingPcie
            | Term::RemainingPairs
            | Term::SysPairs
            | Term::NodePairs
            | Term::PhbPairs
            | Term::PxbPairs
            | Term::PixPairs
            | Term::Position => 0,
        }
    }

    fn sum(&self, problem: &Problem, value_of: impl Fn(&Class) -> i64) -> i64 {
        let counts = problem.classes.iter().zip(&self.counts);
        counts.map(|(class, &devices)| value_of(class) * count(devices)).sum()
    }

    fn numa_nodes(&self, problem: &Problem) -> i64 {
        let classes = problem.classes.iter().zip(&self.counts).filter(|(_, count)| **count > 0);
        let bits = classes.fold(problem.base.numa, |bits, (class, _)| bits | class.properties.numa);
        bits.count_ones().into()
    }
}
