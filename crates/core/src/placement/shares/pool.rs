//! Replicas of one device during the choice.

use std::cmp::Ordering;

use super::{Policy, Share, SharedDevice};
use crate::{device::DeviceId, replica::ReplicaId};

/// Replicas of one device during the choice.
#[derive(Debug)]
pub(super) struct Pool {
    /// Position in the topology.
    pub(super) position: usize,
    /// Number of replicas that other containers hold.
    pub(super) in_use: usize,
    /// Numbers of the free replicas, ascending.
    pub(super) free: Vec<u32>,
    chosen: Vec<u32>,
}

// === impl Pool ===

impl Pool {
    pub(super) fn new(position: usize, shared: &SharedDevice<'_>) -> Self {
        let mut free = shared.free.to_vec();
        free.sort_unstable();
        free.dedup();
        Self { position, in_use: shared.in_use, free, chosen: Vec::new() }
    }

    /// Order of two devices for the next replica. Spreading policies prefer devices that the container does not have
    /// yet; packing policies prefer devices that it has.
    pub(super) fn compare(a: &Self, b: &Self, policy: Policy) -> Ordering {
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
            Policy::First => a.position.cmp(&b.position),
        }
    }

    fn load(&self) -> usize {
        self.in_use + self.chosen.len()
    }

    pub(super) fn available(&self) -> usize {
        self.free.len() + self.chosen.len()
    }

    pub(super) fn chosen(&self) -> usize {
        self.chosen.len()
    }

    pub(super) fn has_chosen(&self) -> bool {
        !self.chosen.is_empty()
    }

    /// Takes the replica of a number; `None` if it is not free.
    pub(super) fn take_number(&mut self, number: u32) -> Option<()> {
        let position = self.free.binary_search(&number).ok()?;
        self.chosen.push(self.free.remove(position));
        Some(())
    }

    /// Takes the free replicas with the lowest numbers.
    pub(super) fn take(&mut self, count: usize) {
        self.chosen.extend(self.free.drain(..count));
    }

    pub(super) fn replicas(&self, device: &DeviceId) -> impl Iterator<Item = ReplicaId> {
        let mut numbers = self.chosen.clone();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| ReplicaId { device: device.clone(), number })
    }

    pub(super) fn share(&self, device: &DeviceId) -> Share {
        Share { device: device.clone(), chosen: self.chosen.len(), in_use: self.in_use }
    }
}
