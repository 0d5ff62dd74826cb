//! Numeric form of a joint request for GPUs and NICs.
//!
//! A junction is a switch, host bridge or NUMA node where GPUs and NICs meet. A level is an index
//! into [`LEVELS`]. A class holds interchangeable devices of one kind.

use super::{
    junctions::{JunctionPath, Junctions, LEVELS},
    loads::Loads,
};
use crate::placement::{
    ResolvedRequest, Topology,
    policy::JOINT_TERMS,
    problem::{Positions, Problem},
};

/// Input of the joint search.
#[derive(Debug)]
pub(super) struct JointProblem {
    pub(super) gpus: KindProblem,
    pub(super) nics: KindProblem,
    pub(super) junctions: Junctions,
    pub(super) loads: Loads,
    /// Number of NICs of this and all later classes, `free_nics[class * junctions + junction]`.
    free_nics: Vec<usize>,
}

/// The part of the request for one kind of device.
#[derive(Debug)]
pub(super) struct KindProblem {
    pub(super) problem: Problem,
    /// Junctions of each class.
    pub(super) paths: Vec<JunctionPath>,
    /// Junctions of each required device.
    required_paths: Vec<JunctionPath>,
    /// Candidates per junction.
    pub(super) available: Vec<usize>,
    /// Required devices per junction.
    pub(super) required: Vec<usize>,
    /// Number of candidates that remain after the choice.
    pub(super) remaining: usize,
}

/// Numbers chosen at one junction, required devices included.
#[derive(Clone, Copy, Debug)]
pub(super) struct JunctionShare {
    pub(super) junction: usize,
    pub(super) gpus: usize,
    pub(super) nics: usize,
}

// === impl JointProblem ===

impl JointProblem {
    pub(super) fn new(topology: &Topology, gpus: &ResolvedRequest, nics: &ResolvedRequest) -> Self {
        let junctions = Junctions::of(topology, &gpus.available, &nics.available);
        let gpu_kind = KindProblem::new(topology, &junctions, gpus, nics);
        let nic_kind = KindProblem::new(topology, &junctions, nics, gpus);
        let free_nics = nic_kind.counts_from_each_class(junctions.levels.len());
        let loads = Loads::of(gpus.size, nics.size);
        Self { gpus: gpu_kind, nics: nic_kind, junctions, loads, free_nics }
    }

    /// NICs of `class` and later classes, per junction.
    pub(super) fn free_nics(&self, class: usize) -> &[usize] {
        let junctions = self.junctions.levels.len();
        &self.free_nics[class * junctions..][..junctions]
    }

    /// The kind with fewer devices in the choice. Only its devices may have several pairs each.
    pub(super) fn smaller_kind(&self) -> &KindProblem {
        if self.loads.gpu.max > self.loads.nic.max { &self.gpus } else { &self.nics }
    }

    /// Numbers of GPUs and NICs to choose at each junction of a level, so that every pair is within
    /// one junction; `None` if impossible.
    ///
    /// Dynamic programming: the reachable sums after each junction, then back from the full sum to
    /// the numbers at each one.
    pub(super) fn junction_shares(&self, level: usize) -> Option<Vec<JunctionShare>> {
        let at_level: Vec<_> = (0..self.junctions.levels.len())
            .filter(|&junction| self.junctions.levels[junction] == level)
            .collect();
        let required = |kind: &KindProblem| {
            at_level.iter().map(|&junction| kind.required[junction]).sum::<usize>()
        };
        let has_required_elsewhere =
            |kind: &KindProblem| required(kind) < kind.problem.required.len();
        if has_required_elsewhere(&self.gpus) || has_required_elsewhere(&self.nics) {
            return None;
        }
        let mut sums = vec![vec![(0, 0)]];
        for &junction in &at_level {
            sums.push(self.sums_with(junction, &sums[sums.len() - 1]));
        }
        let mut missing = (self.gpus.size(), self.nics.size());
        sums.pop()?.binary_search(&missing).ok()?;
        let mut shares = Vec::with_capacity(at_level.len());
        for (&junction, earlier_sums) in at_level.iter().zip(&sums).rev() {
            let is_reachable = |&(g, n): &(usize, usize)| {
                let missing_before = missing.0.checked_sub(g).zip(missing.1.checked_sub(n));
                missing_before.is_some_and(|missing_before| {
                    earlier_sums.binary_search(&missing_before).is_ok()
                })
            };
            let (gpus, nics) = self.numbers_at(junction).find(is_reachable)?;
            missing = (missing.0 - gpus, missing.1 - nics);
            shares.push(JunctionShare { junction, gpus, nics });
        }
        Some(shares)
    }

    /// Reachable sums after one more junction, ascending.
    fn sums_with(&self, junction: usize, sums: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let junction_numbers: Vec<_> = self.numbers_at(junction).collect();
        let sums_after = |&(g, n): &(usize, usize)| {
            let sum = move |&(more_g, more_n): &(usize, usize)| (g + more_g, n + more_n);
            junction_numbers.iter().map(sum).collect::<Vec<_>>()
        };
        let (gpus, nics) = (self.gpus.size(), self.nics.size());
        let reachable = sums.iter().flat_map(sums_after).filter(|&(g, n)| g <= gpus && n <= nics);
        let mut reachable: Vec<_> = reachable.collect();
        reachable.sort_unstable();
        reachable.dedup();
        reachable
    }

    /// Numbers of GPUs and NICs that can be paired at one junction.
    fn numbers_at(&self, junction: usize) -> impl Iterator<Item = (usize, usize)> {
        let gpus =
            self.gpus.required[junction]..=self.gpus.available[junction].min(self.gpus.size());
        let nics =
            self.nics.required[junction]..=self.nics.available[junction].min(self.nics.size());
        let combinations = gpus.flat_map(move |g| nics.clone().map(move |n| (g, n)));
        combinations.filter(|&(g, n)| self.loads.can_be_paired(g, n))
    }

    /// The nearest level at which every pair can have a common junction; `None` if no level suffices.
    pub(super) fn nearest_level(&self) -> Option<usize> {
        (0..LEVELS.len()).rev().find(|&level| self.junction_shares(level).is_some())
    }
}

// === impl KindProblem ===

impl KindProblem {
    fn new(
        topology: &Topology,
        junctions: &Junctions,
        request: &ResolvedRequest,
        other_request: &ResolvedRequest,
    ) -> Self {
        let positions = Positions {
            available: &request.available,
            required: &request.required,
            near: &[],
            shares: &[],
            other_kind: &other_request.available,
        };
        let problem = Problem::new(topology, positions, request.size, JOINT_TERMS, |_| true);
        let path = |position: usize| junctions.path(position).clone();
        Self {
            paths: problem.classes.iter().map(|class| path(class.members[0])).collect(),
            required_paths: request.required.iter().map(|&position| path(position)).collect(),
            available: junctions.count(&request.available),
            required: junctions.count(&request.required),
            remaining: request.available.len() - request.size,
            problem,
        }
    }

    /// Number of devices to choose.
    pub(super) fn size(&self) -> usize {
        self.problem.required.len() + self.problem.missing
    }

    /// Junctions of every required device and of every class, in this order.
    pub(super) fn all_paths(&self) -> Vec<JunctionPath> {
        self.required_paths.iter().chain(&self.paths).cloned().collect()
    }

    /// For each class and one past the last: devices of the class and later classes, per junction.
    fn counts_from_each_class(&self, junctions: usize) -> Vec<usize> {
        let classes = self.problem.classes.len();
        let mut counts = vec![0; (classes + 1) * junctions];
        for class in (0..classes).rev() {
            let (head, tail) = counts.split_at_mut((class + 1) * junctions);
            let class_counts = &mut head[class * junctions..];
            class_counts.copy_from_slice(&tail[..junctions]);
            let members = self.problem.classes[class].members.len();
            self.paths[class].iter().for_each(|&junction| class_counts[junction] += members);
        }
        counts
    }
}
