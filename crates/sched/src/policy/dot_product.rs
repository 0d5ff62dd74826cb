//! Dot product: the node with the smallest dot product of its free resources and the request.

use super::{Rank, RankInput, best_fit};
use crate::{fit::Fit, gpu::WHOLE_MILLI, node::Part};

pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let RankInput { node, summary, request, .. } = input;
    let whole = node.gpus.iter().map(|_| f64::from(WHOLE_MILLI)).sum::<f64>();
    let (total, idle) = (whole.max(1.0), f64::from(summary.usability.idle_milli()));
    let cpu =
        fraction(request.cpu_milli, node.cpu_milli.total) * (1.0 - node.cpu_milli.used_fraction());
    let gpus = f64::from(request.gpu_milli()) / total * (idle / total);
    #[expect(clippy::cast_possible_wrap, reason = "at most two million")]
    let score = -(millionths(f64::midpoint(cpu, gpus)) as i32);
    (Rank { score, tie_breaker: 0 }, best_fit::fullest(input, fit))
}

fn fraction(amount: u32, total: u32) -> f64 {
    f64::from(amount) / f64::from(total.max(1))
}

/// A number from 0 to 1 in millionths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn millionths(fraction: f64) -> u32 {
    (fraction.clamp(0.0, 1.0) * 1e6) as u32
}
