//! Values of device pairs, for sets that are written as bits.

use windlass_core::topology::Connection;

use super::machines::Machine;

/// Value of every pair of devices in a pool.
#[derive(Debug)]
pub(crate) struct PairValues {
    devices: usize,
    values: Vec<i64>,
}

/// Positions of the set bits, ascending.
pub(crate) fn bit_indices(set: u64) -> impl Iterator<Item = usize> + Clone {
    (0..64).filter(move |position| set >> position & 1 == 1)
}

/// Set of the first devices of a pool.
pub(crate) fn lowest_bits(devices: usize) -> u64 {
    if devices == 64 { u64::MAX } else { (1 << devices) - 1 }
}

// === impl PairValues ===

impl PairValues {
    pub(crate) fn from_machine(machine: &Machine, value_of: impl Fn(Connection) -> i64) -> Self {
        let devices = machine.pool.len();
        let pairs = (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b)));
        let value = |(a, b)| if a == b { 0 } else { value_of(machine.connection(a, b)) };
        Self { devices, values: pairs.map(value).collect() }
    }

    pub(crate) fn devices(&self) -> usize {
        self.devices
    }

    /// Total value of the pairs in a set.
    pub(crate) fn sum(&self, set: u64) -> i64 {
        self.values_in(set).sum()
    }

    /// Value of the worst pair in a set; 0 for a set without pairs.
    pub(crate) fn min(&self, set: u64) -> i64 {
        self.values_in(set).min().unwrap_or(0)
    }

    fn values_in(&self, set: u64) -> impl Iterator<Item = i64> {
        let pairs_from = move |a| bit_indices(set).filter(move |b| *b > a).map(move |b| (a, b));
        bit_indices(set).flat_map(pairs_from).map(|(a, b)| self.values[a * self.devices + b])
    }
}
