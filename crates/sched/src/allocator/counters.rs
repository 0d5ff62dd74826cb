//! Shared counters: the resources that partitions of one device consume.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Counter, Device};
use windlass_core::selector::Amount;

use super::{
    allocated_devices::Holdings,
    capacity,
    pool::{Pool, State},
};

/// Counters of a pool, and the devices that consume them.
#[derive(Clone, Debug, Default)]
pub(super) struct CounterSets {
    /// Value of each counter without consumption.
    totals: Vec<Amount>,
    /// Position in `totals` of each set's first counter.
    starts: Vec<usize>,
    /// Position in `totals` by set name and counter name.
    index: BTreeMap<String, BTreeMap<String, usize>>,
    /// Consumption by device name, including devices for other nodes.
    consumers: BTreeMap<String, Vec<CounterConsumption>>,
}

/// Amount that a device consumes of one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterConsumption {
    counter: usize,
    amount: Amount,
}

/// Remaining value by pool and counter; may be negative.
#[derive(Debug)]
pub(super) struct Counters {
    remaining: Vec<Vec<Amount>>,
}

// === impl CounterSets ===

impl CounterSets {
    /// Adds a counter set. Returns false if a set of this name exists.
    pub(super) fn add_set(&mut self, name: &str, counters: &BTreeMap<String, Counter>) -> bool {
        if self.index.contains_key(name) {
            return false;
        }
        let start = self.totals.len();
        self.starts.push(start);
        self.totals.extend(counters.values().map(|counter| capacity::amount(&counter.value)));
        self.index.insert(name.to_owned(), counters.keys().cloned().zip(start..).collect());
        true
    }

    /// Adds a device that may consume counters. Fails if the device names an unknown counter or set.
    pub(super) fn add_consumer(&mut self, device: &Device) -> Result<(), String> {
        for consumption in device.consumes_counters.iter().flatten() {
            let set = consumption.counter_set.as_str();
            let counters = self.index.get(set).ok_or(format!("counter set {set} not found"))?;
            if let Some(counter) =
                consumption.counters.keys().find(|it| !counters.contains_key(*it))
            {
                return Err(format!("counter {counter} not found in counter set {set}"));
            }
        }
        let consumptions = self.consumptions(device);
        if !consumptions.is_empty() {
            self.consumers.entry(device.name.clone()).or_default().extend(consumptions);
        }
        Ok(())
    }

    /// Amounts that a device consumes.
    pub(super) fn consumptions(&self, device: &Device) -> Vec<CounterConsumption> {
        let consumed = device.consumes_counters.iter().flatten();
        let consumptions = consumed.flat_map(|consumption| {
            let counters = self.index.get(&consumption.counter_set);
            consumption.counters.iter().filter_map(move |(name, counter)| {
                let amount = capacity::amount(&counter.value);
                Some(CounterConsumption { counter: *counters?.get(name)?, amount })
            })
        });
        consumptions.collect()
    }

    /// Value of each counter without consumption.
    pub(super) fn totals(&self) -> &[Amount] {
        &self.totals
    }

    /// Position of the first counter of each set.
    pub(super) fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Index of the counter set from which a device consumes.
    pub(super) fn set_of(&self, consumptions: &[CounterConsumption]) -> Option<usize> {
        let CounterConsumption { counter, .. } = consumptions.first()?;
        Some(self.starts.partition_point(|start| start <= counter) - 1)
    }

    /// Fraction of a set that a device consumes, in thousandths: the mean over the set's counters above zero.
    pub(super) fn consumed_milli(&self, set: usize, consumptions: &[CounterConsumption]) -> u32 {
        let end = self.starts.get(set + 1).copied().unwrap_or(self.totals.len());
        let counters = self.starts[set]..end;
        let nonzero = counters.clone().filter(|it| self.totals[*it] > Amount::ZERO).count();
        let milli = |consumption: &CounterConsumption| match self.totals[consumption.counter]
            .nano_units()
        {
            total if total > 0 && counters.contains(&consumption.counter) => {
                consumption.amount.nano_units().saturating_mul(1000) / total
            }
            _ => 0,
        };
        let sum: i128 = consumptions.iter().map(milli).sum();
        u32::try_from(sum / i128::try_from(nonzero.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    /// Counters after the consumption of allocated devices. Allocated devices may consume more than a counter has: the
    /// counter is then negative, and no further device that consumes it fits.
    fn remaining(&self, holdings: Option<&Holdings>) -> Vec<Amount> {
        let mut remaining = self.totals.clone();
        if !remaining.is_empty() {
            let allocated = holdings.into_iter().flat_map(BTreeMap::keys);
            let consumptions = allocated.filter_map(|device| self.consumers.get(device)).flatten();
            consumptions
                .for_each(|consumption| consumption.apply(&mut remaining, Amount::saturating_sub));
        }
        remaining
    }
}

// === impl CounterConsumption ===

impl CounterConsumption {
    pub(super) fn counter(self) -> usize {
        self.counter
    }

    pub(super) fn amount(self) -> Amount {
        self.amount
    }

    fn apply(self, remaining: &mut [Amount], combine: fn(Amount, Amount) -> Amount) {
        remaining[self.counter] = combine(remaining[self.counter], self.amount);
    }
}

// === impl Counters ===

impl Counters {
    /// Counters of pools after the consumption of allocated devices.
    pub(super) fn of(pools: &[Pool], holdings: &[Option<&Holdings>]) -> Self {
        let remaining = |(pool, holdings): (&Pool, Option<&Holdings>)| match &pool.state {
            State::Ready(contents) => contents.counter_sets.remaining(holdings),
            State::Incomplete | State::Invalid(_) => Vec::new(),
        };
        Self { remaining: pools.iter().zip(holdings.iter().copied()).map(remaining).collect() }
    }

    /// Remaining value of each counter of a pool.
    pub(super) fn of_pool(&self, pool: usize) -> &[Amount] {
        &self.remaining[pool]
    }

    /// True if the counters suffice for a device.
    pub(super) fn suffice(&mut self, pool: usize, consumptions: &[CounterConsumption]) -> bool {
        let is_sufficient = self.consume(pool, consumptions);
        if is_sufficient {
            self.release(pool, consumptions);
        }
        is_sufficient
    }

    /// Consumes a device's counters and returns true, unless one of them is too low.
    pub(super) fn consume(&mut self, pool: usize, consumptions: &[CounterConsumption]) -> bool {
        let remaining = &mut self.remaining[pool];
        for consumption in consumptions {
            consumption.apply(remaining, Amount::saturating_sub);
        }
        let is_sufficient = remaining.iter().all(|remaining| *remaining >= Amount::ZERO);
        if !is_sufficient {
            self.release(pool, consumptions);
        }
        is_sufficient
    }

    pub(super) fn release(&mut self, pool: usize, consumptions: &[CounterConsumption]) {
        for consumption in consumptions {
            consumption.apply(&mut self.remaining[pool], Amount::saturating_add);
        }
    }
}
