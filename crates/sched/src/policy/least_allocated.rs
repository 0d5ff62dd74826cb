//! kube-scheduler's own rule: the node with the most left, of processors and main memory.
//!
//! The score of the plugin `NodeResourcesFit` with its default strategy, `LeastAllocated`
//! (`pkg/scheduler/framework/plugins/noderesources/least_allocated.go`), before the pod instead of after it: ranks are
//! kept by requests without main memory. Devices do not count in it, and a node gives the first that fit.

use super::{Input, Rank, best};
use crate::{
    fit::Fit,
    node::{Amount, Part},
};

/// Highest score of a node (`MaxNodeScore`).
const MOST: u64 = 100;

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let score = u64::midpoint(left(input.node.cpu_milli), left(input.node.memory_mib));
    let score = i32::try_from(score).expect("at most 100");
    (Rank { score, tie: 0 }, best(input, fit, |_| 0).1)
}

fn left(of: Amount) -> u64 {
    u64::from(of.free) * MOST / u64::from(of.total.max(1))
}
