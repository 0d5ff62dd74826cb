//! Which shares of shared devices serve a request.
//!
//! The policy decides first; a required replica counts as a pick. Devices that are equal for it are
//! told apart by their connections to the container's other devices, then by the inventory's order, so
//! that equal questions get equal answers.

mod explain;
mod fill;
mod limit;
mod pool;

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

pub use explain::{Next, ShareExplanation, ShareState, explain};

use super::{Connections, Policy, Topology};
use crate::{device::DeviceId, replica::ReplicaId};
use fill::Filling;
use pool::Pool;

/// How many devices the replicas of one container may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Span {
    /// As many as the policy takes.
    #[default]
    AnyDevices,
    /// One: a client of an MPS daemon has all its parts of one GPU.
    OneDevice,
}

/// A device and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct SharedDevice<'a> {
    /// Its id. A device that the topology does not know is not there any more, and gives nothing.
    pub id: &'a str,
    /// The numbers of its replicas that may be chosen.
    pub free: &'a [u32],
    /// How many of its replicas other containers hold.
    pub in_use: usize,
}

/// What is asked: `size` of the free replicas, the required ones among them.
#[derive(Clone, Copy, Debug)]
pub struct ShareRequest<'a> {
    /// Devices to choose from, each once.
    pub devices: &'a [SharedDevice<'a>],
    /// Replicas that the answer must hold; a subset of the free ones.
    pub required: &'a [ReplicaId],
    /// Ids of other devices that the container gets: of devices that are equal for the policy, those near
    /// them are chosen. One that the topology does not know is near nothing.
    pub near: &'a [&'a str],
    /// How many replicas the answer has.
    pub size: usize,
    /// Which devices are filled first.
    pub policy: Policy,
    /// How many devices the answer may name.
    pub span: Span,
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareChoice {
    /// The chosen replicas, in the inventory's order, then by number.
    pub replicas: Vec<ReplicaId>,
    /// What each device gives, in the same order.
    pub shares: Vec<Share>,
    /// How the devices are connected.
    pub connections: Connections,
    /// Which devices were filled first.
    pub policy: Policy,
    /// How many branches the search for the best connected devices looked at.
    pub steps: u64,
    /// Whether no other devices are better connected; otherwise they are the best found within the
    /// bound.
    pub exact: bool,
}

/// What one device gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The device.
    pub device: DeviceId,
    /// How many of its replicas were chosen.
    pub chosen: usize,
    /// How many of its replicas other containers hold.
    pub in_use: usize,
}

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// Nothing is asked for.
    #[error("a choice of 0 replicas was asked for")]
    Nothing,
    /// More than there is.
    #[error("{size} replicas were asked for and {available} are available")]
    TooFew {
        /// How many are asked for.
        size: usize,
        /// How many there are.
        available: usize,
    },
    /// More must be in the answer than it has places.
    #[error("{required} replicas are required in a choice of {size}")]
    TooManyRequired {
        /// How many are asked for.
        size: usize,
        /// How many must be among them.
        required: usize,
    },
    /// A required replica cannot be had.
    #[error("required replica {0} is not among the available ones")]
    RequiredUnavailable(ReplicaId),
    /// The required replicas contradict the rule that all are of one device.
    #[error("replicas of one device were asked for, and the required ones are of {0} devices")]
    RequiredOnSeveral(usize),
    /// No device has enough left by itself.
    #[error("{size} replicas of one device were asked for and none has more than {most} available")]
    TooFewOnOne {
        /// How many are asked for.
        size: usize,
        /// The most that one device could give.
        most: usize,
    },
    /// The required replicas contradict the rule that all are of one NUMA node.
    #[error("replicas of one NUMA node were asked for, and the required ones are on several")]
    RequiredOnNodes,
    /// No NUMA node has enough left; of those that have the required replicas, if there are any.
    #[error(
        "{size} replicas of one NUMA node were asked for, and none has more than {most} available"
    )]
    NoNumaNode {
        /// How many are asked for.
        size: usize,
        /// The most that one node could give.
        most: usize,
    },
}

/// Chooses replicas.
pub fn choose(topology: &Topology, request: ShareRequest<'_>) -> Result<ShareChoice, ShareError> {
    Ok(ShareChoice::of(&filled(topology, request)?))
}

/// The devices with what is chosen of each.
fn filled<'a>(
    topology: &'a Topology,
    request: ShareRequest<'_>,
) -> Result<Filling<'a>, ShareError> {
    let ShareRequest { size, policy, span, .. } = request;
    let mut pools = pools(topology, request.devices);
    let required = take_required(topology, &mut pools, request.required)?;
    check_size(&pools, required, size)?;
    // One device is on one node.
    let pools = match (span, policy) {
        (Span::OneDevice, _) => limit::that_suffice_alone(pools, size)?,
        (Span::AnyDevices, Policy::NumaStrict) => limit::of_one_node(topology, pools, size)?,
        (Span::AnyDevices, _) => pools,
    };
    let near = request.near.iter().filter_map(|id| topology.position(id));
    let near = super::ascending(near.collect());
    let mut filling = Filling::new(topology, pools, (policy, span), near);
    filling.fill(size - required);
    Ok(filling)
}

/// The inventory's order, whatever the caller's; each device and each number once.
fn pools(topology: &Topology, devices: &[SharedDevice<'_>]) -> Vec<Pool> {
    let pool = |device: &SharedDevice<'_>| Some(Pool::new(topology.position(device.id)?, device));
    let mut pools: Vec<_> = devices.iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.at);
    pools.dedup_by_key(|pool| pool.at);
    pools
}

/// Takes the required replicas first and counts them.
fn take_required(
    topology: &Topology,
    pools: &mut [Pool],
    required: &[ReplicaId],
) -> Result<usize, ShareError> {
    let required: BTreeSet<&ReplicaId> = required.iter().collect();
    for replica in &required {
        let at = topology.position(replica.device.as_str());
        let place = at.and_then(|at| pools.binary_search_by_key(&at, |pool| pool.at).ok());
        place
            .and_then(|place| pools[place].take_number(replica.number))
            .ok_or_else(|| ShareError::RequiredUnavailable((*replica).clone()))?;
    }
    Ok(required.len())
}

fn check_size(pools: &[Pool], required: usize, size: usize) -> Result<(), ShareError> {
    let available: usize = pools.iter().map(Pool::available).sum();
    match size {
        0 => Err(ShareError::Nothing),
        _ if size > available => Err(ShareError::TooFew { size, available }),
        _ if size < required => Err(ShareError::TooManyRequired { size, required }),
        _ => Ok(()),
    }
}

// === impl ShareChoice ===

impl ShareChoice {
    fn of(filling: &Filling<'_>) -> Self {
        let topology = filling.topology;
        let held: Vec<_> = filling.pools.iter().filter(|pool| pool.is_held()).collect();
        let devices: Vec<_> = held.iter().map(|pool| pool.at).collect();
        let with_id = || held.iter().map(|pool| (pool, topology.id(pool.at)));
        Self {
            replicas: with_id().flat_map(|(pool, id)| pool.replicas(id)).collect(),
            shares: with_id().map(|(pool, id)| pool.share(id)).collect(),
            connections: Connections::of(topology, &devices),
            policy: filling.policy,
            steps: filling.steps,
            exact: filling.exact,
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
