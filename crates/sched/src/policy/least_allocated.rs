//! kube-scheduler's default policy: the node with the most free CPU and memory.
//!
//! This is the score of the plugin `NodeResourcesFit` with its default strategy, `LeastAllocated`
//! (`pkg/scheduler/framework/plugins/noderesources/least_allocated.go`), with one difference: the score is that before
//! the pod is placed, because ranks are cached by requests without main memory. Devices do not count, and the
//! first GPUs that fit are chosen.

use super::{Input, Rank, best};
use crate::{
    fit::Fit,
    node::{Amount, Part},
};

/// Highest score of a node (`MaxNodeScore`).
const MAX_SCORE: u64 = 100;

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let score = u64::midpoint(left(input.node.cpu_milli), left(input.node.memory_mib));
    let score = i32::try_from(score).expect("at most 100");
    (Rank { score, tie: 0 }, best(input, fit, |_| 0).1)
}

fn left(of: Amount) -> u64 {
    u64::from(of.free) * MAX_SCORE / u64::from(of.total.max(1))
}
