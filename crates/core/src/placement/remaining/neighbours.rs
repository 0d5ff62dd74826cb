//! The partners that each remaining device would find in a pair, a quad and an octet: those it is best
//! connected with.

use super::{SIZES, count};
use crate::placement::{affinity::Worth, problem::Problem};

/// The most neighbours that count.
const MOST: usize = SIZES[SIZES.len() - 1].0 - 1;

/// Every class's neighbours, the best connected first.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Class and worth, row by row.
    nearest: Vec<(usize, i64)>,
    classes: usize,
}

// === impl Neighbours ===

impl Neighbours {
    /// By one measure of the connections.
    pub(super) fn of(problem: &Problem, measure: fn(Worth) -> i64) -> Self {
        let classes = problem.classes.len();
        let mut nearest = Vec::with_capacity(classes * classes);
        for class in 0..classes {
            let begin = nearest.len();
            let worth = |other| (other, measure(problem.worth(class, other)));
            nearest.extend((0..classes).map(worth));
            // Equal worths are the same in any order.
            nearest[begin..].sort_by_key(|&(_, worth)| -worth);
        }
        Self { nearest, classes }
    }

    /// The sum over all that remain after a choice of so many of each class.
    pub(super) fn usefulness(&self, problem: &Problem, counts: &[usize]) -> i64 {
        let left = |class: usize| problem.classes[class].members.len() - counts[class];
        let remaining = (0..self.classes).filter(|&class| left(class) > 0);
        remaining.map(|class| self.of_one(class, left) * count(left(class))).sum()
    }

    /// What one device of a class has of its best neighbours.
    fn of_one(&self, class: usize, left: impl Fn(usize) -> usize) -> i64 {
        let (mut seen, mut sum) = (0, 0);
        for &(other, worth) in &self.nearest[class * self.classes..][..self.classes] {
            let others = left(other) - usize::from(other == class);
            let until = (seen + others).min(MOST);
            sum += worth * weight(seen, until);
            seen = until;
            if seen == MOST {
                break;
            }
        }
        sum
    }
}

/// How much a connection to the neighbours from the `from`th to before the `until`th counts.
fn weight(from: usize, until: usize) -> i64 {
    let overlap = |size: usize| count(until.min(size - 1).saturating_sub(from));
    SIZES.iter().map(|&(size, weight)| overlap(size) * weight).sum()
}
