//! The exact search: branch and bound over how many devices of each class are taken.
//!
//! A branch is left when no set in it can be better: for each term the most that it can reach is known,
//! or it is not known and nothing is left on its account. The search allocates nothing once it runs.

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
use partial::Partial;

/// Branches that are looked at, at most, times the classes that each look goes through: some 10 ms, for
/// which the kubelet stands still. Questions about 16 devices take some thousands of steps when every link
/// is another, and tens on machines that are built.
const MOST_WORK: u64 = 800_000;

/// Branches that are looked at, at most, where two kinds of devices are chosen together.
pub(super) const MOST_STEPS: u64 = 50_000;

/// The best set found.
#[derive(Debug)]
pub(super) struct Found {
    /// Ascending positions.
    pub(super) positions: Vec<usize>,
    pub(super) score: Score,
    /// Branches that were looked at.
    pub(super) steps: u64,
    /// Whether no other set is better; otherwise the best found within the bound.
    pub(super) exact: bool,
}

/// The search and where it is.
struct Search<'a> {
    problem: &'a Problem,
    remaining: Remaining,
    bounds: Bounds,
    state: Partial,
    best: Option<Best>,
    /// The positions of a set that equals the best.
    scratch: Vec<usize>,
    steps: u64,
}

#[derive(Debug)]
struct Best {
    score: Score,
    positions: Vec<usize>,
}

/// Finds the best set; the problem must have one.
pub(super) fn best_set(problem: &Problem) -> Found {
    let mut search = Search::new(problem);
    if problem.missing > 0 {
        search.grow_some();
    }
    let exact = search.branch(0, problem.missing, problem.eligible());
    let best = search.best.expect("as many devices as are missing are eligible");
    Found { positions: best.positions, score: best.score, steps: search.steps, exact }
}

// === impl Found ===

impl Found {
    /// The better of two, which is as surely the best as both are the best of theirs.
    pub(super) fn or(self, other: Self) -> Self {
        let (steps, exact) = (self.steps + other.steps, self.exact && other.exact);
        let order = self.score.cmp(&other.score).then(other.positions.cmp(&self.positions));
        let better = if order.is_lt() { other } else { self };
        Self { steps, exact, ..better }
    }

    /// The only set that is looked at.
    pub(super) fn only(positions: Vec<usize>) -> Self {
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
            state: Partial::new(problem),
            best: None,
            scratch: Vec::new(),
            steps: 0,
        }
    }

    /// Takes from `class` on what is missing, in each possible way; `left` devices may be taken. Returns
    /// whether nothing was left out.
    fn branch(&mut self, class: usize, missing: usize, left: usize) -> bool {
        self.steps += 1;
        if missing == 0 {
            self.compare();
            return true;
        }
        if self.steps * self.bounds.classes() > MOST_WORK {
            return false;
        }
        if self.is_excluded(Branch { class, missing }) {
            return true;
        }
        let eligible = self.problem.classes[class].eligible;
        let others = left - eligible;
        let least = missing.saturating_sub(others);
        let mut exact = true;
        for taken in (least..=eligible.min(missing)).rev() {
            self.state.take(self.problem, class, taken);
            exact &= self.branch(class + 1, missing - taken, others);
            self.state.give_back(self.problem, class, taken);
        }
        exact
    }

    fn is_excluded(&mut self, branch: Branch) -> bool {
        let Some(best) = &self.best else { return false };
        self.bounds.exclude(self.problem, &self.state, branch, &best.score)
    }

    /// Keeps the set if it is better than the best, or equal and lower.
    fn compare(&mut self) {
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
            let best = self.best.get_or_insert_with(|| Best { score, positions: Vec::new() });
            best.score = score;
            best.positions.clone_from(&self.scratch);
        }
    }

    fn score(&mut self) -> Score {
        Score::new(self.problem.terms, |term| self.value(term))
    }

    fn value(&mut self, term: Term) -> i64 {
        match term {
            Term::Remaining => self.remaining.by_data(self.problem, &self.state.counts),
            Term::RemainingPcie => self.remaining.by_pcie(self.problem, &self.state.counts),
            _ => self.state.value(self.problem, term),
        }
    }
}
