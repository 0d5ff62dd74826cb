//! Our rule: fragmentation gradient descent, and four losses that it does not see.
//!
//! All are in points. FGD gives about 25 for a GPU's worth of fragmentation. The losses weigh more, so that it decides
//! among the placements that lose least. The weights are rounded from what allocates most on the public trace. Half or
//! twice of one costs at most 0.2 points there.

use super::{Input, Rank, Term, best, fgd};
use crate::{
    fit::Fit,
    node::Part,
    request::{Gpus, share_of},
};

/// Points for a GPU of value that a share takes from its GPU beyond its own. On the public trace the smallest such loss
/// is a twelfth of a GPU: 42 points, as much as FGD gives for nearly two GPUs of fragmentation.
const CUT: f64 = 500.0;
/// Points for a GPU that is left without CPU.
const STRANDED: f64 = 100.0;
/// Points for a GPU of a product that others insist on.
const SCARCE: f64 = 100.0;
/// Points for a GPU of broken blocks, times the blocks' part of all demand.
const BROKEN: f64 = 65.0;
/// Names of the losses.
const LOSSES: [&str; 4] =
    ["value cut from a GPU", "GPUs left without CPU", "scarce product", "broken blocks"];

pub(super) fn rank(input: &Input<'_>, fit: &Fit) -> (Rank, Part) {
    let (_, part) = best(input, fit, |part| rate(input, part).score);
    (rate(input, part), part)
}

/// The rank of a part that was chosen already.
pub(super) fn rate(input: &Input<'_>, part: Part) -> Rank {
    let score = fgd::score(input, part) - points(losses(input, part).iter().sum());
    Rank { score, tie: tie(input) }
}

/// The terms of the score of a part. The losses are rounded as a sum, so each term is the step of the rounded sum.
pub(super) fn terms(input: &Input<'_>, part: Part) -> Vec<Term> {
    let mut terms = vec![Term { name: "fragmentation", points: fgd::score(input, part) }];
    let (mut sum, mut before) = (0.0, 0);
    for (name, loss) in LOSSES.into_iter().zip(losses(input, part)) {
        sum += loss;
        terms.push(Term { name, points: before - points(sum) });
        before = points(sum);
    }
    terms
}

#[expect(clippy::cast_possible_truncation, reason = "at most some hundreds per GPU of a node")]
fn points(loss: f64) -> i32 {
    loss.round() as i32
}

/// The losses in points, in the order of their names.
fn losses(input: &Input<'_>, part: Part) -> [f64; 4] {
    let (mut taken, mut scarce) = (0, 0.0);
    for position in part.gpus.iter() {
        let of_one = input.taken_milli(position, part);
        taken += of_one;
        // Others insist on the product.
        let scarcity = input.knowledge.scarcity.of_model(input.node.gpus[position].model);
        scarce += scarcity * f64::from(of_one) / 1000.0;
    }
    [
        CUT * cut(input, part),
        STRANDED * stranded(input, taken),
        SCARCE * scarce,
        BROKEN * broken(input, part),
    ]
}

/// Value that the shares take from their GPUs beyond their own, in GPUs.
fn cut(input: &Input<'_>, part: Part) -> f64 {
    let Gpus::Share { milli, memory, .. } = input.request.gpus else { return 0.0 };
    let regret = |position: usize| {
        let gpu = &input.node.gpus[position];
        let share = share_of(gpu.memory_mib, milli, memory);
        input.knowledge.prices.regret(gpu.idle_milli(), share)
    };
    part.gpus.iter().map(regret).sum()
}

/// GPUs that lose the CPU they need, and that had it, when so much of the node's GPUs is taken.
fn stranded(input: &Input<'_>, taken_milli: u32) -> f64 {
    let (idle, cpu) = (input.standing.uses.idle_milli(), input.node.cpu_milli.free);
    let stranding = &input.knowledge.stranding;
    let before = stranding.stranded_gpus(idle, cpu);
    let left = cpu.saturating_sub(input.request.cpu_milli);
    let after = stranding.stranded_gpus(idle - taken_milli, left);
    (after - before).max(0.0)
}

/// GPUs in blocks that are broken for less than a block's worth.
fn broken(input: &Input<'_>, part: Part) -> f64 {
    let (blocks, request) = (&input.knowledge.blocks, input.request);
    let (free, cpu) = (input.standing.free, input.node.cpu_milli.free);
    let opened = free.and(part.gpus).len();
    let left = blocks.value(free.len() - opened, cpu.saturating_sub(request.cpu_milli));
    let own = match request.gpus {
        Gpus::Whole(count) => blocks.value(u32::from(count), request.cpu_milli),
        _ => 0.0,
    };
    (input.standing.blocks - left - own).max(0.0)
}

/// Nodes with fewer free GPUs first. The order of nodes decides between the rest: pods gather at its start, and nodes at
/// its end drain for pods that need many GPUs.
fn tie(input: &Input<'_>) -> u32 {
    64 - input.standing.free.len()
}
