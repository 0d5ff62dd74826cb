//! Best partners of each remaining device in a pair, a quad and an octet.

use super::{SIZES, count};
use crate::placement::{affinity::Affinity, problem::Problem};

/// Most partners of a device.
const MAX: usize = SIZES[SIZES.len() - 1].0 - 1;

/// Partners of every class, best connected first.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Class and affinity, row by row.
    nearest: Vec<(usize, i64)>,
    classes: usize,
}

// === impl Neighbours ===

impl Neighbours {
    /// Partners by one measure of affinity.
    pub(super) fn of(problem: &Problem, measure: fn(Affinity) -> i64) -> Self {
        let classes = problem.classes.len();
        let mut nearest = Vec::with_capacity(classes * classes);
        for class in 0..classes {
            let row_start = nearest.len();
            let affinity = |other| (other, measure(problem.affinity(class, other)));
            nearest.extend((0..classes).map(affinity));
            // The order of equal affinities has no effect.
            nearest[row_start..].sort_by_key(|&(_, affinity)| -affinity);
        }
        Self { nearest, classes }
    }

    /// Sum over the devices that remain after taking `counts` of each class.
    pub(super) fn usefulness(&self, problem: &Problem, counts: &[usize]) -> i64 {
        let left_in = |class: usize| problem.classes[class].members.len() - counts[class];
        let remaining = (0..self.classes).filter(|&class| left_in(class) > 0);
        remaining.map(|class| self.of_one(class, left_in) * count(left_in(class))).sum()
    }

    /// Affinity of one device with its best remaining partners.
    fn of_one(&self, class: usize, left_in: impl Fn(usize) -> usize) -> i64 {
        let (mut counted, mut sum) = (0, 0);
        for &(other, affinity) in &self.nearest[class * self.classes..][..self.classes] {
            let others = left_in(other) - usize::from(other == class);
            let counted_after = (counted + others).min(MAX);
            sum += affinity * weight(counted, counted_after);
            counted = counted_after;
            if counted == MAX {
                break;
            }
        }
        sum
    }
}

/// Weight of connections to the partners `from..until`.
fn weight(from: usize, until: usize) -> i64 {
    let overlap = |size: usize| count(until.min(size - 1).saturating_sub(from));
    SIZES.iter().map(|&(size, weight)| overlap(size) * weight).sum()
}
