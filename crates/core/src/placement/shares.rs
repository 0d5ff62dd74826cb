//! Which shares of shared devices serve a request.
//!
//! The spread decides first; a required replica counts as a pick. Devices that are equal for it are
//! told apart by their connections to the container's other devices, then by the inventory's order, so
//! that equal questions get equal answers.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use crate::{
    device::{Device, DeviceId},
    placement::{self, Connections},
    replica::ReplicaId,
};

/// Which devices are filled first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Those with the fewest replicas in use, those that the container takes included.
    #[default]
    Distributed,
    /// Those with the most replicas in use, so that others stay free.
    Packed,
}

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
    /// The device.
    pub device: &'a Device,
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
    pub spread: Spread,
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
    pub spread: Spread,
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
}

/// A device while the choice is made.
struct Pool<'a> {
    device: &'a Device,
    in_use: usize,
    /// Ascending numbers, not chosen yet.
    free: Vec<u32>,
    chosen: Vec<u32>,
}

/// Chooses replicas.
pub fn choose(request: ShareRequest<'_>) -> Result<ShareChoice, ShareError> {
    let mut pools = pools(request.devices);
    let required = take_required(&mut pools, request.required)?;
    check_size(&pools, required, request.size)?;
    if request.span == Span::OneDevice {
        pools = those_that_suffice_alone(pools, request.size)?;
    }
    fill(&mut pools, request, request.size - required);
    Ok(ShareChoice::of(&pools, request.spread))
}

/// The inventory's order, whatever the caller's; each device and each number once.
fn pools<'a>(devices: &[SharedDevice<'a>]) -> Vec<Pool<'a>> {
    let mut devices = devices.to_vec();
    devices.sort_by(|a, b| a.device.order().cmp(&b.device.order()));
    devices.dedup_by(|a, b| a.device.id == b.device.id);
    devices.into_iter().map(Pool::new).collect()
}

/// Takes the required replicas first and counts them.
fn take_required<'a>(pools: &mut [Pool<'a>], required: &[ReplicaId]) -> Result<usize, ShareError> {
    let required: BTreeSet<&ReplicaId> = required.iter().collect();
    let positions: BTreeMap<&'a DeviceId, usize> =
        pools.iter().enumerate().map(|(position, pool)| (&pool.device.id, position)).collect();
    for replica in &required {
        positions
            .get(&replica.device)
            .and_then(|&position| pools[position].take_number(replica.number))
            .ok_or_else(|| ShareError::RequiredUnavailable((*replica).clone()))?;
    }
    Ok(required.len())
}

fn check_size(pools: &[Pool<'_>], required: usize, size: usize) -> Result<(), ShareError> {
    let available: usize = pools.iter().map(Pool::available).sum();
    match size {
        0 => Err(ShareError::Nothing),
        _ if size > available => Err(ShareError::TooFew { size, available }),
        _ if size < required => Err(ShareError::TooManyRequired { size, required }),
        _ => Ok(()),
    }
}

fn those_that_suffice_alone(
    mut pools: Vec<Pool<'_>>,
    size: usize,
) -> Result<Vec<Pool<'_>>, ShareError> {
    match pools.iter().filter(|pool| pool.is_held()).count() {
        0 => {}
        1 => pools.retain(Pool::is_held),
        several => return Err(ShareError::RequiredOnSeveral(several)),
    }
    let most = pools.iter().map(Pool::available).max().unwrap_or_default();
    pools.retain(|pool| pool.available() >= size);
    if pools.is_empty() { Err(ShareError::TooFewOnOne { size, most }) } else { Ok(pools) }
}

/// Takes from the devices whose turn it is until nothing is missing: one of each where the load is
/// distributed, all that each has left where it is packed.
fn fill(pools: &mut [Pool<'_>], request: ShareRequest<'_>, mut missing: usize) {
    while missing > 0 {
        let equals = whose_turn(pools, request.spread);
        let portion = match (request.span, request.spread) {
            (Span::OneDevice, _) => missing,
            (Span::AnyDevices, Spread::Distributed) => 1,
            (Span::AnyDevices, Spread::Packed) => pools[equals[0]].free.len(),
        };
        for position in best_connected(pools, equals, missing.div_ceil(portion)) {
            let count = portion.min(missing);
            pools[position].take(count);
            missing -= count;
        }
    }
}

/// The positions of the devices that come next, all equal for the spread.
fn whose_turn(pools: &[Pool<'_>], spread: Spread) -> Vec<usize> {
    let open = || pools.iter().enumerate().filter(|(_, pool)| !pool.free.is_empty());
    let (_, first) = open()
        .min_by(|(_, a), (_, b)| spread.compare(a, b))
        .expect("no more is asked for than is available");
    let equals = open().filter(|(_, pool)| spread.compare(pool, first).is_eq());
    equals.map(|(position, _)| position).collect()
}

/// As many of the equals as are asked for, or all: those that go best with each other and with the
/// devices that the container has already.
fn best_connected(pools: &[Pool<'_>], mut equals: Vec<usize>, count: usize) -> Vec<usize> {
    if count < equals.len() && !pools[equals[0]].is_held() {
        let held = pools.iter().filter(|pool| pool.is_held()).map(|pool| pool.device);
        let mut available: Vec<&Device> = held.collect();
        let required: Vec<&str> = available.iter().map(|device| device.id.as_str()).collect();
        available.extend(equals.iter().map(|&position| pools[position].device));
        let size = required.len() + count;
        let request = placement::Request { available: &available, required: &required, size };
        let set = placement::choose(request)
            .expect("the required are available, and fewer than all are asked for");
        equals.retain(|&position| set.devices.contains(&pools[position].device.id));
    }
    equals.truncate(count);
    equals
}

// === impl Spread ===

impl Spread {
    /// Which of two devices comes first. A device that the container does not have yet is preferred
    /// where the load is distributed, one that it has where it is packed.
    fn compare(self, a: &Pool<'_>, b: &Pool<'_>) -> Ordering {
        match self {
            Self::Distributed => {
                let load = |pool: &Pool<'_>| (pool.load(), pool.chosen.len());
                load(a).cmp(&load(b))
            }
            Self::Packed => {
                let load = |pool: &Pool<'_>| (pool.load(), pool.chosen.len(), pool.free.len());
                load(b).cmp(&load(a))
            }
        }
    }
}

// === impl Pool ===

impl<'a> Pool<'a> {
    fn new(shared: SharedDevice<'a>) -> Self {
        let mut free = shared.free.to_vec();
        free.sort_unstable();
        free.dedup();
        Self { device: shared.device, in_use: shared.in_use, free, chosen: Vec::new() }
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

    fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        let mut numbers = self.chosen.clone();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| ReplicaId { device: self.device.id.clone(), number })
    }

    fn share(&self) -> Share {
        Share { device: self.device.id.clone(), chosen: self.chosen.len(), in_use: self.in_use }
    }
}

// === impl ShareChoice ===

impl ShareChoice {
    fn of(pools: &[Pool<'_>], spread: Spread) -> Self {
        let held: Vec<_> = pools.iter().filter(|pool| pool.is_held()).collect();
        let devices: Vec<_> = held.iter().map(|pool| pool.device).collect();
        Self {
            replicas: held.iter().flat_map(|pool| pool.replicas()).collect(),
            shares: held.iter().map(|pool| pool.share()).collect(),
            connections: Connections::of(&devices),
            spread,
        }
    }
}

impl fmt::Display for ShareChoice {
    /// `2 of GPU-a (0 in use), 1 of GPU-b (1 in use): distributed, the pair over NV18, NUMA node 0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<_> = self.shares.iter().map(Share::to_string).collect();
        let spread = match self.spread {
            Spread::Distributed => "distributed",
            Spread::Packed => "packed",
        };
        write!(f, "{}: {spread}, {}", shares.join(", "), self.connections)
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
