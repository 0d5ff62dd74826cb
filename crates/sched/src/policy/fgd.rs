//! Fragmentation gradient descent (FGD): the node whose fragmentation grows least.
//!
//! Two simplifications of the published experiment are part of the policy: the score is an integer, and the first node
//! wins among equal scores. An exact score with a best-fit tie-breaker allocates one percentage point less of the
//! default trace.

use super::{Rank, RankInput, best};
use crate::{fit::Fit, gpu::WHOLE_MILLI, node::Part};

pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let (score, part) = best(input, fit, |part| score(input, part));
    (Rank { score, tie_breaker: 0 }, part)
}

/// The score of a part.
pub(super) fn score(input: &RankInput<'_>, part: Part) -> i32 {
    let RankInput { catalog, forecast_values, node, summary, request } = input;
    let mix = forecast_values.mix(summary);
    let decrease = mix.decrease(catalog, node, &summary.usability, request, part);
    points(decrease / f64::from(WHOLE_MILLI))
}

/// A hundred times the sigmoid of the decrease of fragmentation in GPUs, rounded down as in the published experiment.
#[expect(clippy::cast_possible_truncation, reason = "from 0 to 100")]
fn points(decrease: f64) -> i32 {
    (100.0 / (1.0 + (-decrease).exp())) as i32
}
