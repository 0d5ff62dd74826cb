//! Which devices should serve a request: the set with the fastest connections, chosen so that what
//! remains stays useful too.
//!
//! The answer depends on the question only: equal questions get equal answers, in whatever order the
//! devices are named. What is weighed, with its formulas, is in `docs/placement.md`.

mod affinity;
mod connections;
mod explain;
pub mod joint;
mod policy;
mod problem;
mod remaining;
mod search;
pub mod shares;
mod topology;

use std::collections::BTreeSet;

use serde::Serialize;

pub use affinity::affinity;
pub use connections::Connections;
pub use explain::{Alternative, Explanation, explain};
pub use policy::{Policy, Score, Term, UnknownPolicy};
pub use topology::Topology;

use crate::device::DeviceId;
use problem::{Positions, Problem};
use search::Found;

/// What is asked: `size` of the available devices, the required ones among them.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Ids of the devices to choose from. One that the topology does not know is not there any more,
    /// and counts as not available.
    pub available: &'a [&'a str],
    /// Ids that the answer must hold; a subset of the available.
    pub required: &'a [&'a str],
    /// Ids of other devices that the container gets, such as its NICs: the choice is near them.
    pub near: &'a [&'a str],
    /// How many devices the answer has.
    pub size: usize,
    /// What makes one set better than another.
    pub policy: Policy,
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The chosen devices, in the inventory's order.
    pub devices: Vec<DeviceId>,
    /// How the pairs of the chosen set are connected.
    pub connections: Connections,
    /// What the set is worth.
    pub score: Score,
    /// How many branches the search looked at.
    pub steps: u64,
    /// Whether no other set is better; otherwise it is the best found within the bound.
    pub exact: bool,
}

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Nothing is asked for.
    #[error("a choice of 0 devices was asked for")]
    Nothing,
    /// More than there is.
    #[error("{size} devices were asked for and {available} are available")]
    TooFew {
        /// How many are asked for.
        size: usize,
        /// How many there are.
        available: usize,
    },
    /// More must be in the answer than it has places.
    #[error("{required} devices are required in a choice of {size}")]
    TooManyRequired {
        /// How many are asked for.
        size: usize,
        /// How many must be among them.
        required: usize,
    },
    /// A required device cannot be had.
    #[error("required device {0} is not among the available ones")]
    RequiredUnavailable(String),
    /// A device to be near to is not there.
    #[error("{0} is no device of this node: nothing can be near it")]
    NearUnknown(String),
    /// The required devices contradict the rule that all are of one NUMA node.
    #[error("devices of one NUMA node were asked for, and the required ones are on several")]
    RequiredOnNodes,
    /// No NUMA node has enough.
    #[error(
        "{size} devices of one NUMA node were asked for, and no node has more than {most} \
         available{}",
        if *required == 0 { "" } else { ", the required ones included" }
    )]
    NoNumaNode {
        /// How many are asked for.
        size: usize,
        /// The most that a node could give, the required ones included.
        most: usize,
        /// How many are required.
        required: usize,
    },
}

/// A question that has an answer, by positions.
struct Question {
    available: Vec<usize>,
    required: Vec<usize>,
    near: Vec<usize>,
    size: usize,
    policy: Policy,
}

/// Chooses the best set.
pub fn choose(topology: &Topology, request: Request<'_>) -> Result<Choice, PlacementError> {
    let question = Question::read(topology, request)?;
    let found = question.best(topology, |_| true).ok_or_else(|| question.no_node(topology))?;
    Ok(Choice::of(topology, &found))
}

// === impl Question ===

impl Question {
    fn read(topology: &Topology, request: Request<'_>) -> Result<Self, PlacementError> {
        let Request { size, policy, .. } = request;
        let known = request.available.iter().filter_map(|id| topology.position(id));
        let available = ascending(known.collect());
        let required = request.required.iter().map(|id| {
            let at = topology.position(id).filter(|at| available.binary_search(at).is_ok());
            at.ok_or_else(|| PlacementError::RequiredUnavailable((*id).to_owned()))
        });
        let required = ascending(required.collect::<Result<_, _>>()?);
        let near = request.near.iter().map(|id| {
            topology.position(id).ok_or_else(|| PlacementError::NearUnknown((*id).to_owned()))
        });
        let near = ascending(near.collect::<Result<_, _>>()?);
        if size == 0 {
            return Err(PlacementError::Nothing);
        }
        if size > available.len() {
            return Err(PlacementError::TooFew { size, available: available.len() });
        }
        if required.len() > size {
            return Err(PlacementError::TooManyRequired { size, required: required.len() });
        }
        Ok(Self { available, required, near, size, policy })
    }

    /// The best set of which every device that is not required is eligible.
    fn best(&self, topology: &Topology, eligible: impl Fn(usize) -> bool) -> Option<Found> {
        match self.policy {
            Policy::First => self.first(eligible),
            Policy::NumaStrict if self.size > 1 => self.on_one_node(topology, eligible),
            Policy::Aligned | Policy::Packed | Policy::Distributed | Policy::NumaStrict => {
                self.search(topology, eligible)
            }
        }
    }

    /// The best set on one NUMA node; where the machine tells only one, or none, all are on it.
    fn on_one_node(&self, topology: &Topology, eligible: impl Fn(usize) -> bool) -> Option<Found> {
        let nodes = self.numa_nodes(topology);
        if nodes.len() == 1 {
            return self.search(topology, eligible);
        }
        let on_node = |node| {
            let is_on = |at: usize| topology.spot(at).numa_node == Some(node);
            let fits = self.required.iter().all(|&at| is_on(at));
            if fits { self.search(topology, |at| eligible(at) && is_on(at)) } else { None }
        };
        nodes.into_iter().flatten().filter_map(on_node).reduce(Found::or)
    }

    fn search(&self, topology: &Topology, eligible: impl Fn(usize) -> bool) -> Option<Found> {
        let positions = Positions {
            available: &self.available,
            required: &self.required,
            near: &self.near,
            shares: &[],
            beside: &[],
        };
        let terms = self.policy.terms();
        let problem = Problem::new(topology, positions, self.size, terms, eligible);
        (problem.eligible() >= problem.missing).then(|| search::best_set(&problem))
    }

    fn first(&self, eligible: impl Fn(usize) -> bool) -> Option<Found> {
        let is_required = |at: &usize| self.required.binary_search(at).is_ok();
        let free = self.available.iter().filter(|at| !is_required(at) && eligible(**at));
        let positions: Vec<_> = self.required.iter().chain(free).copied().take(self.size).collect();
        (positions.len() == self.size).then(|| Found::only(ascending(positions)))
    }

    /// The NUMA nodes of the available devices; `None` is one that the machine does not tell.
    fn numa_nodes(&self, topology: &Topology) -> BTreeSet<Option<u32>> {
        self.available.iter().map(|&at| topology.spot(at).numa_node).collect()
    }

    /// Why `numa-strict` has no answer.
    fn no_node(&self, topology: &Topology) -> PlacementError {
        let nodes: BTreeSet<_> =
            self.required.iter().map(|&at| topology.spot(at).numa_node).collect();
        if nodes.len() > 1 {
            return PlacementError::RequiredOnNodes;
        }
        let on_node = |node: Option<u32>| {
            let is_on = |at: &&usize| topology.spot(**at).numa_node == node;
            let fits = self.required.iter().all(|at| is_on(&at));
            if fits { self.available.iter().filter(is_on).count() } else { 0 }
        };
        let nodes = self.numa_nodes(topology).into_iter().flatten();
        let most = nodes.map(|node| on_node(Some(node))).max().unwrap_or_default();
        PlacementError::NoNumaNode { size: self.size, most, required: self.required.len() }
    }
}

// === impl Choice ===

impl Choice {
    fn of(topology: &Topology, found: &Found) -> Self {
        Self {
            devices: topology.ids(&found.positions),
            connections: Connections::of(topology, &found.positions),
            score: found.score,
            steps: found.steps,
            exact: found.exact,
        }
    }
}

fn ascending(mut positions: Vec<usize>) -> Vec<usize> {
    positions.sort_unstable();
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests;
