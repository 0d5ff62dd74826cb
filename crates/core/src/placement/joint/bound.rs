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
    /// Unchosen NICs that could have the maximum number of pairs of a NIC.
    full: usize,
    /// Junctions with a further NIC and open pairs, but with fewer open pairs than that maximum.
    partial_nics: usize,
    /// Highest number of open pairs at such a junction.
    largest_partial: usize,
}

/// For each level, a lower bound on the number of pairs farther apart than the level, over all completions.
///
/// Only pairs that certainly include a chosen GPU count. Each level is bounded on its own, as if it had the best
/// unchosen NICs. The number of near pairs has two upper bounds, of which the smaller applies. One assumes the maximum
/// number of pairs for every device. The other assumes the minimum, and counts all extra pairs as near.
pub(super) fn min_far_pairs(
    problem: &JointProblem,
    gpus: &Chosen,
    nics: &Chosen,
    unchosen: Unchosen,
) -> FarPairs {
    let Loads { gpu, nic, pairs: _, extra } = problem.loads;
    let free_nics = problem.free_nics(unchosen.class);
    let (mut even, mut uneven) =
        ([PairBound::default(); LEVELS.len()], [PairBound::default(); LEVELS.len()]);
    for (junction, &level) in problem.junctions.levels.iter().enumerate() {
        let (gpus_here, nics_here) = (gpus.per_junction[junction], nics.per_junction[junction]);
        even[level].add(gpus_here * gpu.min, nics_here, free_nics[junction], nic.min);
        uneven[level].add(gpus_here * gpu.max, nics_here, free_nics[junction], nic.max);
    }
    // All GPUs with an extra pair may be unchosen.
    let gpu_extra = if gpu.max > gpu.min { extra.saturating_sub(unchosen.gpus) } else { 0 };
    let extra_pairs = if nic.max > nic.min { extra } else { gpu_extra };
    let pairs = (problem.gpus.size() - unchosen.gpus) * gpu.min + gpu_extra;
    let mut far = [0; LEVELS.len()];
    let mut min_far = 0;
    for (far, (even, uneven)) in far.iter_mut().zip(even.iter().zip(&uneven)) {
        let max_near_pairs = (even.max_pairs(unchosen.nics, nic.min) + extra_pairs)
            .min(uneven.max_pairs(unchosen.nics, nic.max));
        min_far = min_far.max(pairs.saturating_sub(max_near_pairs));
        *far = count(min_far);
    }
    far
}

// === impl PairBound ===

impl PairBound {
    /// Adds a junction: the pairs of its chosen GPUs, its chosen and its unchosen NICs, and the maximum number of pairs
    /// per NIC.
    fn add(&mut self, gpu_pairs: usize, chosen: usize, unchosen: usize, max_load: usize) {
        let fixed = gpu_pairs.min(chosen * max_load);
        let open_pairs = gpu_pairs - fixed;
        let full = unchosen.min(open_pairs / max_load);
        self.fixed += fixed;
        self.full += full;
        let partial = open_pairs - full * max_load;
        if full < unchosen && partial > 0 {
            self.partial_nics += 1;
            self.largest_partial = self.largest_partial.max(partial);
        }
    }

    /// Maximum number of pairs with `missing` more NICs of at most `max_load` pairs each.
    fn max_pairs(self, missing: usize, max_load: usize) -> usize {
        let full = self.full.min(missing);
        self.fixed + full * max_load + self.partial_nics.min(missing - full) * self.largest_partial
    }
}
