//! Fragmentation gradient descent: the node whose fragmentation grows least.
//!
//! Both roundings of the published experiment are part of the rule. The score is an integer, and equal scores fall to
//! the first node: an exact score with a best-fit tie allocates a whole point less of the default trace.

use super::{Input, Rank, first_best, parts};
use crate::{fit::Fit, gpu::WHOLE_MILLI, node::Part};

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let scored = scores(input, fit);
    let (score, part) = scored.into_iter().reduce(first_best).expect("a fit has a part");
    (Rank { score, tie: 0 }, part)
}

/// The score of each part, in the order of the parts.
pub(super) fn scores(input: &Input<'_>, fit: &Fit) -> Vec<(i32, Part)> {
    let Input { catalog, knowledge, node, request } = input;
    let parts = parts(node, fit);
    let outlook = knowledge.outlook(node.models());
    let decreases = outlook.decreases(catalog, node, request, &parts);
    let score = |(decrease, part)| (score(decrease / f64::from(WHOLE_MILLI)), part);
    decreases.into_iter().zip(parts).map(score).collect()
}

/// A hundred times the sigmoid of the decrease of fragmentation in GPUs, rounded down as in the published experiment.
#[expect(clippy::cast_possible_truncation, reason = "from 0 to 100")]
fn score(decrease: f64) -> i32 {
    (100.0 / (1.0 + (-decrease).exp())) as i32
}
