//! Greedy initial sets, so that the search starts with a good bound.

use super::{PartialSet, Search};
use crate::placement::{policy::Term, problem::Problem};

/// Maximum number of initial sets.
const MAX_INITIAL_SETS: usize = 32;

// === impl Search ===

impl Search<'_> {
    /// Grows a set from each class and keeps the best.
    pub(super) fn find_initial_sets(&mut self) {
        let problem = self.problem;
        let classes = 0..problem.classes.len();
        let first_classes = classes.filter(|&class| problem.classes[class].eligible > 0);
        for class in first_classes.take(MAX_INITIAL_SETS) {
            let initial_state = self.state.clone();
            self.state.grow(problem, class);
            self.update_best();
            self.state = initial_state;
        }
    }
}

impl PartialSet {
    /// Takes one device of a class, then repeatedly the device with the greatest gain.
    fn grow(&mut self, problem: &Problem, first_class: usize) {
        self.take(problem, first_class, 1);
        for _ in 1..problem.missing {
            let classes = 0..problem.classes.len();
            let open_classes =
                classes.filter(|&class| self.counts[class] < problem.classes[class].eligible);
            let best = open_classes
                .max_by_key(|&class| (self.gain_of(problem, class), usize::MAX - class));
            self.take(problem, best.expect("enough devices are eligible"), 1);
        }
    }

    /// Gain of the next device of a class.
    fn gain_of(&self, problem: &Problem, class: usize) -> (i64, i64) {
        let group = problem.classes[class].properties.group;
        let in_use = problem.groups[group].in_use;
        match problem.terms.first() {
            Some(Term::InUse) => (in_use, self.affinities[class]),
            Some(Term::Imbalance) => (-in_use - self.group_counts[group], self.affinities[class]),
            _ => (self.affinities[class], 0),
        }
    }
}
