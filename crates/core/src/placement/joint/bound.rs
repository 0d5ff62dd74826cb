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
    sure: usize,
    /// Unchosen NICs that could be in the most pairs that a NIC may have.
    full: usize,
    /// Junctions with one more NIC and open pairs, but too few of them for a full NIC.
    rests: usize,
    /// The most open pairs of such a junction.
    most_rest: usize,
}

/// For each level, a lower bound on the number of pairs farther apart than the level, over all completions.
///
/// Only pairs that certainly include a chosen GPU count. Each level is bounded on its own, as if it got the best
/// unchosen NICs. The number of near pairs has two upper bounds, of which the smaller applies. One gives every device
/// its most pairs. The other gives every device its fewest pairs, and counts all extra pairs as near.
pub(super) fn least_far(
    problem: &JointProblem,
    gpus: &Chosen,
    nics: &Chosen,
    ahead: Unchosen,
) -> FarPairs {
    let Loads { gpu, nic, pairs: _, extra } = problem.loads;
    let free = problem.free_nics(ahead.class);
    let (mut even, mut uneven) =
        ([PairBound::default(); LEVELS.len()], [PairBound::default(); LEVELS.len()]);
    for (at, &level) in problem.junctions.levels.iter().enumerate() {
        let (ours, taken) = (gpus.at[at], nics.at[at]);
        even[level].add(ours * gpu.least, taken, free[at], nic.least);
        uneven[level].add(ours * gpu.most, taken, free[at], nic.most);
    }
    // The GPUs with an extra pair may all be unchosen ones.
    let ours = if gpu.most > gpu.least { extra.saturating_sub(ahead.gpus) } else { 0 };
    let more = if nic.most > nic.least { extra } else { ours };
    let pairs = (problem.gpus.size() - ahead.gpus) * gpu.least + ours;
    let mut far = [0; LEVELS.len()];
    let mut least = 0;
    for (far, (even, uneven)) in far.iter_mut().zip(even.iter().zip(&uneven)) {
        let near = (even.most(ahead.nics, nic.least) + more).min(uneven.most(ahead.nics, nic.most));
        least = least.max(pairs.saturating_sub(near));
        *far = count(least);
    }
    far
}

// === impl PairBound ===

impl PairBound {
    /// Adds a junction: wanted pairs, chosen NICs, unchosen NICs, and the most pairs per NIC.
    fn add(&mut self, wanted: usize, taken: usize, free: usize, most: usize) {
        let sure = wanted.min(taken * most);
        let open = wanted - sure;
        let full = free.min(open / most);
        self.sure += sure;
        self.full += full;
        let rest = open - full * most;
        if full < free && rest > 0 {
            self.rests += 1;
            self.most_rest = self.most_rest.max(rest);
        }
    }

    /// The most pairs with `missing` more NICs of at most `most` pairs each.
    fn most(self, missing: usize, most: usize) -> usize {
        let full = self.full.min(missing);
        self.sure + full * most + self.rests.min(missing - full) * self.most_rest
    }
}
