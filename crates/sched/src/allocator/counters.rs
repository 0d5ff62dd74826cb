//! Shared counters: the resources that partitions of one device consume.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Counter, Device};
use windlass_core::selector::Amount;

use super::{
    capacity,
    pool::{Pool, State},
    taken::Holdings,
};

/// Counters of a pool, and the devices that consume them.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock {
    /// Value of each counter without consumption.
    full: Vec<Amount>,
    /// Index in `full` of the first counter of each set.
    starts: Vec<usize>,
    /// Index in `full` by set and counter.
    index: BTreeMap<String, BTreeMap<String, usize>>,
    /// Consumption by device name, devices for other nodes included.
    consumers: BTreeMap<String, Vec<Draw>>,
}

/// Amount that a device consumes of one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    counter: usize,
    amount: Amount,
}

/// Remaining value by pool and counter; may be negative.
#[derive(Debug)]
pub(super) struct Counters {
    left: Vec<Vec<Amount>>,
}

// === impl Stock ===

impl Stock {
    /// Adds a counter set. Returns false if its name is known.
    pub(super) fn add_set(&mut self, name: &str, counters: &BTreeMap<String, Counter>) -> bool {
        if self.index.contains_key(name) {
            return false;
        }
        let first = self.full.len();
        self.starts.push(first);
        self.full.extend(counters.values().map(|counter| capacity::amount(&counter.value)));
        self.index.insert(name.to_owned(), counters.keys().cloned().zip(first..).collect());
        true
    }

    /// Adds a device that may consume counters. Fails if it names an unknown counter or set.
    pub(super) fn add_consumer(&mut self, device: &Device) -> Result<(), String> {
        for consumption in device.consumes_counters.iter().flatten() {
            let set = consumption.counter_set.as_str();
            let known = self.index.get(set).ok_or(format!("counter set {set} not found"))?;
            if let Some(counter) = consumption.counters.keys().find(|it| !known.contains_key(*it)) {
                return Err(format!("counter {counter} not found in counter set {set}"));
            }
        }
        let draws = self.draws(device);
        if !draws.is_empty() {
            self.consumers.entry(device.name.clone()).or_default().extend(draws);
        }
        Ok(())
    }

    /// Amounts that a device consumes.
    pub(super) fn draws(&self, device: &Device) -> Vec<Draw> {
        let consumed = device.consumes_counters.iter().flatten();
        let draws = consumed.flat_map(|consumption| {
            let known = self.index.get(&consumption.counter_set);
            consumption.counters.iter().filter_map(move |(name, counter)| {
                let amount = capacity::amount(&counter.value);
                Some(Draw { counter: *known?.get(name)?, amount })
            })
        });
        draws.collect()
    }

    /// Value of each counter without consumption.
    pub(super) fn full(&self) -> &[Amount] {
        &self.full
    }

    /// Position of the first counter of each set.
    pub(super) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Index of the counter set from which a device consumes.
    pub(super) fn set_of(&self, draws: &[Draw]) -> Option<usize> {
        let Draw { counter, .. } = draws.first()?;
        Some(self.starts.partition_point(|start| start <= counter) - 1)
    }

    /// Fraction of a set that a device consumes, in thousandths: the mean over the set's counters.
    pub(super) fn milli_of(&self, set: usize, draws: &[Draw]) -> u32 {
        let end = self.starts.get(set + 1).copied().unwrap_or(self.full.len());
        let counters = self.starts[set]..end;
        let counted = counters.clone().filter(|it| self.full[*it] > Amount::ZERO).count();
        let of = |draw: &Draw| match self.full[draw.counter].billionths() {
            full if full > 0 && counters.contains(&draw.counter) => {
                draw.amount.billionths().saturating_mul(1000) / full
            }
            _ => 0,
        };
        let sum: i128 = draws.iter().map(of).sum();
        u32::try_from(sum / i128::try_from(counted.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    /// Counters after the consumption of allocated devices. These may overdraw a counter, which then blocks further
    /// devices without an error.
    fn left(&self, holdings: Option<&Holdings>) -> Vec<Amount> {
        let mut left = self.full.clone();
        if !left.is_empty() {
            let held = holdings.into_iter().flat_map(BTreeMap::keys);
            let draws = held.filter_map(|device| self.consumers.get(device)).flatten();
            draws.for_each(|draw| draw.apply(&mut left, Amount::saturating_sub));
        }
        left
    }
}

// === impl Draw ===

impl Draw {
    pub(super) fn counter(self) -> usize {
        self.counter
    }

    pub(super) fn amount(self) -> Amount {
        self.amount
    }

    fn apply(self, left: &mut [Amount], by: fn(Amount, Amount) -> Amount) {
        left[self.counter] = by(left[self.counter], self.amount);
    }
}

// === impl Counters ===

impl Counters {
    /// Counters of pools after the consumption of allocated devices.
    pub(super) fn of(pools: &[Pool], holdings: &[Option<&Holdings>]) -> Self {
        let left = |(pool, holdings): (&Pool, Option<&Holdings>)| match &pool.state {
            State::Ready(contents) => contents.stock.left(holdings),
            State::Incomplete | State::Invalid(_) => Vec::new(),
        };
        Self { left: pools.iter().zip(holdings.iter().copied()).map(left).collect() }
    }

    /// Remaining value of each counter of a pool.
    pub(super) fn of_pool(&self, pool: usize) -> &[Amount] {
        &self.left[pool]
    }

    /// True if the counters suffice for a device.
    pub(super) fn suffice(&mut self, pool: usize, draws: &[Draw]) -> bool {
        let suffice = self.take(pool, draws);
        if suffice {
            self.give_back(pool, draws);
        }
        suffice
    }

    /// Consumes a device's counters and returns true, unless one of them is too low.
    pub(super) fn take(&mut self, pool: usize, draws: &[Draw]) -> bool {
        let left = &mut self.left[pool];
        for draw in draws {
            draw.apply(left, Amount::saturating_sub);
        }
        let enough = left.iter().all(|left| *left >= Amount::ZERO);
        if !enough {
            self.give_back(pool, draws);
        }
        enough
    }

    pub(super) fn give_back(&mut self, pool: usize, draws: &[Draw]) {
        for draw in draws {
            draw.apply(&mut self.left[pool], Amount::saturating_add);
        }
    }
}
