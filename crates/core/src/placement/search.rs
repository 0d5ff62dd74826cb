//! The search for the best set: every set where that is affordable, else greedy with swaps.

use std::cmp::Reverse;

/// Sets compared at most. 16 devices need 12,870 for the hardest size; at some 10 ns each the bound
/// keeps a question under 2 ms.
const MAX_COMPARED: u64 = 200_000;

/// Swaps tried at most, where not every set can be compared.
const MAX_SWAPS: u64 = 20_000;

/// Weights between positions, and where each position sits.
#[derive(Debug)]
pub(super) struct Problem {
    /// Row-major square matrix, symmetric, zero on the diagonal.
    affinity: Vec<i64>,
    /// NUMA node per position, where known.
    numa: Vec<Option<u32>>,
    /// The sum of each row, and of all pairs: what remains is found without another walk.
    rows: Vec<i64>,
    total: i64,
}

/// The best set found.
#[derive(Debug)]
pub(super) struct Found {
    /// Ascending positions.
    pub(super) positions: Vec<usize>,
    pub(super) compared: u64,
    pub(super) exact: bool,
}

/// Greater is better; see the module above for the meaning of the fields in their order.
type Score = (i64, i64, Reverse<u32>);

/// Finds the best set of `size` positions that holds the required ones.
pub(super) fn best_set(problem: &Problem, required: &[usize], size: usize) -> Found {
    let free: Vec<usize> =
        (0..problem.len()).filter(|position| !required.contains(position)).collect();
    let missing = size - required.len();
    if combinations(free.len(), missing) > MAX_COMPARED {
        return greedy(problem, required, size);
    }
    let mut search = Search { problem, free: &free, best: None, compared: 0 };
    let mut set = required.to_vec();
    let inner = problem.inner(&set);
    search.extend(&mut set, 0, missing, inner);
    let (_, mut positions) = search.best.expect("at least one set has the size asked for");
    positions.sort_unstable();
    Found { positions, compared: search.compared, exact: true }
}

struct Search<'a> {
    problem: &'a Problem,
    free: &'a [usize],
    best: Option<(Score, Vec<usize>)>,
    compared: u64,
}

// === impl Search ===

impl Search<'_> {
    /// Adds `missing` of the free positions from `next` on, in ascending order, so that of equal
    /// sets the lowest is met first and kept.
    fn extend(&mut self, set: &mut Vec<usize>, next: usize, missing: usize, inner: i64) {
        if missing == 0 {
            return self.compare(set, inner);
        }
        for candidate in next..=self.free.len() - missing {
            let position = self.free[candidate];
            let gain = self.problem.touching(set, position);
            set.push(position);
            self.extend(set, candidate + 1, missing - 1, inner + gain);
            set.pop();
        }
    }

    fn compare(&mut self, set: &[usize], inner: i64) {
        self.compared += 1;
        if self.best.as_ref().is_some_and(|((best, ..), _)| inner < *best) {
            return;
        }
        let score = self.problem.score(set, inner);
        if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
            self.best = Some((score, set.to_vec()));
        }
    }
}

// === impl Problem ===

impl Problem {
    /// A symmetric matrix of weights, row by row, and the NUMA node of each position.
    pub(super) fn new(affinity: Vec<i64>, numa: Vec<Option<u32>>) -> Self {
        let rows: Vec<i64> =
            affinity.chunks(numa.len().max(1)).map(|row| row.iter().sum()).collect();
        let total = rows.iter().sum::<i64>() / 2;
        Self { affinity, numa, rows, total }
    }

    fn len(&self) -> usize {
        self.numa.len()
    }

    fn at(&self, row: usize, column: usize) -> i64 {
        self.affinity[row * self.len() + column]
    }

    /// The weight of all pairs inside a set.
    fn inner(&self, set: &[usize]) -> i64 {
        let pairs =
            |(i, &a): (usize, &usize)| -> i64 { set[i + 1..].iter().map(|&b| self.at(a, b)).sum() };
        set.iter().enumerate().map(pairs).sum()
    }

    /// The weight between one position and a set.
    fn touching(&self, set: &[usize], position: usize) -> i64 {
        set.iter().map(|&other| self.at(position, other)).sum()
    }

    fn score(&self, set: &[usize], inner: i64) -> Score {
        (inner, self.remaining(set, inner), Reverse(self.numa_nodes(set)))
    }

    /// The weight of all pairs outside a set: everything, less what touches the set.
    fn remaining(&self, set: &[usize], inner: i64) -> i64 {
        let touching: i64 = set.iter().map(|&row| self.rows[row]).sum();
        self.total - touching + inner
    }

    fn numa_nodes(&self, set: &[usize]) -> u32 {
        let mut nodes: Vec<u32> = set.iter().filter_map(|&position| self.numa[position]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        u32::try_from(nodes.len()).unwrap_or(u32::MAX)
    }
}

/// Adds the best neighbour until the set is full, then swaps while a swap makes it better. Not
/// always the optimum, and said so.
fn greedy(problem: &Problem, required: &[usize], size: usize) -> Found {
    let mut set = required.to_vec();
    let mut compared = 0;
    while set.len() < size {
        let outside = (0..problem.len()).filter(|position| !set.contains(position));
        let gain = |position: usize| set.iter().map(|&other| problem.at(position, other)).sum();
        let near =
            |position: &usize| -> (i64, Reverse<usize>) { (gain(*position), Reverse(*position)) };
        let best = outside.inspect(|_| compared += 1).max_by_key(near);
        set.push(best.expect("size is at most the number of positions"));
    }
    while let Some(better) = improving_swap(problem, &set, required.len(), &mut compared) {
        set = better;
    }
    set.sort_unstable();
    Found { positions: set, compared, exact: false }
}

/// The first swap of a position that is not required for one outside that scores higher.
fn improving_swap(
    problem: &Problem,
    set: &[usize],
    fixed: usize,
    compared: &mut u64,
) -> Option<Vec<usize>> {
    let inner = problem.inner(set);
    let current = problem.score(set, inner);
    for slot in fixed..set.len() {
        let lost = problem.touching(set, set[slot]);
        for outside in (0..problem.len()).filter(|position| !set.contains(position)) {
            *compared += 1;
            if *compared > MAX_SWAPS {
                return None;
            }
            let gained = problem.touching(set, outside) - problem.at(outside, set[slot]);
            let swapped = inner - lost + gained;
            if swapped < current.0 {
                continue;
            }
            let mut set = set.to_vec();
            set[slot] = outside;
            if problem.score(&set, swapped) > current {
                return Some(set);
            }
        }
    }
    None
}

/// How many ways there are to take `k` of `n`; saturates.
fn combinations(n: usize, k: usize) -> u64 {
    let k = k.min(n - k);
    (0..k).fold(1_u64, |ways, i| ways.saturating_mul((n - i) as u64) / (i as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_counted_without_overflow() {
        for ((n, k), expected) in [((16, 8), 12_870), ((8, 0), 1), ((5, 5), 1), ((8, 2), 28)] {
            assert_eq!(combinations(n, k), expected);
        }
        assert!(combinations(2_000, 1_000) > MAX_COMPARED);
    }
}
