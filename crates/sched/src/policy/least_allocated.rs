//! kube-scheduler's default policy: the node with the most free CPU and memory.
//!
//! This is the score of the plugin `NodeResourcesFit` with its default strategy, `LeastAllocated`
//! (`pkg/scheduler/framework/plugins/noderesources/least_allocated.go`), with one difference: the pod's own request is
//! not subtracted, because ranks are cached by requests without main memory. Devices do not affect the score, and the
//! first GPUs that fit are chosen.

use super::{Rank, RankInput, best};
use crate::{
    fit::Fit,
    node::{Part, ResourceUsage},
};

/// Highest score of a node (`MaxNodeScore`).
const MAX_SCORE: u64 = 100;

pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let score = u64::midpoint(free_score(input.node.cpu_milli), free_score(input.node.memory_mib));
    let score = i32::try_from(score).expect("at most 100");
    (Rank { score, tie_breaker: 0 }, best(input, fit, |_| 0).1)
}

fn free_score(amount: ResourceUsage) -> u64 {
    u64::from(amount.free) * MAX_SCORE / u64::from(amount.total.max(1))
}
