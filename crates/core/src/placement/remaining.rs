//! How useful what remains is: what a choice leaves to those that come after it.
//!
//! They mostly ask for pairs, quads and octets. Of few devices it is known how well they can be divided
//! into these; of many, which partners each device would find.

mod neighbours;
mod sets;

use super::{affinity::Worth, policy::Term, problem::Problem};
use neighbours::Neighbours;
use sets::Sets;

/// Up to so many free devices all ways to divide them are compared: 4,096 sets at most.
pub(super) const FEW: usize = 12;

/// The sizes of sets, and what their connections are worth then. A set of `k` devices has
/// `k (k - 1) / 2` connections: with 21 = 3 x 7 each size counts as the mean over them, for each device.
const SIZES: [(usize, i64); 3] = [(2, 21), (4, 7), (8, 3)];

/// What remains of a problem's devices.
#[derive(Debug)]
pub(super) struct Remaining {
    data: Data,
    /// Where the terms ask for it.
    pcie: Option<Neighbours>,
}

/// How what data travels over is judged.
#[derive(Debug)]
enum Data {
    Sets(Sets),
    Neighbours(Neighbours),
}

// === impl Remaining ===

impl Remaining {
    pub(super) fn of(problem: &Problem) -> Self {
        let devices: usize = problem.classes.iter().map(|class| class.members.len()).sum();
        let data = if devices <= FEW {
            Data::Sets(Sets::of(problem, devices))
        } else {
            Data::Neighbours(Neighbours::of(problem, Worth::affinity))
        };
        let pcie = || Neighbours::of(problem, |worth| worth.pcie);
        Self { data, pcie: problem.terms.contains(&Term::RemainingPcie).then(pcie) }
    }

    /// What remains after a choice of so many of each class is worth by what data travels over.
    pub(super) fn by_data(&mut self, problem: &Problem, counts: &[usize]) -> i64 {
        match &mut self.data {
            Data::Sets(sets) => sets.usefulness(problem, counts),
            Data::Neighbours(neighbours) => neighbours.usefulness(problem, counts),
        }
    }

    /// The same by where the devices sit.
    pub(super) fn by_pcie(&self, problem: &Problem, counts: &[usize]) -> i64 {
        let pcie = self.pcie.as_ref().expect("only terms of the problem are asked for");
        pcie.usefulness(problem, counts)
    }
}

/// Devices are few.
pub(super) fn count(devices: usize) -> i64 {
    i64::try_from(devices).expect("no node has that many devices")
}
