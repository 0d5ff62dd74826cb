//! Policies: rules that rank the nodes, and the parts of each node, for a request.

mod best_fit;
mod dot_product;
mod fgd;
mod least_allocated;
mod packing;
mod windlass;

use std::{fmt, iter};

use crate::{
    fit::Fit,
    gpu::{Gpu, GpuSet},
    knowledge::{ForecastValues, NodeSummary},
    node::{Node, Part, state_after_allocation},
    request::Request,
    view::Catalog,
};

/// Policy of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// A random node and GPU that fit.
    Random,
    /// kube-scheduler's default: the node with the most free CPU and memory, and its first GPU that fits.
    LeastAllocated,
    /// The first node and GPU that fit.
    FirstFit,
    /// The node with the least free CPU and GPUs, as a weighted sum.
    BestFit,
    /// The node with the smallest dot product of its free resources and the request.
    DotProduct,
    /// GPUs that have shares first, then free GPUs of used nodes, then unused nodes.
    Packing,
    /// Fragmentation gradient descent (FGD), as published.
    Fgd,
    /// FGD, minus four losses that it does not measure.
    Windlass,
}

impl Policy {
    /// Every policy, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Random,
        Self::LeastAllocated,
        Self::FirstFit,
        Self::BestFit,
        Self::DotProduct,
        Self::Packing,
        Self::Fgd,
        Self::Windlass,
    ];

    /// The policy's name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::LeastAllocated => "least-allocated",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::DotProduct => "dot-product",
            Self::Packing => "packing",
            Self::Fgd => "fgd",
            Self::Windlass => "windlass",
        }
    }

    /// Short description, for the command line's help.
    pub fn description(self) -> &'static str {
        match self {
            Self::Random => "A random node and GPU that fit",
            Self::LeastAllocated => "kube-scheduler's default: most free CPU and memory",
            Self::FirstFit => "The first node and GPU that fit",
            Self::BestFit => "The node with the least free CPU and GPUs",
            Self::DotProduct => "The smallest dot product of free resources and request",
            Self::Packing => "Shared GPUs, then free GPUs of used nodes, then unused nodes",
            Self::Fgd => "Fragmentation gradient descent, as published",
            Self::Windlass => {
                "Fragmentation gradient descent, minus four losses that it does not measure"
            }
        }
    }
}

/// Rank of a node; larger is better. The view's order decides between equal ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The score.
    pub score: i32,
    /// Tie-breaker between equal scores; larger is better.
    pub tie_breaker: u32,
}

/// Explanation of a node's rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The rank.
    pub rank: Rank,
    /// The part of the node that the request would get.
    pub part: Part,
    /// Gains and losses, whose points sum to the rank's score.
    pub terms: Vec<Term>,
}

/// One term of a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Short name of the reason.
    pub name: &'static str,
    /// Points of the score; negative for a loss.
    pub points: i32,
}

/// `-25 points: fragmentation 55, value cut from a GPU -80; tie 61; GPUs 0,1`. Terms of zero points are left out.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} points", self.rank.score)?;
        let terms = self.terms.iter().filter(|term| term.points != 0);
        for (n, Term { name, points }) in terms.enumerate() {
            let separator = if n == 0 { ": " } else { ", " };
            write!(f, "{separator}{name} {points}")?;
        }
        write!(f, "; tie {}", self.rank.tie_breaker)?;
        if self.part.gpus.is_empty() { Ok(()) } else { write!(f, "; GPUs {}", self.part.gpus) }
    }
}

/// Input of a rank: a node, the request, and precomputed values.
pub(crate) struct RankInput<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) forecast_values: &'a ForecastValues,
    pub(crate) node: &'a Node,
    pub(crate) summary: &'a NodeSummary,
    pub(crate) request: &'a Request,
}

impl RankInput<'_> {
    /// Idle thousandths that the GPU at this position loses when the part is allocated to the request.
    fn allocated_milli(&self, position: usize, part: Part) -> u32 {
        let gpu = &self.node.gpus[position];
        let state = state_after_allocation(gpu, self.request, part.memory_slices)
            .expect("a part of a fit is free");
        u32::from(gpu.idle_milli() - Gpu { state, ..*gpu }.idle_milli())
    }
}

/// Explains the node's rank by a policy.
pub(crate) fn explain(policy: Policy, input: &RankInput<'_>, fit: &Fit) -> Explanation {
    let (rank, part) = rank(policy, input, fit);
    let one_term = |name| vec![Term { name, points: rank.score }];
    let terms = match policy {
        Policy::Windlass => windlass::terms(input, part),
        Policy::Fgd => one_term("fragmentation"),
        Policy::LeastAllocated => one_term("free CPU and memory"),
        Policy::BestFit => one_term("best fit"),
        Policy::DotProduct => one_term("dot product"),
        Policy::Packing => one_term("packing"),
        Policy::Random | Policy::FirstFit => Vec::new(),
    };
    Explanation { rank, part, terms }
}

/// The rank of a given part by [`Policy::Windlass`]; `None` if the part is not free.
pub(crate) fn rank_part(input: &RankInput<'_>, part: Part) -> Option<Rank> {
    input.node.clone().allocate(input.request, part).ok()?;
    Some(windlass::rank_part(input, part))
}

/// Explains the rank by [`rank_part`]; `None` if the part is not free.
pub(crate) fn explain_part(input: &RankInput<'_>, part: Part) -> Option<Explanation> {
    let rank = rank_part(input, part)?;
    Some(Explanation { rank, part, terms: windlass::terms(input, part) })
}

/// The part of the node that the policy chooses, and the node's rank with it.
pub(crate) fn rank(policy: Policy, input: &RankInput<'_>, fit: &Fit) -> (Rank, Part) {
    match policy {
        Policy::Random | Policy::FirstFit => {
            (Rank { score: 0, tie_breaker: 0 }, best(input, fit, |_| 0).1)
        }
        Policy::LeastAllocated => least_allocated::rank(input, fit),
        Policy::BestFit => best_fit::rank(input, fit),
        Policy::DotProduct => dot_product::rank(input, fit),
        Policy::Packing => packing::rank(input, fit),
        Policy::Fgd => fgd::rank(input, fit),
        Policy::Windlass => windlass::rank(input, fit),
    }
}

/// The part with the highest score, and this score. Among equal scores the part with the lowest GPU positions wins.
///
/// Shares of several GPUs are chosen greedily: each further GPU is the best in addition to the GPUs already chosen.
pub(crate) fn best(input: &RankInput<'_>, fit: &Fit, score: impl Fn(Part) -> i32) -> (i32, Part) {
    let best = match fit {
        Fit::NoGpu => best_of(iter::once(Part::default()), &score),
        Fit::Whole { free, count } => best_of(iter::once(Part::of(free.lowest(*count))), &score),
        Fit::Share { gpus, count } => {
            let representatives = gpus.intersection(input.summary.representatives);
            let first =
                best_of(representatives.iter().map(|gpu| Part::of(GpuSet::single(gpu))), &score);
            (1..*count).fold(first, |best, _| {
                let chosen = best?.1.gpus;
                let representatives = input.node.representatives(gpus.difference(chosen));
                let extended = |gpu: usize| Part::of(chosen.union(GpuSet::single(gpu)));
                best_of(representatives.iter().map(extended), &score)
            })
        }
        Fit::Partition(places) => best_of(places.iter().copied(), &score),
    };
    best.expect("a fit has a part")
}

fn best_of(parts: impl Iterator<Item = Part>, score: impl Fn(Part) -> i32) -> Option<(i32, Part)> {
    let scored = parts.map(|part| (score(part), part));
    scored.reduce(|best, other| if other.0 > best.0 { other } else { best })
}
