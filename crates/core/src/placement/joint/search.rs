//! The exact search for GPUs and NICs: branch and bound over the classes of the GPUs, then the NICs'.

use std::cmp::Ordering;

use super::{
    bound::{Ahead, least_far},
    problem::{JointProblem, Kind, Share},
    tally::{Far, Taken, Tally, remaining_pairs},
};
use crate::placement::{
    affinity::Worth,
    policy::{JOINT, Score, Term},
    remaining::Remaining,
    search::{
        MOST_STEPS,
        bound::{Bounds, Branch},
    },
};

/// The best choice found.
#[derive(Debug)]
pub(super) struct Found {
    /// Positions, ascending.
    pub(super) gpus: Vec<usize>,
    pub(super) nics: Vec<usize>,
    pub(super) score: Score,
    /// Branches that were looked at.
    pub(super) steps: u64,
    /// Whether no other choice is better; otherwise the best found within the bound.
    pub(super) exact: bool,
}

/// The search and where it is.
struct Search<'a> {
    problem: &'a JointProblem,
    /// The rung within which all pairs must be.
    within: Option<usize>,
    remaining: Remaining,
    bounds: Bounds,
    tally: Tally,
    gpus: Taken,
    nics: Taken,
    best: Option<Best>,
    /// The positions of a choice that equals the best.
    scratch: (Vec<usize>, Vec<usize>),
    steps: u64,
}

#[derive(Debug)]
struct Best {
    score: Score,
    gpus: Vec<usize>,
    nics: Vec<usize>,
}

/// What is taken next: from this class on, so many, of as many as are left.
#[derive(Clone, Copy, Debug)]
struct Step {
    side: Side,
    class: usize,
    missing: usize,
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Gpus,
    Nics,
}

/// Finds the best choice; where a rung is given, with shares of its junctions that show that there is
/// one, the best of which all pairs are within that rung.
pub(super) fn best_choice(problem: &JointProblem, within: Option<(usize, &[Share])>) -> Found {
    let mut search = Search::new(problem, within.map(|(rung, _)| rung));
    if let Some((_, shares)) = within {
        search.begin_with(shares);
    }
    let exact = search.branch(Step::first(&problem.gpus, Side::Gpus));
    let best = search.best.expect("a choice is within the rung");
    let Best { score, gpus, nics } = best;
    let exact = exact && problem.junctions.is_tree;
    Found { gpus, nics, score, steps: search.steps, exact }
}

// === impl Step ===

impl Step {
    fn first(kind: &Kind, side: Side) -> Self {
        let (missing, left) = (kind.problem.missing, kind.problem.eligible());
        Self { side, class: 0, missing, left }
    }
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(problem: &'a JointProblem, within: Option<usize>) -> Self {
        Self {
            problem,
            within,
            remaining: Remaining::of(&problem.gpus.problem),
            bounds: Bounds::of(&problem.gpus.problem),
            tally: Tally::new(problem),
            gpus: Taken::new(&problem.gpus),
            nics: Taken::new(&problem.nics),
            best: None,
            scratch: (Vec::new(), Vec::new()),
            steps: 0,
        }
    }

    /// Keeps the choice that has these shares: so there is an answer, whatever the bound on the steps.
    fn begin_with(&mut self, shares: &[Share]) {
        let problem = self.problem;
        let (gpus, nics) = (self.gpus.clone(), self.nics.clone());
        for share in shares {
            self.gpus.take_at(&problem.gpus, share.at, share.gpus);
            self.nics.take_at(&problem.nics, share.at, share.nics);
        }
        self.compare();
        (self.gpus, self.nics) = (gpus, nics);
    }

    /// Takes what is missing in each possible way. Returns whether nothing was left out.
    fn branch(&mut self, step: Step) -> bool {
        match (step.side, step.missing) {
            (Side::Gpus, 0) => return self.branch(Step::first(&self.problem.nics, Side::Nics)),
            (Side::Nics, 0) => {
                self.compare();
                return true;
            }
            _ => self.steps += 1,
        }
        // Any level has an answer at the first leaf; a nearer one was begun with one.
        if self.steps > MOST_STEPS && self.best.is_some() {
            return false;
        }
        if self.is_excluded(step) {
            return true;
        }
        let (kind, class) = (self.kind(step.side), step.class);
        let eligible = kind.problem.classes[class].eligible;
        let left = step.left - eligible;
        let least = step.missing.saturating_sub(left);
        let mut exact = true;
        for taken in (least..=eligible.min(step.missing)).rev() {
            let missing = step.missing - taken;
            self.taken(step.side).take(kind, class, taken);
            exact &= self.branch(Step { class: class + 1, missing, left, ..step });
            self.taken(step.side).give_back(kind, class, taken);
        }
        exact
    }

    fn kind(&self, side: Side) -> &'a Kind {
        match side {
            Side::Gpus => &self.problem.gpus,
            Side::Nics => &self.problem.nics,
        }
    }

    fn taken(&mut self, side: Side) -> &mut Taken {
        match side {
            Side::Gpus => &mut self.gpus,
            Side::Nics => &mut self.nics,
        }
    }

    /// Whether no choice of a branch is better than the best, or as good and lower, or near enough.
    fn is_excluded(&mut self, step: Step) -> bool {
        let far = least_far(self.problem, (&self.gpus, &self.nics), self.ahead(step));
        if !self.is_within(&far) {
            return true;
        }
        let Some(best) = self.best.as_ref().map(|best| best.score) else { return false };
        let mut weight = self.gpus.state.weight;
        if step.side == Side::Gpus {
            let branch = Branch { class: step.class, missing: step.missing };
            let problem = &self.problem.gpus.problem;
            weight += self.bounds.most_weight(problem, &self.gpus.state, branch);
        }
        for (term, theirs) in best.terms() {
            let most = match (value(term, weight, &far), step.side) {
                (Some(most), _) => most,
                // The GPUs are all taken, and the NICs in part.
                (None, Side::Nics) => self.value(term, &far),
                (None, Side::Gpus) => return false,
            };
            match term.signed(most).cmp(&term.signed(theirs)) {
                Ordering::Less => return true,
                Ordering::Equal => {}
                Ordering::Greater => return false,
            }
        }
        self.is_higher(step)
    }

    fn ahead(&self, step: Step) -> Ahead {
        match step.side {
            Side::Gpus => {
                let nics = self.problem.nics.problem.missing;
                Ahead { gpus: step.missing, class: 0, nics }
            }
            Side::Nics => Ahead { gpus: 0, class: step.class, nics: step.missing },
        }
    }

    /// Whether the GPUs taken, with the lowest NICs that may come, are at higher positions than the best.
    fn is_higher(&mut self, step: Step) -> bool {
        let Some(best) = &self.best else { return false };
        let (gpus, nics) = (&mut self.scratch.0, &mut self.scratch.1);
        self.problem.gpus.problem.positions(&self.gpus.state.counts, gpus);
        let problem = &self.problem.nics.problem;
        problem.positions(&self.nics.state.counts, nics);
        let taken = nics.len();
        nics.extend(problem.classes[step.class..].iter().flat_map(|class| &class.members));
        nics[taken..].sort_unstable();
        nics.truncate(taken + step.missing);
        nics.sort_unstable();
        (&*gpus, &*nics) >= (&best.gpus, &best.nics)
    }

    fn is_within(&self, far: &Far) -> bool {
        self.within.is_none_or(|rung| far[rung] <= 0)
    }

    /// Keeps the choice if it is better than the best, or equal and lower.
    fn compare(&mut self) {
        let far = self.tally.far(self.problem, &self.gpus, &self.nics);
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
        let is_lower = |best: &Best| (&*gpus, &*nics) < (&best.gpus, &best.nics);
        if order == Ordering::Greater || self.best.as_ref().is_none_or(is_lower) {
            let (gpus, nics) = self.scratch.clone();
            let score = Score::new(JOINT, |term| self.value(term, &far));
            self.best = Some(Best { score, gpus, nics });
        }
    }

    fn value(&mut self, term: Term, far: &Far) -> i64 {
        match term {
            Term::RemainingPairs => remaining_pairs(self.problem, &self.gpus, &self.nics),
            Term::Remaining => {
                self.remaining.by_data(&self.problem.gpus.problem, &self.gpus.state.counts)
            }
            _ => value(term, self.gpus.state.weight, far)
                .expect("the other terms are of links, pairs and connections"),
        }
    }
}

/// What a term says of connections that are worth so much, links first, and of pairs that are so far.
fn value(term: Term, weight: i64, far: &Far) -> Option<i64> {
    Some(match term {
        Term::Links => Worth::unpacked(weight).first,
        Term::Pcie => Worth::unpacked(weight).pcie,
        Term::SysPairs => far[0],
        Term::NodePairs => far[1] - far[0],
        Term::PhbPairs => far[2] - far[1],
        Term::PxbPairs => far[3] - far[2],
        Term::PixPairs => far[4] - far[3],
        _ => return None,
    })
}
