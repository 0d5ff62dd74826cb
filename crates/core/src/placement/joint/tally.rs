//! How near the GPUs and NICs of a choice meet, and those that remain.

use super::{
    junctions::{Path, RUNGS},
    pairing::give_extra,
    problem::{JointProblem, Kind},
};
use crate::{
    placement::{affinity::pcie, remaining::count, search::partial::Partial},
    topology::PcieLevel,
};

/// How many pairs are farther apart than each rung.
pub(super) type Far = [i64; RUNGS.len()];

/// The devices of one kind that are taken.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) state: Partial,
    /// How many of them are at each junction.
    pub(super) at: Vec<usize>,
}

/// Room to count in.
#[derive(Debug, Default)]
pub(super) struct Tally {
    holders: Vec<Path>,
    spare: Vec<usize>,
    slots: Vec<usize>,
}

// === impl Taken ===

impl Taken {
    /// What is required.
    pub(super) fn new(kind: &Kind) -> Self {
        Self { state: Partial::new(&kind.problem), at: kind.required.clone() }
    }

    pub(super) fn take(&mut self, kind: &Kind, class: usize, taken: usize) {
        self.state.take(&kind.problem, class, taken);
        kind.paths[class].iter().for_each(|&at| self.at[at] += taken);
    }

    /// Takes the first devices at a junction until there are so many.
    pub(super) fn take_at(&mut self, kind: &Kind, junction: usize, wanted: usize) {
        for class in 0..kind.paths.len() {
            if kind.paths[class].contains(&junction) {
                let missing = wanted - self.at[junction];
                self.take(kind, class, missing.min(kind.problem.classes[class].eligible));
            }
        }
    }

    pub(super) fn give_back(&mut self, kind: &Kind, class: usize, taken: usize) {
        self.state.give_back(&kind.problem, class, taken);
        kind.paths[class].iter().for_each(|&at| self.at[at] -= taken);
    }
}

// === impl Tally ===

impl Tally {
    pub(super) fn new(problem: &JointProblem) -> Self {
        let holders = problem.fewer().holders();
        Self { holders, ..Self::default() }
    }

    /// What the best pairing of a whole choice comes to, at every rung at once.
    pub(super) fn far(&mut self, problem: &JointProblem, gpus: &Taken, nics: &Taken) -> Far {
        let gpus_are_fewer = problem.loads.gpu.most > problem.loads.nic.most;
        let (load, fewer, more) = if gpus_are_fewer {
            (problem.loads.gpu, gpus, nics)
        } else {
            (problem.loads.nic, nics, gpus)
        };
        self.slots.clear();
        self.slots.extend(fewer.at.iter().map(|&chosen| chosen * load.least));
        let required = self.holders.len() - fewer.state.counts.len();
        self.spare.clear();
        self.spare.resize(required, 1);
        self.spare.extend(&fewer.state.counts);
        let extra = problem.loads.extra;
        give_extra(&self.holders, &mut self.spare, &more.at, &mut self.slots, extra);
        let mut far = [count(problem.loads.pairs); RUNGS.len()];
        for (at, &rung) in problem.junctions.rungs.iter().enumerate() {
            far[rung] -= count(more.at[at].min(self.slots[at]));
        }
        far
    }
}

/// The worth of the levels of the GPUs and NICs that remain, paired one to one as near as they can be; the
/// most that it can come to where NICs are still to be taken.
pub(super) fn remaining_pairs(problem: &JointProblem, gpus: &Taken, nics: &Taken) -> i64 {
    let all = problem.gpus.rest.min(problem.nics.rest);
    let mut near = [0; RUNGS.len()];
    for (at, &rung) in problem.junctions.rungs.iter().enumerate() {
        let left = |kind: &Kind, taken: &Taken| kind.available[at] - taken.at[at];
        near[rung] += left(&problem.gpus, gpus).min(left(&problem.nics, nics));
    }
    let mut farther = pcie(PcieLevel::Sys);
    let mut worth = count(all) * farther;
    for (level, near) in RUNGS.into_iter().zip(near) {
        worth += count(near.min(all)) * (pcie(level) - farther);
        farther = pcie(level);
    }
    worth
}
