//! Replica placement: shares of shared devices for a request.
//!
//! The policy decides first; required replicas count as chosen. Connections to the container's other devices
//! break ties, then the inventory's order. Deterministic.

mod explain;
mod fill;
mod limit;
mod pool;

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

pub use explain::{NextDevice, ShareExplanation, ShareState, explain};

use super::{Connections, Policy, Topology};
use crate::{device::DeviceId, replica::ReplicaId};
use fill::FillState;
use pool::Pool;

/// Number of devices that one container's replicas may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Span {
    /// Any number, as the policy decides.
    #[default]
    AnyDevices,
    /// One device: an MPS client has all its shares on one GPU.
    OneDevice,
}

/// A shared device with its free replicas.
#[derive(Clone, Copy, Debug)]
pub struct SharedDevice<'a> {
    /// Device id. Ids outside the topology belong to removed devices and have no replicas.
    pub id: &'a str,
    /// Numbers of its free replicas.
    pub free: &'a [u32],
    /// Number of its replicas that other containers hold.
    pub in_use: usize,
}

/// A replica request: `size` of the free replicas, including the required ones.
#[derive(Clone, Copy, Debug)]
pub struct ShareRequest<'a> {
    /// Candidates, each once.
    pub devices: &'a [SharedDevice<'a>],
    /// Replicas that the answer must contain; a subset of the free ones.
    pub required: &'a [ReplicaId],
    /// Ids of the container's other devices, which break ties of the policy. Ids outside the topology are
    /// ignored.
    pub near: &'a [&'a str],
    /// Number of replicas in the answer.
    pub size: usize,
    /// Objective.
    pub policy: Policy,
    /// Permitted number of devices in the answer.
    pub span: Span,
}

/// Chosen replicas with their reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareChoice {
    /// Chosen replicas, in the inventory's order, then by number.
    pub replicas: Vec<ReplicaId>,
    /// Share of each device, in the same order.
    pub shares: Vec<Share>,
    /// Connections among the devices.
    pub connections: Connections,
    /// Objective.
    pub policy: Policy,
    /// Number of branches that the search for connected devices visited.
    pub steps: u64,
    /// True if no devices are better connected; false if the search stopped at its work limit.
    pub exact: bool,
}

/// Share of one device in a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The device.
    pub device: DeviceId,
    /// Number of its chosen replicas.
    pub chosen: usize,
    /// Number of its replicas that other containers hold.
    pub in_use: usize,
}

/// Reason why a replica request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The request is for no replica.
    #[error("0 replicas requested")]
    EmptyRequest,
    /// The request exceeds the available replicas.
    #[error("{size} replicas requested, {available} available")]
    TooFew {
        /// Requested number.
        size: usize,
        /// Available number.
        available: usize,
    },
    /// More replicas are required than requested.
    #[error("{required} replicas are required in a choice of {size}")]
    TooManyRequired {
        /// Requested number.
        size: usize,
        /// Required number.
        required: usize,
    },
    /// A required replica is unavailable.
    #[error("required replica {0} is not among the available ones")]
    RequiredUnavailable(ReplicaId),
    /// The required replicas are on several devices, although one is permitted.
    #[error("replicas of one device requested, and the required ones are of {0} devices")]
    RequiredOnSeveralDevices(usize),
    /// No single device has enough replicas.
    #[error(
        "{size} replicas of one device requested, and none has more than {available} available"
    )]
    TooFewOnOneDevice {
        /// Requested number.
        size: usize,
        /// The most that one device has.
        available: usize,
    },
    /// The required replicas are on several NUMA nodes.
    #[error("replicas of one NUMA node requested, and the required ones are on several")]
    RequiredOnSeveralNumaNodes,
    /// No NUMA node with the required replicas has enough.
    #[error(
        "{size} replicas of one NUMA node requested, and none has more than {available} available"
    )]
    NoNumaNode {
        /// Requested number.
        size: usize,
        /// The most that one node has.
        available: usize,
    },
}

/// Chooses replicas.
pub fn choose(topology: &Topology, request: ShareRequest<'_>) -> Result<ShareChoice, ShareError> {
    Ok(ShareChoice::of(&filled(topology, request)?))
}

/// Candidates with their chosen replicas.
fn filled<'a>(
    topology: &'a Topology,
    request: ShareRequest<'_>,
) -> Result<FillState<'a>, ShareError> {
    let ShareRequest { size, policy, span, .. } = request;
    let mut pools = pools(topology, request.devices);
    let required = take_required(topology, &mut pools, request.required)?;
    check_size(&pools, required, size)?;
    // A single device is on a single NUMA node, so the span suffices.
    let pools = match (span, policy) {
        (Span::OneDevice, _) => limit::restrict_to_one_device(pools, size)?,
        (Span::AnyDevices, Policy::NumaStrict) => {
            limit::restrict_to_one_node(topology, pools, size)?
        }
        (Span::AnyDevices, _) => pools,
    };
    let near = request.near.iter().filter_map(|id| topology.position(id));
    let near = super::ascending(near.collect());
    let mut fill_state = FillState::new(topology, pools, policy, span, near);
    fill_state.fill(size - required);
    Ok(fill_state)
}

/// Candidates in the inventory's order, without duplicates.
fn pools(topology: &Topology, devices: &[SharedDevice<'_>]) -> Vec<Pool> {
    let pool = |device: &SharedDevice<'_>| Some(Pool::new(topology.position(device.id)?, device));
    let mut pools: Vec<_> = devices.iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.position);
    pools.dedup_by_key(|pool| pool.position);
    pools
}

/// Takes the required replicas and counts them.
fn take_required(
    topology: &Topology,
    pools: &mut [Pool],
    required: &[ReplicaId],
) -> Result<usize, ShareError> {
    let required: BTreeSet<&ReplicaId> = required.iter().collect();
    for replica in &required {
        let position = topology.position(replica.device.as_str());
        let index = position
            .and_then(|position| pools.binary_search_by_key(&position, |pool| pool.position).ok());
        index
            .and_then(|index| pools[index].take_number(replica.number))
            .ok_or_else(|| ShareError::RequiredUnavailable((*replica).clone()))?;
    }
    Ok(required.len())
}

fn check_size(pools: &[Pool], required: usize, size: usize) -> Result<(), ShareError> {
    let available: usize = pools.iter().map(Pool::available).sum();
    match size {
        0 => Err(ShareError::EmptyRequest),
        _ if size > available => Err(ShareError::TooFew { size, available }),
        _ if size < required => Err(ShareError::TooManyRequired { size, required }),
        _ => Ok(()),
    }
}

// === impl ShareChoice ===

impl ShareChoice {
    fn of(fill_state: &FillState<'_>) -> Self {
        let topology = fill_state.topology;
        let chosen: Vec<_> = fill_state.pools.iter().filter(|pool| pool.has_chosen()).collect();
        let devices: Vec<_> = chosen.iter().map(|pool| pool.position).collect();
        let pools_with_id = || chosen.iter().map(|pool| (pool, topology.id(pool.position)));
        Self {
            replicas: pools_with_id().flat_map(|(pool, id)| pool.replicas(id)).collect(),
            shares: pools_with_id().map(|(pool, id)| pool.share(id)).collect(),
            connections: Connections::of_positions(topology, &devices),
            policy: fill_state.policy,
            steps: fill_state.steps,
            exact: fill_state.exact,
        }
    }
}

impl fmt::Display for ShareChoice {
    /// `2 of GPU-a (0 in use), 1 of GPU-b (1 in use): distributed, the pair over NV18, NUMA node 0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<_> = self.shares.iter().map(Share::to_string).collect();
        write!(f, "{}: {}, {}", shares.join(", "), self.policy, self.connections)
    }
}

// === impl Share ===

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({} in use)", self.chosen, self.device, self.in_use)
    }
}

#[cfg(test)]
mod tests;
