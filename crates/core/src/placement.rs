//! Device placement: the choice of the best connected set of devices for a request. Among equal sets, the best one
//! leaves the most useful devices for later requests.
//!
//! Deterministic: equal requests get equal answers, in any order of their ids. `docs/placement.md` has the
//! objective with its formulas.

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
use search::SearchResult;

/// A placement request: `size` of the available devices, including the required ones.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Candidate ids. Ids outside the topology belong to removed devices and count as unavailable.
    pub available: &'a [&'a str],
    /// Ids that the answer must contain; a subset of `available`.
    pub required: &'a [&'a str],
    /// Ids of the container's other devices, such as NICs. The choice prefers devices near to them.
    pub near: &'a [&'a str],
    /// Number of devices in the answer.
    pub size: usize,
    /// Objective.
    pub policy: Policy,
}

/// A chosen set with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The chosen devices, in the inventory's order.
    pub devices: Vec<DeviceId>,
    /// Connections among the chosen devices.
    pub connections: Connections,
    /// Score of the set.
    pub score: Score,
    /// Number of branches that the search visited.
    pub steps: u64,
    /// True if no set is better; false if the search stopped at its work limit.
    pub exact: bool,
}

/// Reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The request is for no device.
    #[error("0 devices requested")]
    EmptyRequest,
    /// The request exceeds the available devices.
    #[error("{size} devices requested, {available} available")]
    TooFew {
        /// Requested number.
        size: usize,
        /// Available number.
        available: usize,
    },
    /// More devices are required than requested.
    #[error("{required} devices are required in a choice of {size}")]
    TooManyRequired {
        /// Requested number.
        size: usize,
        /// Required number.
        required: usize,
    },
    /// A required device is unavailable.
    #[error("required device {0} is not among the available ones")]
    RequiredUnavailable(String),
    /// A device in `near` is unknown.
    #[error("{0} is not a device of this node: name one of `windlass devices`")]
    NearUnknown(String),
    /// The required devices are on several NUMA nodes.
    #[error("devices of one NUMA node requested, and the required ones are on several")]
    RequiredOnSeveralNumaNodes,
    /// No NUMA node has enough devices.
    #[error(
        "{size} devices of one NUMA node requested, and no node has more than {available} \
         available{}",
        if *required == 0 { "" } else { ", the required ones included" }
    )]
    NoNumaNode {
        /// Requested number.
        size: usize,
        /// The most available devices of one node, the required ones included.
        available: usize,
        /// Required number.
        required: usize,
    },
}

/// A valid request. Lists have positions in the topology instead of ids, ascending.
struct ResolvedRequest {
    available: Vec<usize>,
    required: Vec<usize>,
    near: Vec<usize>,
    size: usize,
    policy: Policy,
}

/// Chooses the best set.
pub fn choose(topology: &Topology, request: Request<'_>) -> Result<Choice, PlacementError> {
    let resolved = ResolvedRequest::resolve(topology, request)?;
    let result = resolved.best(topology, |_| true).ok_or_else(|| resolved.numa_error(topology))?;
    Ok(Choice::of(topology, &result))
}

// === impl ResolvedRequest ===

impl ResolvedRequest {
    fn resolve(topology: &Topology, request: Request<'_>) -> Result<Self, PlacementError> {
        let Request { size, policy, .. } = request;
        let positions = request.available.iter().filter_map(|id| topology.position(id));
        let available = ascending(positions.collect());
        let required = request.required.iter().map(|id| {
            let position =
                topology.position(id).filter(|position| available.binary_search(position).is_ok());
            position.ok_or_else(|| PlacementError::RequiredUnavailable((*id).to_owned()))
        });
        let required = ascending(required.collect::<Result<_, _>>()?);
        let near = request.near.iter().map(|id| {
            topology.position(id).ok_or_else(|| PlacementError::NearUnknown((*id).to_owned()))
        });
        let near = ascending(near.collect::<Result<_, _>>()?);
        if size == 0 {
            return Err(PlacementError::EmptyRequest);
        }
        if size > available.len() {
            return Err(PlacementError::TooFew { size, available: available.len() });
        }
        if required.len() > size {
            return Err(PlacementError::TooManyRequired { size, required: required.len() });
        }
        Ok(Self { available, required, near, size, policy })
    }

    /// The best set. Besides the required devices, it contains only eligible ones.
    fn best(&self, topology: &Topology, eligible: impl Fn(usize) -> bool) -> Option<SearchResult> {
        match self.policy {
            Policy::First => self.lowest_positions(eligible),
            Policy::NumaStrict if self.size > 1 => self.on_one_node(topology, eligible),
            Policy::Aligned | Policy::Packed | Policy::Distributed | Policy::NumaStrict => {
                self.search(topology, eligible)
            }
        }
    }

    /// The best set on one NUMA node. Without restriction if all devices are on one node, or no node is known.
    fn on_one_node(
        &self,
        topology: &Topology,
        eligible: impl Fn(usize) -> bool,
    ) -> Option<SearchResult> {
        let nodes = self.numa_nodes(topology);
        if nodes.len() == 1 {
            return self.search(topology, eligible);
        }
        let best_on_node = |node| {
            let is_on = |position: usize| topology.device(position).numa_node == Some(node);
            let has_required = self.required.iter().all(|&position| is_on(position));
            if has_required {
                self.search(topology, |position| eligible(position) && is_on(position))
            } else {
                None
            }
        };
        nodes.into_iter().flatten().filter_map(best_on_node).reduce(SearchResult::better)
    }

    fn search(
        &self,
        topology: &Topology,
        eligible: impl Fn(usize) -> bool,
    ) -> Option<SearchResult> {
        let positions = Positions {
            available: &self.available,
            required: &self.required,
            near: &self.near,
            shares: &[],
            other_kind: &[],
        };
        let terms = self.policy.terms();
        let problem = Problem::new(topology, positions, self.size, terms, eligible);
        (problem.eligible() >= problem.missing).then(|| search::best_set(&problem))
    }

    fn lowest_positions(&self, eligible: impl Fn(usize) -> bool) -> Option<SearchResult> {
        let is_required = |position: &usize| self.required.binary_search(position).is_ok();
        let optional =
            self.available.iter().filter(|position| !is_required(position) && eligible(**position));
        let positions: Vec<_> =
            self.required.iter().chain(optional).copied().take(self.size).collect();
        (positions.len() == self.size).then(|| SearchResult::single_candidate(ascending(positions)))
    }

    /// NUMA nodes of the available devices; `None` for unknown.
    fn numa_nodes(&self, topology: &Topology) -> BTreeSet<Option<u32>> {
        self.available.iter().map(|&position| topology.device(position).numa_node).collect()
    }

    /// Error of a `numa-strict` request without an answer.
    fn numa_error(&self, topology: &Topology) -> PlacementError {
        let nodes: BTreeSet<_> =
            self.required.iter().map(|&position| topology.device(position).numa_node).collect();
        if nodes.len() > 1 {
            return PlacementError::RequiredOnSeveralNumaNodes;
        }
        let available_on_node = |node: Option<u32>| {
            let is_on = |position: &&usize| topology.device(**position).numa_node == node;
            let has_required = self.required.iter().all(|position| is_on(&position));
            if has_required { self.available.iter().filter(is_on).count() } else { 0 }
        };
        let nodes = self.numa_nodes(topology).into_iter().flatten();
        let available = nodes.map(|node| available_on_node(Some(node))).max().unwrap_or_default();
        PlacementError::NoNumaNode { size: self.size, available, required: self.required.len() }
    }
}

// === impl Choice ===

impl Choice {
    fn of(topology: &Topology, result: &SearchResult) -> Self {
        Self {
            devices: topology.ids(&result.positions),
            connections: Connections::of_positions(topology, &result.positions),
            score: result.score,
            steps: result.steps,
            exact: result.exact,
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
