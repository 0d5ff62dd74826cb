//! Windlass' policy: the score of fragmentation gradient descent (FGD), minus four losses that FGD does not measure.
//!
//! All terms are in points. One GPU of fragmentation is about 25 points of FGD. The losses weigh more, so FGD decides
//! among the placements that lose least. The weights are those that allocate the most GPUs of the public trace,
//! rounded. Halving or doubling one weight costs at most 0.2 percentage points there.

use super::{Rank, RankInput, Term, best, fgd};
use crate::{
    fit::Fit,
    node::Part,
    request::{Gpus, share_of},
};

/// Points per GPU of value that a share destroys on its GPU (the regret of [`Prices`](crate::prices::Prices)). On the
/// public trace the smallest such loss is a twelfth of a GPU: 42 points, as much as nearly two GPUs of fragmentation in
/// FGD.
const POINTS_PER_DESTROYED_GPU: f64 = 500.0;
/// Points per idle GPU whose node has too little CPU left for it.
const POINTS_PER_STRANDED_GPU: f64 = 100.0;
/// Points per GPU of a product that other requests require.
const POINTS_PER_SCARCE_GPU: f64 = 100.0;
/// Points per GPU of broken blocks, times the blocks' share of all demand. A [block](crate::blocks) is a group of free
/// GPUs on one node that a request for several GPUs needs.
const POINTS_PER_BROKEN_GPU: f64 = 65.0;
/// Names of the losses.
const LOSSES: [&str; 4] =
    ["value cut from a GPU", "GPUs left without CPU", "scarce product", "broken blocks"];

/// The best part of a fit, with its rank.
pub(super) fn rank(input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    let (_, part) = best(input, fit, |part| rank_part(input, part).score);
    (rank_part(input, part), part)
}

/// The rank of a given part.
pub(super) fn rank_part(input: &RankInput<'_>, part: Part) -> Rank {
    let score = fgd::score(input, part) - points(losses(input, part).iter().sum());
    Rank { score, tie_breaker: tie_breaker(input) }
}

/// The terms of a part's score. The score rounds the sum of the losses. To sum to the score, each term is the
/// difference of two rounded partial sums.
pub(super) fn terms(input: &RankInput<'_>, part: Part) -> Vec<Term> {
    let mut terms = vec![Term { name: "fragmentation", points: fgd::score(input, part) }];
    let (mut sum, mut points_before) = (0.0, 0);
    for (name, loss) in LOSSES.into_iter().zip(losses(input, part)) {
        sum += loss;
        terms.push(Term { name, points: points_before - points(sum) });
        points_before = points(sum);
    }
    terms
}

#[expect(clippy::cast_possible_truncation, reason = "at most some hundreds per GPU of a node")]
fn points(loss: f64) -> i32 {
    loss.round() as i32
}

/// The losses in points, in the order of their names.
fn losses(input: &RankInput<'_>, part: Part) -> [f64; 4] {
    let (mut allocated_milli, mut scarce_gpus) = (0, 0.0);
    for position in part.gpus.iter() {
        let milli = input.allocated_milli(position, part);
        allocated_milli += milli;
        let scarcity = input.forecast_values.scarcity.of_model(input.node.gpus[position].model);
        scarce_gpus += scarcity * f64::from(milli) / 1000.0;
    }
    [
        POINTS_PER_DESTROYED_GPU * destroyed_value(input, part),
        POINTS_PER_STRANDED_GPU * stranded_gpus(input, allocated_milli),
        POINTS_PER_SCARCE_GPU * scarce_gpus,
        POINTS_PER_BROKEN_GPU * broken_block_gpus(input, part),
    ]
}

/// Value that the shares destroy on their GPUs, in GPUs.
fn destroyed_value(input: &RankInput<'_>, part: Part) -> f64 {
    let Gpus::Share { compute_milli, memory, .. } = input.request.gpus else { return 0.0 };
    let regret = |position: usize| {
        let gpu = &input.node.gpus[position];
        let share = share_of(gpu.memory_mib, compute_milli, memory);
        input.forecast_values.prices.regret(gpu.idle_milli(), share)
    };
    part.gpus.iter().map(regret).sum()
}

/// Number of idle GPUs that lose their CPU when the request gets `allocated_milli` of the node's GPUs, and its CPU.
fn stranded_gpus(input: &RankInput<'_>, allocated_milli: u32) -> f64 {
    let (idle, cpu) = (input.summary.usability.idle_milli(), input.node.cpu_milli.free);
    let stranding = &input.forecast_values.stranding;
    let before = stranding.stranded_gpus(idle, cpu);
    let remaining_cpu = cpu.saturating_sub(input.request.cpu_milli);
    let after = stranding.stranded_gpus(idle - allocated_milli, remaining_cpu);
    (after - before).max(0.0)
}

/// Value of the blocks that the node loses, minus the value of the request's own block, in GPUs.
fn broken_block_gpus(input: &RankInput<'_>, part: Part) -> f64 {
    let (demand, request) = (&input.forecast_values.multi_gpu_demand, input.request);
    let (free, cpu) = (input.summary.free_gpus, input.node.cpu_milli.free);
    let newly_used = free.intersection(part.gpus).len();
    let remaining_value =
        demand.value(free.len() - newly_used, cpu.saturating_sub(request.cpu_milli));
    let request_value = match request.gpus {
        Gpus::Whole(count) => demand.value(u32::from(count), request.cpu_milli),
        _ => 0.0,
    };
    (input.summary.multi_gpu_value - remaining_value - request_value).max(0.0)
}

/// Prefers nodes with fewer free GPUs; a node has at most 64. Among equal nodes the first one wins, so pods concentrate
/// on the first nodes, and the last nodes become free for pods that need many GPUs.
fn tie_breaker(input: &RankInput<'_>) -> u32 {
    64 - input.summary.free_gpus.len()
}
