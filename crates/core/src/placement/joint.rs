//! Joint placement of GPUs and NICs: each GPU with a nearby NIC.
//!
//! Order of terms: links among GPUs, which are faster than any NIC; distance of GPU and NIC, farthest pair
//! first, since collectives wait for the slowest rank; PCIe among GPUs; distances in the remainder.

mod bound;
mod junctions;
mod loads;
mod pairing;
mod problem;
mod search;
mod tally;

use std::fmt;

use serde::Serialize;

use super::{
    Choice, Connections, PlacementError, Policy, Request, ResolvedRequest, Score, Topology,
};
use crate::{device::DeviceId, topology::PcieLevel};
use junctions::LEVELS;
use problem::JointProblem;
use search::JointResult;

/// A joint request: GPUs, NICs, and the permitted distance.
#[derive(Clone, Copy, Debug)]
pub struct JointRequest<'a> {
    /// The GPUs, or parts of GPUs.
    pub gpus: DeviceRequest<'a>,
    /// The NICs.
    pub nics: DeviceRequest<'a>,
    /// Permitted distance of GPU and NIC in each pair.
    pub alignment: Alignment,
}

/// Number and candidates of one kind of device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Candidate ids. Ids outside the topology belong to removed devices and count as unavailable.
    pub available: &'a [&'a str],
    /// Ids that the answer must contain; a subset of `available`.
    pub required: &'a [&'a str],
    /// Number of devices in the answer.
    pub size: usize,
}

/// Permitted distance of GPUs and NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// As near as possible.
    #[default]
    Preferred,
    /// No pair may be farther apart than this level.
    Required(PcieLevel),
}

/// A joint choice with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JointChoice {
    /// The chosen GPUs, in the inventory's order.
    pub gpus: Vec<DeviceId>,
    /// The chosen NICs, in the inventory's order.
    pub nics: Vec<DeviceId>,
    /// Pairs, sorted by GPU, then by NIC. Every device is in at least one pair. Devices of the less numerous kind may
    /// be in several pairs, as evenly as possible. Empty if only one kind was requested.
    pub pairs: Vec<Pair>,
    /// Connections among the GPUs, or among the NICs without GPUs.
    pub connections: Connections,
    /// Score of the choice.
    pub score: Score,
    /// Number of branches that the search visited.
    pub steps: u64,
    /// True if no choice is better. False if the search stopped at its work limit, or if PCIe levels form no tree.
    pub exact: bool,
}

/// A GPU and its NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// The GPU.
    pub gpu: DeviceId,
    /// The NIC.
    pub nic: DeviceId,
    /// PCIe level of the pair.
    pub level: PcieLevel,
}

/// Reason why a joint request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JointError {
    /// The request is for no device.
    #[error("neither GPUs nor NICs requested")]
    EmptyRequest,
    /// The GPUs have no answer.
    #[error("GPUs: {0}")]
    Gpus(PlacementError),
    /// The NICs have no answer.
    #[error("NICs: {0}")]
    Nics(PlacementError),
    /// One device is a candidate of both kinds.
    #[error("{0} is named both as a GPU and as a NIC")]
    InBothKinds(DeviceId),
    /// No choice keeps all pairs within the permitted distance.
    #[error(
        "{gpus} GPUs and {nics} NICs requested, paired within {within}; the nearest possible \
         level is {nearest}"
    )]
    TooFar {
        /// Requested GPUs.
        gpus: usize,
        /// Requested NICs.
        nics: usize,
        /// Permitted distance.
        within: PcieLevel,
        /// The smallest possible distance of the farthest pair.
        nearest: PcieLevel,
    },
}

/// Chooses GPUs and NICs together.
///
/// # Flow
///
/// Candidates are all sets of GPUs and NICs that have the requested sizes and contain the required devices. The
/// best one is the answer: the terms of the score are compared in order. The lowest positions break ties, GPUs
/// before NICs. A request for GPUs alone or NICs alone is [`super::choose`] with the aligned policy.
///
/// # Guarantees
///
/// Equal requests get equal answers, in any order of their ids. Every pair is within the alignment's level.
///
/// # Errors
///
/// More devices are requested than available, a required device is unavailable, one device is named as both kinds, or
/// no choice is within the level of [`Alignment::Required`]. The last error names the nearest possible level.
pub fn choose_joint(
    topology: &Topology,
    request: JointRequest<'_>,
) -> Result<JointChoice, JointError> {
    let JointRequest { gpus, nics, alignment } = request;
    match (gpus.size, nics.size) {
        (0, 0) => return Err(JointError::EmptyRequest),
        (_, 0) => {
            nics.check_no_required().map_err(JointError::Nics)?;
            return gpus.choose_alone(topology).map(JointChoice::of_gpus).map_err(JointError::Gpus);
        }
        (0, _) => {
            gpus.check_no_required().map_err(JointError::Gpus)?;
            return nics.choose_alone(topology).map(JointChoice::of_nics).map_err(JointError::Nics);
        }
        _ => {}
    }
    let problem = resolve(topology, gpus, nics)?;
    let result = alignment.best(topology, &problem)?;
    Ok(JointChoice::of(topology, &problem, result))
}

fn resolve(
    topology: &Topology,
    gpus: DeviceRequest<'_>,
    nics: DeviceRequest<'_>,
) -> Result<JointProblem, JointError> {
    let gpus = gpus.resolve(topology).map_err(JointError::Gpus)?;
    let nics = nics.resolve(topology).map_err(JointError::Nics)?;
    match gpus.available.iter().find(|position| nics.available.binary_search(position).is_ok()) {
        Some(&duplicate) => Err(JointError::InBothKinds(topology.id(duplicate).clone())),
        None => Ok(JointProblem::new(topology, &gpus, &nics)),
    }
}

// === impl DeviceRequest ===

impl<'a> DeviceRequest<'a> {
    fn request(self) -> Request<'a> {
        let Self { available, required, size } = self;
        Request { available, required, near: &[], size, policy: Policy::Aligned }
    }

    fn resolve(self, topology: &Topology) -> Result<ResolvedRequest, PlacementError> {
        ResolvedRequest::resolve(topology, self.request())
    }

    fn choose_alone(self, topology: &Topology) -> Result<Choice, PlacementError> {
        super::choose(topology, self.request())
    }

    /// Checks that a kind without requested devices has no required ones.
    fn check_no_required(self) -> Result<(), PlacementError> {
        match self.required.len() {
            0 => Ok(()),
            required => Err(PlacementError::TooManyRequired { size: 0, required }),
        }
    }
}

// === impl Alignment ===

impl Alignment {
    /// The best choice within the permitted distance.
    fn best(self, topology: &Topology, problem: &JointProblem) -> Result<JointResult, JointError> {
        let Some((within, level)) = self.required_level() else {
            return Ok(search::best_choice(problem, None));
        };
        if problem.junctions.is_tree {
            return match problem.junction_shares(level) {
                Some(shares) => Ok(search::best_choice(problem, Some((level, &shares)))),
                None => Err(JointError::too_far(problem, within, nearest(problem))),
            };
        }
        // Without a tree of junctions, the pairs of the result show the distance.
        let result = search::best_choice(problem, None);
        let pairs = pairing::pairs(&problem.junctions, &result.gpus, &result.nics);
        let levels = pairs.into_iter().map(|(gpu, nic)| topology.connection(gpu, nic).pcie);
        match levels.max().unwrap_or(PcieLevel::Sys) {
            farthest if farthest <= within => Ok(result),
            farthest => Err(JointError::too_far(problem, within, farthest)),
        }
    }

    /// The permitted distance and its level; `None` for any.
    fn required_level(self) -> Option<(PcieLevel, usize)> {
        let Self::Required(within) = self else { return None };
        let level = LEVELS.iter().position(|&distance| distance == within)?;
        Some((within, level))
    }
}

/// The smallest possible distance of the farthest pair.
fn nearest(problem: &JointProblem) -> PcieLevel {
    problem.nearest_level().map_or(PcieLevel::Sys, |level| LEVELS[level])
}

// === impl JointError ===

impl JointError {
    fn too_far(problem: &JointProblem, within: PcieLevel, nearest: PcieLevel) -> Self {
        let (gpus, nics) = (problem.gpus.size(), problem.nics.size());
        Self::TooFar { gpus, nics, within, nearest }
    }
}

// === impl JointChoice ===

impl JointChoice {
    fn of(topology: &Topology, problem: &JointProblem, result: JointResult) -> Self {
        let JointResult { gpus, nics, score, steps, exact } = result;
        let pairs = pairing::pairs(&problem.junctions, &gpus, &nics);
        let pair = |(gpu, nic)| Pair {
            gpu: topology.id(gpu).clone(),
            nic: topology.id(nic).clone(),
            level: topology.connection(gpu, nic).pcie,
        };
        Self {
            gpus: topology.ids(&gpus),
            nics: topology.ids(&nics),
            pairs: pairs.into_iter().map(pair).collect(),
            connections: Connections::of_positions(topology, &gpus),
            score,
            steps,
            exact,
        }
    }

    fn of_gpus(choice: Choice) -> Self {
        let Choice { devices, connections, score, steps, exact } = choice;
        Self {
            gpus: devices,
            nics: Vec::new(),
            pairs: Vec::new(),
            connections,
            score,
            steps,
            exact,
        }
    }

    fn of_nics(choice: Choice) -> Self {
        let mut choice = Self::of_gpus(choice);
        std::mem::swap(&mut choice.gpus, &mut choice.nics);
        choice
    }

    /// The farthest level of the pairs; `None` without pairs.
    pub fn farthest(&self) -> Option<PcieLevel> {
        self.pairs.iter().map(|pair| pair.level).max()
    }
}

impl fmt::Display for Pair {
    /// `GPU-0 and mlx5_0 over PIX`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, nic, level } = self;
        write!(f, "{gpu} and {nic} over {level}")
    }
}

#[cfg(test)]
mod tests;
