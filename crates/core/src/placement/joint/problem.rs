//! A question about GPUs and NICs as numbers: classes of each kind, and the junctions they meet at.

use super::{
    junctions::{Junctions, Path, RUNGS},
    loads::Loads,
};
use crate::placement::{
    Question, Topology,
    policy::JOINT,
    problem::{Positions, Problem},
};

/// What is searched.
#[derive(Debug)]
pub(super) struct JointProblem {
    pub(super) gpus: Kind,
    pub(super) nics: Kind,
    pub(super) junctions: Junctions,
    pub(super) loads: Loads,
    /// `free_nics[class * junctions + junction]`: NICs of this class and all after it.
    free_nics: Vec<usize>,
}

/// The devices of one kind.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) problem: Problem,
    /// The junctions of each class.
    pub(super) paths: Vec<Path>,
    /// Those of each required device.
    required_paths: Vec<Path>,
    /// How many there are at each junction.
    pub(super) available: Vec<usize>,
    /// How many of them are required.
    pub(super) required: Vec<usize>,
    /// How many remain.
    pub(super) rest: usize,
}

/// What is chosen at one junction, the required devices included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) at: usize,
    pub(super) gpus: usize,
    pub(super) nics: usize,
}

// === impl JointProblem ===

impl JointProblem {
    pub(super) fn new(topology: &Topology, gpus: &Question, nics: &Question) -> Self {
        let junctions = Junctions::of(topology, &gpus.available, &nics.available);
        let gpu_kind = Kind::new(topology, &junctions, (gpus, nics));
        let nic_kind = Kind::new(topology, &junctions, (nics, gpus));
        let free_nics = nic_kind.counts_from_each_class(junctions.rungs.len());
        let loads = Loads::of(gpus.size, nics.size);
        Self { gpus: gpu_kind, nics: nic_kind, junctions, loads, free_nics }
    }

    /// How many NICs of a class, and of all after it, are at each junction.
    pub(super) fn free_nics(&self, class: usize) -> &[usize] {
        let junctions = self.junctions.rungs.len();
        &self.free_nics[class * junctions..][..junctions]
    }

    /// The kind of which fewer are chosen.
    pub(super) fn fewer(&self) -> &Kind {
        if self.loads.gpu.most > self.loads.nic.most { &self.gpus } else { &self.nics }
    }

    /// How many GPUs and NICs to choose at each junction of a rung, so that all pairs meet there; `None`
    /// where some cannot.
    ///
    /// Which sums the numbers of the first junctions can have is found junction by junction; then the
    /// numbers are read off backwards.
    pub(super) fn division(&self, rung: usize) -> Option<Vec<Share>> {
        let here: Vec<_> = (0..self.junctions.rungs.len())
            .filter(|&at| self.junctions.rungs[at] == rung)
            .collect();
        let required = |kind: &Kind| here.iter().map(|&at| kind.required[at]).sum::<usize>();
        let elsewhere = |kind: &Kind| required(kind) < kind.problem.required.len();
        if elsewhere(&self.gpus) || elsewhere(&self.nics) {
            return None;
        }
        let mut sums = vec![vec![(0, 0)]];
        for &at in &here {
            sums.push(self.sums_with(at, &sums[sums.len() - 1]));
        }
        let mut left = (self.gpus.size(), self.nics.size());
        sums.pop()?.binary_search(&left).ok()?;
        let mut shares = Vec::with_capacity(here.len());
        for (&at, before) in here.iter().zip(&sums).rev() {
            let before = |&(g, n): &(usize, usize)| {
                let rest = left.0.checked_sub(g).zip(left.1.checked_sub(n));
                rest.is_some_and(|rest| before.binary_search(&rest).is_ok())
            };
            let (gpus, nics) = self.numbers_at(at).find(before)?;
            left = (left.0 - gpus, left.1 - nics);
            shares.push(Share { at, gpus, nics });
        }
        Some(shares)
    }

    /// The sums that some sums can have together with the numbers of one more junction, ascending.
    fn sums_with(&self, at: usize, sums: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let numbers: Vec<_> = self.numbers_at(at).collect();
        let with = |&(g, n): &(usize, usize)| {
            let sum = move |&(more_g, more_n): &(usize, usize)| (g + more_g, n + more_n);
            numbers.iter().map(sum).collect::<Vec<_>>()
        };
        let (gpus, nics) = (self.gpus.size(), self.nics.size());
        let all = sums.iter().flat_map(with).filter(|&(g, n)| g <= gpus && n <= nics);
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How many GPUs and NICs can be chosen at a junction and be paired there.
    fn numbers_at(&self, at: usize) -> impl Iterator<Item = (usize, usize)> {
        let gpus = self.gpus.required[at]..=self.gpus.available[at].min(self.gpus.size());
        let nics = self.nics.required[at]..=self.nics.available[at].min(self.nics.size());
        let all = gpus.flat_map(move |g| nics.clone().map(move |n| (g, n)));
        all.filter(|&(g, n)| self.loads.fit(g, n))
    }

    /// The nearest level within which all pairs can be; `None` where some are beyond all.
    pub(super) fn nearest_rung(&self) -> Option<usize> {
        (0..RUNGS.len()).rev().find(|&rung| self.division(rung).is_some())
    }
}

// === impl Kind ===

impl Kind {
    fn new(
        topology: &Topology,
        junctions: &Junctions,
        (ours, theirs): (&Question, &Question),
    ) -> Self {
        let positions = Positions {
            available: &ours.available,
            required: &ours.required,
            near: &[],
            shares: &[],
            beside: &theirs.available,
        };
        let problem = Problem::new(topology, positions, ours.size, JOINT, |_| true);
        let path = |at: usize| junctions.path(at).clone();
        Self {
            paths: problem.classes.iter().map(|class| path(class.members[0])).collect(),
            required_paths: ours.required.iter().map(|&at| path(at)).collect(),
            available: junctions.count(&ours.available),
            required: junctions.count(&ours.required),
            rest: ours.available.len() - ours.size,
            problem,
        }
    }

    /// How many are chosen.
    pub(super) fn size(&self) -> usize {
        self.problem.required.len() + self.problem.missing
    }

    /// The junctions of the required devices, then of the classes.
    pub(super) fn holders(&self) -> Vec<Path> {
        self.required_paths.iter().chain(&self.paths).cloned().collect()
    }

    /// For each class, and for none, how many there are of it and of all after it at each junction.
    fn counts_from_each_class(&self, junctions: usize) -> Vec<usize> {
        let classes = self.problem.classes.len();
        let mut counts = vec![0; (classes + 1) * junctions];
        for class in (0..classes).rev() {
            let (head, tail) = counts.split_at_mut((class + 1) * junctions);
            let row = &mut head[class * junctions..];
            row.copy_from_slice(&tail[..junctions]);
            let members = self.problem.classes[class].members.len();
            self.paths[class].iter().for_each(|&at| row[at] += members);
        }
        counts
    }
}
