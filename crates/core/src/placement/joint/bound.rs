//! Lower bound on pair distances over all completions of a partial choice.
//!
//! A junction is a switch, host bridge or NUMA node where GPUs and NICs meet ([`super::junctions`]); its level says how
//! near they are. A device has `min` pairs, and each of `extra` devices has one more ([`super::loads`]).

use super::{
    junctions::LEVELS,
    loads::Loads,
    problem::JointProblem,
    tally::{Chosen, FarPairs},
};
use crate::placement::remaining::count;

/// Numbers of devices still to choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unchosen {
    pub(super) gpus: usize,
    pub(super) nics: usize,
    /// The NICs are of this class of interchangeable NICs, or of later ones.
    pub(super) class: usize,
}

/// Upper bound on the pairs at all junctions of one level. A junction's open pairs are the pairs of its chosen GPUs
/// beyond those that its chosen NICs can take.
#[derive(Clone, Copy, Debug, Default)]
struct PairBound {
    /// Pairs with NICs that are already chosen.
    fixed: usize,
    /// Unchosen NICs that can take as many open pairs as a NIC may have.
    full_nics: usize,
    /// Unchosen NICs that can take fewer: at most one per junction, for its last open pairs.
    partial_nics: usize,
    /// Highest number of open pairs that one of `partial_nics` can take.
    largest_partial: usize,
}

/// For each level, a lower bound on the number of pairs farther apart than the level, over all completions.
///
/// Only pairs that certainly include a chosen GPU count. Each level is bounded on its own, as if it had the best
/// unchosen NICs. The number of near pairs has two upper bounds, of which the smaller applies. `by_max` assumes the
/// maximum number of pairs for every device. `by_min` assumes the minimum, and all extra pairs count as near.
pub(super) fn min_far_pairs(
    problem: &JointProblem,
    gpus: &Chosen,
    nics: &Chosen,
    unchosen: Unchosen,
) -> FarPairs {
    let Loads { gpu, nic, pairs: _, extra } = problem.loads;
    let free_nics = problem.free_nics(unchosen.class);
    let (mut by_min, mut by_max) =
        ([PairBound::default(); LEVELS.len()], [PairBound::default(); LEVELS.len()]);
    for (junction, &level) in problem.junctions.levels.iter().enumerate() {
        let (gpus_here, nics_here) = (gpus.per_junction[junction], nics.per_junction[junction]);
        by_min[level].add(gpus_here * gpu.min, nics_here, free_nics[junction], nic.min);
        by_max[level].add(gpus_here * gpu.max, nics_here, free_nics[junction], nic.max);
    }
    // All GPUs with an extra pair may be unchosen.
    let gpu_extra = if gpu.max > gpu.min { extra.saturating_sub(unchosen.gpus) } else { 0 };
    let extra_pairs = if nic.max > nic.min { extra } else { gpu_extra };
    let pairs = (problem.gpus.size() - unchosen.gpus) * gpu.min + gpu_extra;
    let mut far = [0; LEVELS.len()];
    let mut min_far = 0;
    for (level, far_pairs) in far.iter_mut().enumerate() {
        let max_near_pairs = (by_min[level].max_pairs(unchosen.nics, nic.min) + extra_pairs)
            .min(by_max[level].max_pairs(unchosen.nics, nic.max));
        // The farthest level is first: a pair beyond it is also beyond all later levels.
        min_far = min_far.max(pairs.saturating_sub(max_near_pairs));
        *far_pairs = count(min_far);
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
        let full_nics = unchosen.min(open_pairs / max_load);
        self.fixed += fixed;
        self.full_nics += full_nics;
        let partial = open_pairs - full_nics * max_load;
        if full_nics < unchosen && partial > 0 {
            self.partial_nics += 1;
            self.largest_partial = self.largest_partial.max(partial);
        }
    }

    /// Maximum number of pairs with `nics` more NICs of at most `max_load` pairs each.
    fn max_pairs(self, nics: usize, max_load: usize) -> usize {
        let full_nics = self.full_nics.min(nics);
        let partial_nics = self.partial_nics.min(nics - full_nics);
        self.fixed + full_nics * max_load + partial_nics * self.largest_partial
    }
}
