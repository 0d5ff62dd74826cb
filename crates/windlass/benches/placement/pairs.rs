//! Values of device pairs, for sets that are written as bits.

use windlass_core::topology::Connection;

use super::machines::Machine;

/// The worth of every pair of the pool.
#[derive(Debug)]
pub(crate) struct PairValues {
    devices: usize,
    values: Vec<i64>,
}

/// The places in the pool that a set of bits names, ascending.
pub(crate) fn bit_indices(set: u64) -> impl Iterator<Item = usize> + Clone {
    (0..64).filter(move |place| set >> place & 1 == 1)
}

/// The set of the first so many places.
pub(crate) fn lowest_bits(devices: usize) -> u64 {
    if devices == 64 { u64::MAX } else { (1 << devices) - 1 }
}

// === impl PairValues ===

impl PairValues {
    pub(crate) fn of(machine: &Machine, worth: impl Fn(Connection) -> i64) -> Self {
        let devices = machine.pool.len();
        let pairs = (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b)));
        let worth = |(a, b)| if a == b { 0 } else { worth(machine.connection(a, b)) };
        Self { devices, values: pairs.map(worth).collect() }
    }

    pub(crate) fn devices(&self) -> usize {
        self.devices
    }

    /// All pairs of a set together.
    pub(crate) fn sum(&self, set: u64) -> i64 {
        self.values_in(set).sum()
    }

    /// The worst pair of a set; 0 for a set without pairs.
    pub(crate) fn min(&self, set: u64) -> i64 {
        self.values_in(set).min().unwrap_or(0)
    }

    fn values_in(&self, set: u64) -> impl Iterator<Item = i64> {
        let later = move |a| bit_indices(set).filter(move |b| *b > a).map(move |b| (a, b));
        bit_indices(set).flat_map(later).map(|(a, b)| self.values[a * self.devices + b])
    }
}
