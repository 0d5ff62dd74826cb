//! Usefulness of the remaining devices for later requests of 2, 4 and 8 devices (pairs, quads and octets).
//!
//! Up to [`MAX_EXACT`] devices have an exact value, by their best division into such sets. More devices have an
//! approximate value, by the best partners of each device.

mod neighbours;
mod sets;

use super::{affinity::Affinity, policy::Term, problem::Problem};
use neighbours::Neighbours;
use sets::Sets;

/// Largest number of free devices for exact division: 12 devices have 4,096 subsets.
pub(super) const MAX_EXACT: usize = 12;

/// Set sizes with the weight of a connection. A set of `k` devices has `k (k - 1) / 2` connections; 21 = 3 x
/// 7 makes each size count as the mean per device.
const SIZES: [(usize, i64); 3] = [(2, 21), (4, 7), (8, 3)];

/// Evaluator of the remaining devices.
#[derive(Debug)]
pub(super) struct Remaining {
    by_affinity: Evaluator,
    /// Evaluator by PCIe; present if a term needs it.
    pcie: Option<Neighbours>,
}

/// Evaluator by affinity, exact or approximate.
#[derive(Debug)]
enum Evaluator {
    Exact(Sets),
    Approximate(Neighbours),
}

// === impl Remaining ===

impl Remaining {
    pub(super) fn of(problem: &Problem) -> Self {
        let devices: usize = problem.classes.iter().map(|class| class.members.len()).sum();
        let evaluator = if devices <= MAX_EXACT {
            Evaluator::Exact(Sets::of(problem, devices))
        } else {
            Evaluator::Approximate(Neighbours::of(problem, Affinity::data_path))
        };
        let pcie = || Neighbours::of(problem, |affinity| affinity.pcie);
        Self {
            by_affinity: evaluator,
            pcie: problem.terms.contains(&Term::RemainingPcie).then(pcie),
        }
    }

    /// Usefulness by affinity of the devices that remain after taking `counts` of each class.
    pub(super) fn usefulness(&mut self, problem: &Problem, counts: &[usize]) -> i64 {
        match &mut self.by_affinity {
            Evaluator::Exact(sets) => sets.usefulness(problem, counts),
            Evaluator::Approximate(neighbours) => neighbours.usefulness(problem, counts),
        }
    }

    /// Usefulness by PCIe of the devices that remain after taking `counts` of each class.
    pub(super) fn pcie_usefulness(&self, problem: &Problem, counts: &[usize]) -> i64 {
        let pcie = self.pcie.as_ref().expect("only terms of the problem are evaluated");
        pcie.usefulness(problem, counts)
    }
}

/// Device count as a score.
pub(super) fn count(devices: usize) -> i64 {
    i64::try_from(devices).expect("no node has that many devices")
}
