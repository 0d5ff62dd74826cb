//! Packing: GPUs that are shared already, then free GPUs of used nodes, then unused nodes.

use super::{Input, Rank, best_fit};
use crate::{fit::Fit, node::Part};

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let part = best_fit::fullest(input, fit);
    let free = input.standing.free;
    let all = input.node.gpus.len();
    let opens = part.gpus.and(free).len();
    let score = match opens {
        0 => 2,
        _ if (free.len() as usize) < all => 1,
        _ => 0,
    };
    // Within a kind the fewest free GPUs.
    (Rank { score, tie: 64 - free.len() }, part)
}
