//! Counts of GPU-NIC pairs by distance, for chosen devices and for remaining ones.
//!
//! A junction is a switch, host bridge or NUMA node where GPUs and NICs meet ([`super::junctions`]). Each device of the
//! less numerous kind has several partners: `min` of them, and `extra` devices have one more ([`super::loads`]).

use super::{
    junctions::{JunctionPath, LEVELS},
    pairing::distribute_extra,
    problem::{JointProblem, KindProblem},
};
use crate::{
    placement::{affinity::pcie, remaining::count, search::partial::PartialSet},
    topology::PcieLevel,
};

/// Number of pairs that are farther apart than each of [`LEVELS`].
pub(super) type FarPairs = [i64; LEVELS.len()];

/// Chosen devices of one kind.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) state: PartialSet,
    /// Chosen devices per junction.
    pub(super) per_junction: Vec<usize>,
}

/// Counter of pairs, with reused buffers.
#[derive(Debug, Default)]
pub(super) struct PairCounter {
    /// Junctions of each device of the kind with fewer devices.
    paths: Vec<JunctionPath>,
    /// For each entry of `paths`, the number of devices that may take an extra pair.
    spare: Vec<usize>,
    /// Number of pairs that each junction can hold.
    slots: Vec<usize>,
}

// === impl Chosen ===

impl Chosen {
    /// The required devices.
    pub(super) fn new(kind: &KindProblem) -> Self {
        Self { state: PartialSet::new(&kind.problem), per_junction: kind.required.clone() }
    }

    pub(super) fn take(&mut self, kind: &KindProblem, class: usize, count: usize) {
        self.state.take(&kind.problem, class, count);
        kind.paths[class].iter().for_each(|&junction| self.per_junction[junction] += count);
    }

    /// Takes the first devices at a junction until `target` devices are chosen there.
    pub(super) fn take_at(&mut self, kind: &KindProblem, junction: usize, target: usize) {
        for class in 0..kind.paths.len() {
            if kind.paths[class].contains(&junction) {
                let missing = target - self.per_junction[junction];
                self.take(kind, class, missing.min(kind.problem.classes[class].eligible));
            }
        }
    }

    pub(super) fn undo_take(&mut self, kind: &KindProblem, class: usize, count: usize) {
        self.state.undo_take(&kind.problem, class, count);
        kind.paths[class].iter().for_each(|&junction| self.per_junction[junction] -= count);
    }
}

// === impl PairCounter ===

impl PairCounter {
    pub(super) fn new(problem: &JointProblem) -> Self {
        let paths = problem.smaller_kind().all_paths();
        Self { paths, ..Self::default() }
    }

    /// Counts the pairs of the best pairing of a complete choice, by distance.
    pub(super) fn count_far_pairs(
        &mut self,
        problem: &JointProblem,
        gpus: &Chosen,
        nics: &Chosen,
    ) -> FarPairs {
        let gpus_are_fewer = problem.loads.gpu.max > problem.loads.nic.max;
        let (load, smaller_kind, larger_kind) = if gpus_are_fewer {
            (problem.loads.gpu, gpus, nics)
        } else {
            (problem.loads.nic, nics, gpus)
        };
        self.slots.clear();
        self.slots.extend(smaller_kind.per_junction.iter().map(|&chosen| chosen * load.min));
        let required = self.paths.len() - smaller_kind.state.counts.len();
        self.spare.clear();
        self.spare.resize(required, 1);
        self.spare.extend(&smaller_kind.state.counts);
        let extra = problem.loads.extra;
        distribute_extra(
            &self.paths,
            &mut self.spare,
            &larger_kind.per_junction,
            &mut self.slots,
            extra,
        );
        let mut far = [count(problem.loads.pairs); LEVELS.len()];
        for (junction, &level) in problem.junctions.levels.iter().enumerate() {
            far[level] -= count(larger_kind.per_junction[junction].min(self.slots[junction]));
        }
        far
    }
}

/// Affinity of the remaining GPUs and NICs, paired one to one as near as possible. It is an upper bound until
/// all NICs are chosen.
pub(super) fn remaining_pair_affinity(problem: &JointProblem, gpus: &Chosen, nics: &Chosen) -> i64 {
    let pair_count = problem.gpus.remaining.min(problem.nics.remaining);
    let mut near_pairs = [0; LEVELS.len()];
    for (junction, &level) in problem.junctions.levels.iter().enumerate() {
        let remaining = |kind: &KindProblem, chosen: &Chosen| {
            kind.available[junction] - chosen.per_junction[junction]
        };
        near_pairs[level] += remaining(&problem.gpus, gpus).min(remaining(&problem.nics, nics));
    }
    let mut farther = pcie(PcieLevel::Sys);
    let mut affinity = count(pair_count) * farther;
    for (distance, near_pairs) in LEVELS.into_iter().zip(near_pairs) {
        affinity += count(near_pairs.min(pair_count)) * (pcie(distance) - farther);
        farther = pcie(distance);
    }
    affinity
}
