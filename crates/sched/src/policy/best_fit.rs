//! Best fit: the node with the least free CPU and GPUs, as a weighted sum.

use super::{Rank, RankInput, best};
use crate::{fit::Fit, gpu::WHOLE_MILLI, node::Part};

/// CPU and GPUs of the largest node in the FGD paper's experiment, which normalizes the sum by these.
const MAX_CPU_MILLI: f64 = 128_000.0;
const MAX_GPUS: f64 = 8.0;

pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let RankInput { node, summary, .. } = input;
    let cpu = f64::from(node.cpu_milli.free) / MAX_CPU_MILLI;
    let gpus = f64::from(summary.usability.idle_milli()) / f64::from(WHOLE_MILLI) / MAX_GPUS;
    #[expect(clippy::cast_possible_truncation, reason = "from some hundreds below zero to 100")]
    let score = (100.0 * (1.0 - 0.5 * cpu - 0.5 * gpus)) as i32;
    (Rank { score, tie_breaker: 0 }, fullest(input, fit))
}

/// The part whose GPUs have the smallest idle sum; the first of equal parts.
pub(super) fn fullest(input: &RankInput<'_>, fit: &Fit) -> Part {
    let idle = |part: Part| {
        let gpus = part.gpus.iter().map(|position| input.node.gpus[position].idle_milli());
        gpus.map(i32::from).sum::<i32>()
    };
    best(input, fit, |part| -idle(part)).1
}
