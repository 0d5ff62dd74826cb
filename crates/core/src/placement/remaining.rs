//! How useful what remains is: what a choice leaves to those that come after it.
//!
//! Each device that remains counts with the worth of its connections to the 1, 3 and 7 others that suit
//! it best, which is what pairs, quads and octets that it may become part of would have. The three are
//! weighted so that each counts as the mean of its connections.

use super::problem::Problem;

/// How many neighbours count, and what each is worth then: 21 = 3 x 7 keeps the means whole.
const NEIGHBOURS: [(usize, i64); 3] = [(1, 21), (3, 7), (7, 3)];

/// The most neighbours that count.
const MOST: usize = NEIGHBOURS[2].0;

/// Every class's neighbours, the best connected first.
#[derive(Debug)]
pub(super) struct Neighbours {
    nearest: Vec<usize>,
    size: usize,
}

// === impl Neighbours ===

impl Neighbours {
    pub(super) fn of(problem: &Problem) -> Self {
        let size = problem.classes.len();
        let mut nearest = Vec::with_capacity(size * size);
        for class in 0..size {
            let begin = nearest.len();
            nearest.extend(0..size);
            // Equal weights are worth the same in any order.
            nearest[begin..].sort_by_key(|&other| -problem.affinity(class, other));
        }
        Self { nearest, size }
    }

    /// The usefulness of what remains after a choice of so many of each class.
    pub(super) fn usefulness(&self, problem: &Problem, counts: &[usize]) -> i64 {
        let left = |class: usize| problem.classes[class].members.len() - counts[class];
        let remaining = (0..self.size).filter(|&class| left(class) > 0);
        remaining.map(|class| self.of_one(problem, class, left) * count(left(class))).sum()
    }

    /// What one device of a class has of its best neighbours.
    fn of_one(&self, problem: &Problem, class: usize, left: impl Fn(usize) -> usize) -> i64 {
        let (mut seen, mut sum) = (0, 0);
        for &other in &self.nearest[class * self.size..][..self.size] {
            let others = left(other) - usize::from(other == class);
            let until = (seen + others).min(MOST);
            sum += problem.affinity(class, other) * worth(seen, until);
            seen = until;
            if seen == MOST {
                break;
            }
        }
        sum
    }
}

/// What a connection to the neighbours from the `from`th to before the `until`th is worth.
fn worth(from: usize, until: usize) -> i64 {
    let overlap = |most: usize| count(until.min(most).saturating_sub(from));
    NEIGHBOURS.iter().map(|&(most, worth)| overlap(most) * worth).sum()
}

/// Devices are few.
pub(super) fn count(devices: usize) -> i64 {
    i64::try_from(devices).expect("no node has that many devices")
}
