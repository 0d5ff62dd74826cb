//! Which shares of shared devices serve a request.
//!
//! The policy decides first; a required replica counts as a pick. Devices that are equal for it are
//! told apart by their connections to the container's other devices, then by the inventory's order, so
//! that equal questions get equal answers.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::{
    Connections, Policy, Topology,
    policy::SHARED,
    problem::{Positions, Problem},
    remaining, search,
};
use crate::{device::DeviceId, replica::ReplicaId};

/// How many devices the replicas of one container may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Span {
    /// As many as the spread takes.
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
    /// No NUMA node has enough left, or the required replicas are on several.
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

/// A device while the choice is made.
struct Pool {
    /// Its position in the topology.
    at: usize,
    in_use: usize,
    /// Ascending numbers, not chosen yet.
    free: Vec<u32>,
    chosen: Vec<u32>,
}

/// Chooses replicas.
pub fn choose(topology: &Topology, request: ShareRequest<'_>) -> Result<ShareChoice, ShareError> {
    let mut pools = pools(topology, request.devices);
    let required = take_required(topology, &mut pools, request.required)?;
    check_size(&pools, required, request.size)?;
    // One device is on one node.
    match (request.span, request.policy) {
        (Span::OneDevice, _) => pools = those_that_suffice_alone(pools, request.size)?,
        (Span::AnyDevices, Policy::NumaStrict) => {
            pools = those_of_one_node(topology, pools, request.size)?;
        }
        (Span::AnyDevices, _) => {}
    }
    fill(topology, &mut pools, request, request.size - required);
    Ok(ShareChoice::of(topology, &pools, request.policy))
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

fn those_that_suffice_alone(mut pools: Vec<Pool>, size: usize) -> Result<Vec<Pool>, ShareError> {
    match pools.iter().filter(|pool| pool.is_held()).count() {
        0 => {}
        1 => pools.retain(Pool::is_held),
        several => return Err(ShareError::RequiredOnSeveral(several)),
    }
    let most = pools.iter().map(Pool::available).max().unwrap_or_default();
    pools.retain(|pool| pool.available() >= size);
    if pools.is_empty() { Err(ShareError::TooFewOnOne { size, most }) } else { Ok(pools) }
}

/// The devices of the NUMA node that has the most left, of those that have the required replicas. Where
/// the machine tells no node it is taken for one.
fn those_of_one_node(
    topology: &Topology,
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    let node_of = |pool: &Pool| topology.spot(pool.at).numa_node;
    let mut left: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for pool in &pools {
        *left.entry(node_of(pool)).or_default() += pool.available();
    }
    let untold = left.len() == 1;
    let held: BTreeSet<_> = pools.iter().filter(|pool| pool.is_held()).map(node_of).collect();
    left.retain(|node, _| (untold || node.is_some()) && held.iter().all(|held| held == node));
    let best = left.into_iter().max_by_key(|(node, left)| (*left, Reverse(*node)));
    let (node, most) = best.unwrap_or_default();
    if most < size {
        return Err(ShareError::NoNumaNode { size, most });
    }
    pools.retain(|pool| node_of(pool) == node);
    Ok(pools)
}

/// Takes from the devices whose turn it is until nothing is missing: one of each where the load is
/// spread, all that each has left where it is not.
fn fill(topology: &Topology, pools: &mut [Pool], request: ShareRequest<'_>, mut missing: usize) {
    while missing > 0 {
        let equals = whose_turn(pools, request.policy);
        let portion = match (request.span, request.policy) {
            (Span::OneDevice, _) => missing,
            (Span::AnyDevices, Policy::Packed | Policy::First) => pools[equals[0]].free.len(),
            (Span::AnyDevices, _) => 1,
        };
        for place in best_connected(topology, pools, equals, missing.div_ceil(portion)) {
            let count = portion.min(missing);
            pools[place].take(count);
            missing -= count;
        }
    }
}

/// The devices that come next, all equal for the policy.
fn whose_turn(pools: &[Pool], policy: Policy) -> Vec<usize> {
    let open = || pools.iter().enumerate().filter(|(_, pool)| !pool.free.is_empty());
    let (_, first) = open()
        .min_by(|(_, a), (_, b)| Pool::compare(a, b, policy))
        .expect("no more is asked for than is available");
    let equals = open().filter(|(_, pool)| Pool::compare(pool, first, policy).is_eq());
    equals.map(|(place, _)| place).collect()
}

/// As many of the equals as are asked for, or all: those that go best with each other and with the
/// devices that the container has already.
fn best_connected(
    topology: &Topology,
    pools: &[Pool],
    mut equals: Vec<usize>,
    count: usize,
) -> Vec<usize> {
    if count < equals.len() && !pools[equals[0]].is_held() {
        let held = (0..pools.len()).filter(|&place| pools[place].is_held());
        let required: Vec<_> = held.map(|place| pools[place].at).collect();
        let mut open: Vec<_> = equals.iter().map(|&place| &pools[place]).collect();
        open.extend(pools.iter().filter(|pool| pool.is_held()));
        open.sort_by_key(|pool| pool.at);
        let available: Vec<_> = open.iter().map(|pool| pool.at).collect();
        let shares: Vec<_> = open.iter().map(|pool| remaining::count(pool.in_use)).collect();
        let positions =
            Positions { available: &available, required: &required, near: &[], shares: &shares };
        let size = required.len() + count;
        let problem = Problem::new(topology, positions, size, SHARED, |_| true);
        let set = search::best_set(&problem).positions;
        equals.retain(|&place| set.binary_search(&pools[place].at).is_ok());
    }
    equals.truncate(count);
    equals
}

// === impl Pool ===

impl Pool {
    fn new(at: usize, shared: &SharedDevice<'_>) -> Self {
        let mut free = shared.free.to_vec();
        free.sort_unstable();
        free.dedup();
        Self { at, in_use: shared.in_use, free, chosen: Vec::new() }
    }

    /// Which of two devices comes first. A device that the container does not have yet is preferred
    /// where the load is spread, one that it has where it is packed.
    fn compare(a: &Self, b: &Self, policy: Policy) -> Ordering {
        match policy {
            Policy::Distributed | Policy::NumaStrict => {
                let load = |pool: &Self| (pool.load(), pool.chosen.len());
                load(a).cmp(&load(b))
            }
            Policy::Packed => {
                let load = |pool: &Self| (pool.load(), pool.chosen.len(), pool.free.len());
                load(b).cmp(&load(a))
            }
            Policy::Aligned => a.chosen.len().cmp(&b.chosen.len()),
            Policy::First => a.at.cmp(&b.at),
        }
    }

    fn load(&self) -> usize {
        self.in_use + self.chosen.len()
    }

    fn available(&self) -> usize {
        self.free.len() + self.chosen.len()
    }

    fn is_held(&self) -> bool {
        !self.chosen.is_empty()
    }

    fn take_number(&mut self, number: u32) -> Option<()> {
        let position = self.free.binary_search(&number).ok()?;
        self.chosen.push(self.free.remove(position));
        Some(())
    }

    fn take(&mut self, count: usize) {
        self.chosen.extend(self.free.drain(..count));
    }

    fn replicas(&self, device: &DeviceId) -> impl Iterator<Item = ReplicaId> {
        let mut numbers = self.chosen.clone();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| ReplicaId { device: device.clone(), number })
    }

    fn share(&self, device: &DeviceId) -> Share {
        Share { device: device.clone(), chosen: self.chosen.len(), in_use: self.in_use }
    }
}

// === impl ShareChoice ===

impl ShareChoice {
    fn of(topology: &Topology, pools: &[Pool], policy: Policy) -> Self {
        let held: Vec<_> = pools.iter().filter(|pool| pool.is_held()).collect();
        let devices: Vec<_> = held.iter().map(|pool| pool.at).collect();
        let with_id = || held.iter().map(|pool| (pool, topology.id(pool.at)));
        Self {
            replicas: with_id().flat_map(|(pool, id)| pool.replicas(id)).collect(),
            shares: with_id().map(|(pool, id)| pool.share(id)).collect(),
            connections: Connections::of(topology, &devices),
            policy,
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
