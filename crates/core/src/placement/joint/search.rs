//! Exact joint search: branch and bound over GPU classes, then NIC classes.

use std::cmp::Ordering;

use super::{
    bound::{Unchosen, min_far_pairs},
    problem::{JointProblem, JunctionShare, KindProblem},
    tally::{Chosen, FarPairs, PairCounter, remaining_pair_affinity},
};
use crate::placement::{
    affinity::Affinity,
    policy::{JOINT_TERMS, Score, Term},
    remaining::Remaining,
    search::{
        MAX_STEPS,
        bound::{Bounds, Branch},
    },
};

/// The best choice that a search found.
#[derive(Debug)]
pub(super) struct JointResult {
    /// Positions, ascending.
    pub(super) gpus: Vec<usize>,
    pub(super) nics: Vec<usize>,
    pub(super) score: Score,
    /// Visited branches.
    pub(super) steps: u64,
    /// True if no choice is better; false if the search stopped at its work limit.
    pub(super) exact: bool,
}

struct JointSearch<'a> {
    problem: &'a JointProblem,
    /// Level at which every pair must have a common junction; `None` without restriction.
    within: Option<usize>,
    remaining: Remaining,
    bounds: Bounds,
    pair_counter: PairCounter,
    gpus: Chosen,
    nics: Chosen,
    best: Option<BestChoice>,
    /// Buffers for the positions of a choice that ties with the best.
    scratch: (Vec<usize>, Vec<usize>),
    steps: u64,
}

#[derive(Debug)]
struct BestChoice {
    score: Score,
    gpus: Vec<usize>,
    nics: Vec<usize>,
}

/// The next decision: `missing` devices of `class` and later classes, which have `left` eligible ones.
#[derive(Clone, Copy, Debug)]
struct JointBranch {
    side: Side,
    class: usize,
    missing: usize,
    left: usize,
}

/// The kind of device that a branch chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Gpus,
    Nics,
}

/// Finds the best choice. A restriction is a level that no pair may exceed; its shares prove that a choice exists.
pub(super) fn best_choice(
    problem: &JointProblem,
    restriction: Option<(usize, &[JunctionShare])>,
) -> JointResult {
    let mut search = JointSearch::new(problem, restriction.map(|(level, _)| level));
    if let Some((_, shares)) = restriction {
        search.set_initial(shares);
    }
    let exact = search.branch(JointBranch::first(&problem.gpus, Side::Gpus));
    let best = search.best.expect("a choice is within the level");
    let BestChoice { score, gpus, nics } = best;
    let exact = exact && problem.junctions.is_tree;
    JointResult { gpus, nics, score, steps: search.steps, exact }
}

// === impl JointBranch ===

impl JointBranch {
    fn first(kind: &KindProblem, side: Side) -> Self {
        let (missing, left) = (kind.problem.missing, kind.problem.eligible());
        Self { side, class: 0, missing, left }
    }
}

// === impl JointSearch ===

impl<'a> JointSearch<'a> {
    fn new(problem: &'a JointProblem, within: Option<usize>) -> Self {
        Self {
            problem,
            within,
            remaining: Remaining::of(&problem.gpus.problem),
            bounds: Bounds::of(&problem.gpus.problem),
            pair_counter: PairCounter::new(problem),
            gpus: Chosen::new(&problem.gpus),
            nics: Chosen::new(&problem.nics),
            best: None,
            scratch: (Vec::new(), Vec::new()),
            steps: 0,
        }
    }

    /// Starts with the choice that has these shares, so that an answer exists even if the search stops early.
    fn set_initial(&mut self, shares: &[JunctionShare]) {
        let problem = self.problem;
        let (gpus, nics) = (self.gpus.clone(), self.nics.clone());
        for share in shares {
            self.gpus.take_at(&problem.gpus, share.junction, share.gpus);
            self.nics.take_at(&problem.nics, share.junction, share.nics);
        }
        self.update_best();
        (self.gpus, self.nics) = (gpus, nics);
    }

    /// Tries every way to choose the missing devices. Returns false if the search stopped at its work limit.
    fn branch(&mut self, branch: JointBranch) -> bool {
        match (branch.side, branch.missing) {
            (Side::Gpus, 0) => {
                return self.branch(JointBranch::first(&self.problem.nics, Side::Nics));
            }
            (Side::Nics, 0) => {
                self.update_best();
                return true;
            }
            _ => self.steps += 1,
        }
        // Without a restriction the first leaf is an answer; with one, the search started from an answer.
        if self.steps > MAX_STEPS && self.best.is_some() {
            return false;
        }
        if self.is_excluded(branch) {
            return true;
        }
        let (kind, class) = (self.kind(branch.side), branch.class);
        let eligible = kind.problem.classes[class].eligible;
        let left_after = branch.left - eligible;
        let min_count = branch.missing.saturating_sub(left_after);
        let mut exact = true;
        for count in (min_count..=eligible.min(branch.missing)).rev() {
            let missing = branch.missing - count;
            self.chosen_mut(branch.side).take(kind, class, count);
            exact &=
                self.branch(JointBranch { class: class + 1, missing, left: left_after, ..branch });
            self.chosen_mut(branch.side).undo_take(kind, class, count);
        }
        exact
    }

    fn kind(&self, side: Side) -> &'a KindProblem {
        match side {
            Side::Gpus => &self.problem.gpus,
            Side::Nics => &self.problem.nics,
        }
    }

    fn chosen_mut(&mut self, side: Side) -> &mut Chosen {
        match side {
            Side::Gpus => &mut self.gpus,
            Side::Nics => &mut self.nics,
        }
    }

    /// True if every completion is outside the level, worse than the best, or equal to it with higher positions.
    fn is_excluded(&mut self, branch: JointBranch) -> bool {
        let far = min_far_pairs(self.problem, &self.gpus, &self.nics, self.unchosen(branch));
        if !self.is_within(&far) {
            return true;
        }
        let Some(best) = self.best.as_ref().map(|best| best.score) else { return false };
        let mut weight = self.gpus.state.weight;
        if branch.side == Side::Gpus {
            let gpu_branch = Branch { class: branch.class, missing: branch.missing };
            let problem = &self.problem.gpus.problem;
            weight += self.bounds.max_weight(problem, &self.gpus.state, gpu_branch);
        }
        for (term, best_value) in best.terms() {
            let bound = match (value(term, weight, &far), branch.side) {
                (Some(bound), _) => bound,
                // All GPUs are chosen, so the remainder is bounded by the NICs chosen so far.
                (None, Side::Nics) => self.value(term, &far),
                (None, Side::Gpus) => return false,
            };
            match term.oriented(bound).cmp(&term.oriented(best_value)) {
                Ordering::Less => return true,
                Ordering::Equal => {}
                Ordering::Greater => return false,
            }
        }
        self.is_higher(branch)
    }

    /// Devices that a branch has not chosen yet.
    fn unchosen(&self, branch: JointBranch) -> Unchosen {
        match branch.side {
            Side::Gpus => {
                let nics = self.problem.nics.problem.missing;
                Unchosen { gpus: branch.missing, class: 0, nics }
            }
            Side::Nics => Unchosen { gpus: 0, class: branch.class, nics: branch.missing },
        }
    }

    /// True if the chosen GPUs, with the lowest possible NICs, have higher positions than the best.
    fn is_higher(&mut self, branch: JointBranch) -> bool {
        let Some(best) = &self.best else { return false };
        let (gpus, nics) = (&mut self.scratch.0, &mut self.scratch.1);
        self.problem.gpus.problem.positions(&self.gpus.state.counts, gpus);
        let problem = &self.problem.nics.problem;
        problem.positions(&self.nics.state.counts, nics);
        let chosen = nics.len();
        nics.extend(problem.classes[branch.class..].iter().flat_map(|class| &class.members));
        nics[chosen..].sort_unstable();
        nics.truncate(chosen + branch.missing);
        nics.sort_unstable();
        (&*gpus, &*nics) >= (&best.gpus, &best.nics)
    }

    fn is_within(&self, far: &FarPairs) -> bool {
        self.within.is_none_or(|level| far[level] <= 0)
    }

    /// Replaces the best choice by a better one, or by an equal one with lower positions.
    fn update_best(&mut self) {
        let far = self.pair_counter.count_far_pairs(self.problem, &self.gpus, &self.nics);
        if !self.is_within(&far) {
            return;
        }
        let best = self.best.as_ref().map(|best| best.score);
        let order = best
            .map_or(Ordering::Greater, |best| best.compared_with(|term| self.value(term, &far)));
        if order == Ordering::Less {
            return;
        }
        let (gpus, nics) = (&mut self.scratch.0, &mut self.scratch.1);
        self.problem.gpus.problem.positions(&self.gpus.state.counts, gpus);
        self.problem.nics.problem.positions(&self.nics.state.counts, nics);
        let is_lower = |best: &BestChoice| (&*gpus, &*nics) < (&best.gpus, &best.nics);
        if order == Ordering::Greater || self.best.as_ref().is_none_or(is_lower) {
            let (gpus, nics) = self.scratch.clone();
            let score = Score::new(JOINT_TERMS, |term| self.value(term, &far));
            self.best = Some(BestChoice { score, gpus, nics });
        }
    }

    fn value(&mut self, term: Term, far: &FarPairs) -> i64 {
        match term {
            Term::RemainingPairs => remaining_pair_affinity(self.problem, &self.gpus, &self.nics),
            Term::Remaining => {
                self.remaining.usefulness(&self.problem.gpus.problem, &self.gpus.state.counts)
            }
            _ => value(term, self.gpus.state.weight, far)
                .expect("the other terms are of links, pairs and connections"),
        }
    }
}

/// Value of a term from packed affinities and pair distances; `None` for terms of the remainder.
fn value(term: Term, weight: i64, far: &FarPairs) -> Option<i64> {
    Some(match term {
        Term::Links => Affinity::unpacked(weight).primary,
        Term::Pcie => Affinity::unpacked(weight).pcie,
        Term::SysPairs => far[0],
        Term::NodePairs => far[1] - far[0],
        Term::PhbPairs => far[2] - far[1],
        Term::PxbPairs => far[3] - far[2],
        Term::PixPairs => far[4] - far[3],
        _ => return None,
    })
}
