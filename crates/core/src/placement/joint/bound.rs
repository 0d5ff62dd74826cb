//! Lower bound on pair distances over all completions of a partial choice.

use super::{
    junctions::LEVELS,
    loads::Loads,
    problem::JointProblem,
    tally::{Chosen, FarPairs},
};
use crate::placement::remaining::count;

/// Devices still to choose: GPUs, and NICs of `class` and later classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unchosen {
    pub(super) gpus: usize,
    pub(super) class: usize,
    pub(super) nics: usize,
}

/// Upper bound on the pairs at all junctions of one level.
#[derive(Clone, Copy, Debug, Default)]
struct PairBound {
    /// Pairs with NICs that are already chosen.
    fixed: usize,
    /// Unchosen NICs that could be in as many pairs as a NIC may have.
    full: usize,
    /// Junctions with a further NIC and open pairs, but with fewer open pairs than a NIC may have.
    partial_nics: usize,
    /// Highest number of open pairs at such a junction.
    largest_partial: usize,
}

/// For each level, a lower bound on the number of pairs farther apart than the level, over all completions.
///
/// Only pairs that certainly include a chosen GPU count. Each level is bounded on its own, as if it had the best
/// unchosen NICs. The number of near pairs has two upper bounds, of which the smaller applies. One gives every device
/// its most pairs. The other gives every device its fewest pairs, and counts all extra pairs as near.
pub(super) fn min_far_pairs(
    problem: &JointProblem,
    gpus: &Chosen,
    nics: &Chosen,
    unchosen: Unchosen,
) -> FarPairs {
    let Loads { gpu, nic, pairs: _, extra } = problem.loads;
    let free = problem.free_nics(unchosen.class);
    let (mut even, mut uneven) =
        ([PairBound::default(); LEVELS.len()], [PairBound::default(); LEVELS.len()]);
    for (at, &level) in problem.junctions.levels.iter().enumerate() {
        let (ours, taken) = (gpus.at[at], nics.at[at]);
        even[level].add(ours * gpu.least, taken, free[at], nic.least);
        uneven[level].add(ours * gpu.most, taken, free[at], nic.most);
    }
    // The GPUs with an extra pair may all be unchosen ones.
    let ours = if gpu.most > gpu.least { extra.saturating_sub(unchosen.gpus) } else { 0 };
    let more = if nic.most > nic.least { extra } else { ours };
    let pairs = (problem.gpus.size() - unchosen.gpus) * gpu.least + ours;
    let mut far = [0; LEVELS.len()];
    let mut least = 0;
    for (far, (even, uneven)) in far.iter_mut().zip(even.iter().zip(&uneven)) {
        let near = (even.max_pairs(unchosen.nics, nic.least) + more)
            .min(uneven.max_pairs(unchosen.nics, nic.most));
        least = least.max(pairs.saturating_sub(near));
        *far = count(least);
    }
    far
}

// === impl PairBound ===

impl PairBound {
    /// Adds a junction: pairs of its chosen GPUs, chosen NICs, unchosen NICs, and the maximum number of pairs per NIC.
    fn add(&mut self, target: usize, taken: usize, free: usize, most: usize) {
        let fixed = target.min(taken * most);
        let open = target - fixed;
        let full = free.min(open / most);
        self.fixed += fixed;
        self.full += full;
        let partial = open - full * most;
        if full < free && partial > 0 {
            self.partial_nics += 1;
            self.largest_partial = self.largest_partial.max(partial);
        }
    }

    /// The most pairs with `missing` more NICs of at most `most` pairs each.
    fn max_pairs(self, missing: usize, most: usize) -> usize {
        let full = self.full.min(missing);
        self.fixed + full * most + self.partial_nics.min(missing - full) * self.largest_partial
    }
}
