//! Bounds on the terms of a branch: the best value that any completion of a partial set can have.

use std::cmp::Ordering;

use super::PartialSet;
use crate::placement::{
    affinity::Affinity,
    policy::{Score, Term},
    problem::Problem,
    remaining::count,
};

/// Precomputed bounds, and reused buffers.
#[derive(Debug)]
pub(in crate::placement) struct Bounds {
    /// Sums of a class's affinity with its `n` best eligible partners, for each `n` below `missing`: one row per class.
    best_sums: Vec<i64>,
    /// Length of a row.
    row: usize,
    /// For each class, the gain per device and the number of eligible devices.
    gains: Vec<(i64, usize)>,
    capacities: Vec<GroupCapacity>,
}

/// Taken and eligible devices of a group during the search.
#[derive(Clone, Copy, Debug)]
struct GroupCapacity {
    taken: i64,
    left: i64,
}

/// A branch of the search: `missing` devices are still to be chosen from `class` and later classes.
#[derive(Clone, Copy, Debug)]
pub(in crate::placement) struct Branch {
    pub(in crate::placement) class: usize,
    pub(in crate::placement) missing: usize,
}

// === impl Bounds ===

impl Bounds {
    pub(in crate::placement) fn of(problem: &Problem) -> Self {
        let classes = problem.classes.len();
        let row = problem.missing.max(1);
        let mut best_sums = Vec::with_capacity(classes * row);
        let mut order: Vec<_> = (0..classes).collect();
        for class in 0..classes {
            order.sort_by_key(|&other| -problem.weight(class, other));
            let weights = order.iter().flat_map(|&other| {
                let eligible = problem.classes[other].eligible;
                let eligible = eligible.saturating_sub(usize::from(other == class));
                std::iter::repeat_n(problem.weight(class, other), eligible)
            });
            let mut sum = 0;
            best_sums.push(sum);
            let sums = weights.chain(std::iter::repeat(0)).map(|weight| {
                sum += weight;
                sum
            });
            best_sums.extend(sums.take(row - 1));
        }
        let (gains, capacities) =
            (Vec::with_capacity(classes), Vec::with_capacity(problem.groups.len()));
        Self { best_sums, row, gains, capacities }
    }

    /// Number of classes that a bound iterates over.
    pub(super) fn classes(&self) -> u64 {
        (self.best_sums.len() / self.row) as u64
    }

    /// True if every set of the branch is worse than the best.
    pub(super) fn is_excluded(
        &mut self,
        problem: &Problem,
        state: &PartialSet,
        branch: Branch,
        best: &Score,
    ) -> bool {
        for (term, best_value) in best.terms() {
            let Some(bound) = self.upper_bound(problem, state, branch, term) else { return false };
            match term.oriented(bound).cmp(&term.oriented(best_value)) {
                Ordering::Less => return true,
                Ordering::Equal => {}
                Ordering::Greater => return false,
            }
        }
        false
    }

    /// Upper bound of a term over a branch; `None` for terms without a bound.
    fn upper_bound(
        &mut self,
        problem: &Problem,
        state: &PartialSet,
        branch: Branch,
        term: Term,
    ) -> Option<i64> {
        match term {
            Term::Affinity => {
                let weight = state.weight + self.max_weight(problem, state, branch);
                Some(Affinity::unpacked(weight).primary)
            }
            Term::InUse => {
                let in_use =
                    |class: usize| problem.groups[problem.classes[class].properties.group].in_use;
                Some(state.value(problem, term) + self.greatest(problem, branch, in_use))
            }
            Term::Groups => Some(self.fewest_groups(problem, state, branch)),
            Term::Imbalance => Some(self.least_imbalance(problem, state, branch)),
            _ => None,
        }
    }

    /// Upper bound of the affinity that a branch adds.
    ///
    /// Each device adds its affinity with the taken devices, and half of its affinity with its best future
    /// partners. The other half counts for the partner.
    pub(in crate::placement) fn max_weight(
        &mut self,
        problem: &Problem,
        state: &PartialSet,
        branch: Branch,
    ) -> i64 {
        let (sums, row) = (std::mem::take(&mut self.best_sums), self.row);
        let twice_gain =
            |class: usize| 2 * state.affinities[class] + sums[class * row + branch.missing - 1];
        let max_weight = self.greatest(problem, branch, twice_gain) / 2;
        self.best_sums = sums;
        max_weight
    }

    /// Sum of the greatest gains of `missing` devices.
    fn greatest(&mut self, problem: &Problem, branch: Branch, gain: impl Fn(usize) -> i64) -> i64 {
        self.gains.clear();
        let classes = branch.class..problem.classes.len();
        self.gains.extend(classes.map(|class| (gain(class), problem.classes[class].eligible)));
        self.gains.sort_unstable_by_key(|&(gain, _)| -gain);
        let mut missing = branch.missing;
        let mut sum = 0;
        for &(gain, devices) in &self.gains {
            let devices_taken = devices.min(missing);
            sum += gain * count(devices_taken);
            missing -= devices_taken;
            if missing == 0 {
                break;
            }
        }
        sum
    }

    /// Lower bound of the imbalance: every further device goes to the emptiest group.
    fn least_imbalance(&mut self, problem: &Problem, state: &PartialSet, branch: Branch) -> i64 {
        self.update_capacities(problem, state, branch);
        for (capacity, group) in self.capacities.iter_mut().zip(&problem.groups) {
            capacity.taken += group.in_use;
        }
        for _ in 0..branch.missing {
            let open_groups = self.capacities.iter_mut().filter(|capacity| capacity.left > 0);
            let Some(capacity) = open_groups.min_by_key(|capacity| capacity.taken) else { break };
            capacity.taken += 1;
            capacity.left -= 1;
        }
        self.capacities.iter().map(|capacity| capacity.taken.pow(2)).sum()
    }

    /// Lower bound of the number of groups: groups in the set are filled first, then the groups with the most eligible
    /// devices.
    fn fewest_groups(&mut self, problem: &Problem, state: &PartialSet, branch: Branch) -> i64 {
        self.update_capacities(problem, state, branch);
        self.capacities.sort_unstable_by_key(|capacity| (capacity.taken == 0, -capacity.left));
        let mut missing = count(branch.missing);
        let mut groups = 0;
        for capacity in &self.capacities {
            if capacity.taken == 0 && missing <= 0 {
                break;
            }
            groups += 1;
            missing -= capacity.left;
        }
        groups
    }

    /// Computes the taken devices of each group, and its eligible devices in the branch.
    fn update_capacities(&mut self, problem: &Problem, state: &PartialSet, branch: Branch) {
        self.capacities.clear();
        self.capacities
            .extend(state.group_counts.iter().map(|&taken| GroupCapacity { taken, left: 0 }));
        for class in &problem.classes[branch.class..] {
            self.capacities[class.properties.group].left += count(class.eligible);
        }
    }
}
