//! Best fit: the node with the least left, as a weighted sum of processors and GPUs.

use super::{Input, Rank, best};
use crate::{fit::Fit, gpu::WHOLE_MILLI, node::Part};

/// The largest node of the published experiment, by which its sum is normalised.
const MOST_CPU_MILLI: f64 = 128_000.0;
const MOST_GPUS: f64 = 8.0;

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let Input { node, standing, .. } = input;
    let cpu = f64::from(node.cpu_milli.free) / MOST_CPU_MILLI;
    let gpus = f64::from(standing.uses.idle_milli()) / f64::from(WHOLE_MILLI) / MOST_GPUS;
    #[expect(clippy::cast_possible_truncation, reason = "from some hundreds below zero to 100")]
    let score = (100.0 * (1.0 - 0.5 * cpu - 0.5 * gpus)) as i32;
    (Rank { score, tie: 0 }, fullest(input, fit))
}

/// The part whose GPUs have the least left; the first of equal ones.
pub(super) fn fullest(input: &Input<'_>, fit: &Fit) -> Part {
    let left = |part: Part| {
        let gpus = part.gpus.iter().map(|position| input.node.gpus[position].idle_milli());
        gpus.map(i32::from).sum::<i32>()
    };
    best(input, fit, |part| -left(part)).1
}
