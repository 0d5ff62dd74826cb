//! Exact search: branch and bound over the number of devices per class.
//!
//! A branch is skipped if the upper bounds of its terms cannot beat the best set. A term without a bound skips
//! no branch. A running search does not allocate memory.

pub(super) mod bound;
mod grow;
pub(super) mod partial;

use std::cmp::Ordering;

use super::{
    policy::{Score, Term},
    problem::Problem,
    remaining::Remaining,
};
use bound::{Bounds, Branch};
use partial::PartialSet;

/// Maximum work, in branches times classes per branch: some 10 ms, during which the kubelet blocks. Real machines
/// with 16 devices take tens of steps, arbitrary link graphs thousands.
const MAX_WORK: u64 = 800_000;

/// Maximum number of branches of a joint search.
pub(super) const MAX_STEPS: u64 = 50_000;

/// The best set that a search found.
#[derive(Debug)]
pub(super) struct SearchResult {
    /// Positions, ascending.
    pub(super) positions: Vec<usize>,
    pub(super) score: Score,
    /// Visited branches.
    pub(super) steps: u64,
    /// True if no set is better; false if the search stopped at its work limit.
    pub(super) exact: bool,
}

struct Search<'a> {
    problem: &'a Problem,
    remaining: Remaining,
    bounds: Bounds,
    state: PartialSet,
    best: Option<BestSet>,
    /// Buffer for the positions of a set that ties with the best.
    scratch: Vec<usize>,
    steps: u64,
}

#[derive(Debug)]
struct BestSet {
    score: Score,
    positions: Vec<usize>,
}

/// Finds the best set of a solvable problem.
pub(super) fn best_set(problem: &Problem) -> SearchResult {
    let mut search = Search::new(problem);
    if problem.missing > 0 {
        search.find_initial_sets();
    }
    let exact = search.branch(0, problem.missing, problem.eligible());
    let best = search.best.expect("enough devices are eligible");
    SearchResult { positions: best.positions, score: best.score, steps: search.steps, exact }
}

// === impl SearchResult ===

impl SearchResult {
    /// The better of two results, exact if both are.
    pub(super) fn better(self, other: Self) -> Self {
        let (steps, exact) = (self.steps + other.steps, self.exact && other.exact);
        let order = self.score.cmp(&other.score).then(other.positions.cmp(&self.positions));
        let better = if order.is_lt() { other } else { self };
        Self { steps, exact, ..better }
    }

    /// The result of a search with a single candidate.
    pub(super) fn single_candidate(positions: Vec<usize>) -> Self {
        Self { positions, score: Score::new(&[], |_| 0), steps: 1, exact: true }
    }
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(problem: &'a Problem) -> Self {
        Self {
            problem,
            remaining: Remaining::of(problem),
            bounds: Bounds::of(problem),
            state: PartialSet::new(problem),
            best: None,
            scratch: Vec::new(),
            steps: 0,
        }
    }

    /// Tries every way to take `missing` devices from `class` and later classes, which have `left` eligible ones.
    /// Returns false if the search stopped at its work limit.
    fn branch(&mut self, class: usize, missing: usize, left: usize) -> bool {
        self.steps += 1;
        if missing == 0 {
            self.update_best();
            return true;
        }
        if self.steps * self.bounds.classes() > MAX_WORK {
            return false;
        }
        if self.is_excluded(Branch { class, missing }) {
            return true;
        }
        let eligible = self.problem.classes[class].eligible;
        let left_after = left - eligible;
        let min_count = missing.saturating_sub(left_after);
        let mut exact = true;
        for count in (min_count..=eligible.min(missing)).rev() {
            self.state.take(self.problem, class, count);
            exact &= self.branch(class + 1, missing - count, left_after);
            self.state.undo_take(self.problem, class, count);
        }
        exact
    }

    fn is_excluded(&mut self, branch: Branch) -> bool {
        let Some(best) = &self.best else { return false };
        self.bounds.is_excluded(self.problem, &self.state, branch, &best.score)
    }

    /// Replaces the best set by a better one, or by an equal one with lower positions.
    fn update_best(&mut self) {
        let best = self.best.as_ref().map(|best| best.score);
        let order =
            best.map_or(Ordering::Greater, |best| best.compared_with(|term| self.value(term)));
        if order == Ordering::Less {
            return;
        }
        self.problem.positions(&self.state.counts, &mut self.scratch);
        let is_lower = self.best.as_ref().is_none_or(|best| self.scratch < best.positions);
        if order == Ordering::Greater || is_lower {
            let score = self.score();
            let best = self.best.get_or_insert_with(|| BestSet { score, positions: Vec::new() });
            best.score = score;
            best.positions.clone_from(&self.scratch);
        }
    }

    fn score(&mut self) -> Score {
        Score::new(self.problem.terms, |term| self.value(term))
    }

    fn value(&mut self, term: Term) -> i64 {
        match term {
            Term::Remaining => self.remaining.usefulness(self.problem, &self.state.counts),
            Term::RemainingPcie => self.remaining.pcie_usefulness(self.problem, &self.state.counts),
            _ => self.state.value(self.problem, term),
        }
    }
}
