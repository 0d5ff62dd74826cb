//! Which GPUs and NICs should serve a request together: each GPU with a NIC that is near.
//!
//! The GPUs among themselves are connected best over their links, which are faster than any NIC; then
//! the pairs of GPU and NIC are as near as can be, the farthest pair counting first, since a collective
//! operation waits for its slowest rank; only then PCIe between GPUs counts. Of equals those are taken
//! that leave GPUs and NICs to others as near to each other as can be.

mod bound;
mod junctions;
mod loads;
mod pairing;
mod problem;
mod search;
mod tally;

use std::fmt;

use serde::Serialize;

use super::{Choice, Connections, PlacementError, Policy, Question, Request, Score, Topology};
use crate::{device::DeviceId, topology::PcieLevel};
use junctions::RUNGS;
use problem::JointProblem;
use search::Found;

/// What is asked: GPUs, NICs, and how near they must be.
#[derive(Clone, Copy, Debug)]
pub struct JointRequest<'a> {
    /// The GPUs, or parts of GPUs.
    pub gpus: Wanted<'a>,
    /// The NICs.
    pub nics: Wanted<'a>,
    /// How near the GPU and the NIC of each pair must be.
    pub alignment: Alignment,
}

/// How many devices of one kind, and of which.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Ids of the devices to choose from. One that the topology does not know is not there any more,
    /// and counts as not available.
    pub available: &'a [&'a str],
    /// Ids that the answer must hold; a subset of the available.
    pub required: &'a [&'a str],
    /// How many the answer has.
    pub size: usize,
}

/// How near GPUs and NICs must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// As near as can be had.
    #[default]
    Preferred,
    /// No pair farther apart than this, or no answer.
    Required(PcieLevel),
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JointChoice {
    /// The chosen GPUs, in the inventory's order.
    pub gpus: Vec<DeviceId>,
    /// The chosen NICs, in the inventory's order.
    pub nics: Vec<DeviceId>,
    /// Which go together, by GPU, then by NIC. Every device is in one, those of the less numerous kind
    /// in as many as is even. None where one kind was not asked for.
    pub pairs: Vec<Pair>,
    /// How the GPUs are connected among themselves; the NICs where no GPU was asked for.
    pub connections: Connections,
    /// What the choice is worth.
    pub score: Score,
    /// How many branches the search looked at.
    pub steps: u64,
    /// Whether no other choice is better; otherwise it is the best found: within the bound of the
    /// search, or on a machine whose levels form no tree.
    pub exact: bool,
}

/// A GPU and a NIC that go together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// The GPU.
    pub gpu: DeviceId,
    /// The NIC.
    pub nic: DeviceId,
    /// Where they meet.
    pub level: PcieLevel,
}

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JointError {
    /// Nothing is asked for.
    #[error("neither GPUs nor NICs were asked for")]
    Nothing,
    /// The GPUs cannot be had.
    #[error("GPUs: {0}")]
    Gpus(PlacementError),
    /// The NICs cannot be had.
    #[error("NICs: {0}")]
    Nics(PlacementError),
    /// One device is to be both.
    #[error("{0} is named among the GPUs and among the NICs")]
    Both(DeviceId),
    /// Some pair would be farther apart than is allowed.
    #[error(
        "{gpus} GPUs and {nics} NICs were asked for, paired within {within}; the nearest that can be \
         had is {nearest}"
    )]
    TooFar {
        /// How many GPUs are asked for.
        gpus: usize,
        /// How many NICs.
        nics: usize,
        /// How near every pair must be.
        within: PcieLevel,
        /// How near every pair can be.
        nearest: PcieLevel,
    },
}

/// Chooses GPUs and NICs together.
///
/// # Flow
///
/// Of all sets of GPUs and NICs of the sizes asked for that hold the required ones, the best by the terms
/// of the score, compared in order; then the lowest positions, of the GPUs first. Where no NIC is asked
/// for, or no GPU, it is [`super::choose`] with the aligned policy.
///
/// # Guarantees
///
/// Equal questions get equal answers, in whatever order the devices are named. Every pair is within the
/// alignment's level.
///
/// # Errors
///
/// Numbers that cannot be met, required devices that are not available, a device named as both kinds,
/// and with [`Alignment::Required`] a level that cannot be had, with the nearest that can.
pub fn choose_joint(
    topology: &Topology,
    request: JointRequest<'_>,
) -> Result<JointChoice, JointError> {
    let JointRequest { gpus, nics, alignment } = request;
    match (gpus.size, nics.size) {
        (0, 0) => return Err(JointError::Nothing),
        (_, 0) => {
            nics.none().map_err(JointError::Nics)?;
            return gpus.alone(topology).map(JointChoice::of_gpus).map_err(JointError::Gpus);
        }
        (0, _) => {
            gpus.none().map_err(JointError::Gpus)?;
            return nics.alone(topology).map(JointChoice::of_nics).map_err(JointError::Nics);
        }
        _ => {}
    }
    let problem = read(topology, gpus, nics)?;
    let found = alignment.best(topology, &problem)?;
    Ok(JointChoice::of(topology, &problem, found))
}

fn read(
    topology: &Topology,
    gpus: Wanted<'_>,
    nics: Wanted<'_>,
) -> Result<JointProblem, JointError> {
    let gpus = gpus.read(topology).map_err(JointError::Gpus)?;
    let nics = nics.read(topology).map_err(JointError::Nics)?;
    match gpus.available.iter().find(|at| nics.available.binary_search(at).is_ok()) {
        Some(&both) => Err(JointError::Both(topology.id(both).clone())),
        None => Ok(JointProblem::new(topology, &gpus, &nics)),
    }
}

// === impl Wanted ===

impl<'a> Wanted<'a> {
    fn request(self) -> Request<'a> {
        let Self { available, required, size } = self;
        Request { available, required, near: &[], size, policy: Policy::Aligned }
    }

    fn read(self, topology: &Topology) -> Result<Question, PlacementError> {
        Question::read(topology, self.request())
    }

    fn alone(self, topology: &Topology) -> Result<Choice, PlacementError> {
        super::choose(topology, self.request())
    }

    /// That nothing is wanted.
    fn none(self) -> Result<(), PlacementError> {
        match self.required.len() {
            0 => Ok(()),
            required => Err(PlacementError::TooManyRequired { size: 0, required }),
        }
    }
}

// === impl Alignment ===

impl Alignment {
    /// The best choice that is near enough.
    fn best(self, topology: &Topology, problem: &JointProblem) -> Result<Found, JointError> {
        let Some((within, rung)) = self.rung() else {
            return Ok(search::best_choice(problem, None));
        };
        if problem.junctions.is_tree {
            return match problem.division(rung) {
                Some(shares) => Ok(search::best_choice(problem, Some((rung, &shares)))),
                None => Err(JointError::too_far(problem, within, nearest(problem))),
            };
        }
        // Without a tree the junctions do not tell what can be had, but what is found does.
        let found = search::best_choice(problem, None);
        let pairs = pairing::pairs(&problem.junctions, (&found.gpus, &found.nics));
        let levels = pairs.into_iter().map(|(gpu, nic)| topology.connection(gpu, nic).pcie);
        match levels.max().unwrap_or(PcieLevel::Sys) {
            farthest if farthest <= within => Ok(found),
            farthest => Err(JointError::too_far(problem, within, farthest)),
        }
    }

    /// The level that all pairs must be within, and its rung; `None` for any.
    fn rung(self) -> Option<(PcieLevel, usize)> {
        let Self::Required(within) = self else { return None };
        let rung = RUNGS.iter().position(|&level| level == within)?;
        Some((within, rung))
    }
}

/// The nearest level that all pairs can be within.
fn nearest(problem: &JointProblem) -> PcieLevel {
    problem.nearest_rung().map_or(PcieLevel::Sys, |rung| RUNGS[rung])
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
    fn of(topology: &Topology, problem: &JointProblem, found: Found) -> Self {
        let Found { gpus, nics, score, steps, exact } = found;
        let pairs = pairing::pairs(&problem.junctions, (&gpus, &nics));
        let pair = |(gpu, nic)| Pair {
            gpu: topology.id(gpu).clone(),
            nic: topology.id(nic).clone(),
            level: topology.connection(gpu, nic).pcie,
        };
        Self {
            gpus: topology.ids(&gpus),
            nics: topology.ids(&nics),
            pairs: pairs.into_iter().map(pair).collect(),
            connections: Connections::of(topology, &gpus),
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

    /// The farthest level of its pairs; `None` where there are none.
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
