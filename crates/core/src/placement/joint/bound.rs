//! How far apart pairs must be, however the rest of a choice is made.

use super::{
    junctions::RUNGS,
    loads::Loads,
    problem::JointProblem,
    tally::{Far, Taken},
};
use crate::placement::remaining::count;

/// What is still to be taken: so many GPUs, and so many NICs of this class and those after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) gpus: usize,
    pub(super) class: usize,
    pub(super) nics: usize,
}

/// The most that can meet at the junctions of a rung, summed up.
#[derive(Clone, Copy, Debug, Default)]
struct Meeting {
    /// With the NICs that are taken.
    sure: usize,
    /// NICs to come that would be in as many pairs as a NIC can be.
    full: usize,
    /// Junctions where one more would be in some, and the most of these.
    rests: usize,
    most_rest: usize,
}

/// The fewest pairs that are farther than each rung, of all choices that hold what is taken.
///
/// Only the pairs count that the GPUs taken are in at least. Of the NICs to come those are assumed that
/// suit them best, for each rung on its own; once with every device in as many pairs as one can be, once
/// with every device in as few, and the extra ones near.
pub(super) fn least_far(
    problem: &JointProblem,
    (gpus, nics): (&Taken, &Taken),
    ahead: Ahead,
) -> Far {
    let Loads { gpu, nic, pairs: _, extra } = problem.loads;
    let free = problem.free_nics(ahead.class);
    let (mut even, mut uneven) =
        ([Meeting::default(); RUNGS.len()], [Meeting::default(); RUNGS.len()]);
    for (at, &rung) in problem.junctions.rungs.iter().enumerate() {
        let (ours, theirs) = (gpus.at[at], (nics.at[at], free[at]));
        even[rung].add(ours * gpu.least, theirs, nic.least);
        uneven[rung].add(ours * gpu.most, theirs, nic.most);
    }
    // GPUs to come may be the ones that are in a pair more.
    let ours = if gpu.most > gpu.least { extra.saturating_sub(ahead.gpus) } else { 0 };
    let more = if nic.most > nic.least { extra } else { ours };
    let pairs = (problem.gpus.size() - ahead.gpus) * gpu.least + ours;
    let mut far = [0; RUNGS.len()];
    let mut least = 0;
    for (far, (even, uneven)) in far.iter_mut().zip(even.iter().zip(&uneven)) {
        let near = (even.most(ahead.nics, nic.least) + more).min(uneven.most(ahead.nics, nic.most));
        least = least.max(pairs.saturating_sub(near));
        *far = count(least);
    }
    far
}

// === impl Meeting ===

impl Meeting {
    /// Adds a junction: the pairs wanted there, the NICs taken and to come, and the most that one is in.
    fn add(&mut self, wanted: usize, (taken, free): (usize, usize), most: usize) {
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

    /// The most pairs with so many NICs more, of which each is in `most` at most.
    fn most(self, missing: usize, most: usize) -> usize {
        let full = self.full.min(missing);
        self.sure + full * most + self.rests.min(missing - full) * self.most_rest
    }
}
