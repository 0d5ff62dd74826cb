//! Packing: GPUs that have shares first, then free GPUs of used nodes, then unused nodes.

use super::{Rank, RankInput, best_fit};
use crate::{fit::Fit, node::Part};

pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let part = best_fit::fullest(input, fit);
    let free = input.summary.free_gpus;
    let gpu_count = input.node.gpus.len();
    let newly_used = part.gpus.intersection(free).len();
    let score = match newly_used {
        0 => 2,
        _ if (free.len() as usize) < gpu_count => 1,
        _ => 0,
    };
    // Among equal scores the node with the fewest free GPUs wins.
    (Rank { score, tie_breaker: 64 - free.len() }, part)
}
