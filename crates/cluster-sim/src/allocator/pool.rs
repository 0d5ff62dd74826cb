//! Pools of a node in their newest generation: complete and valid, or the reason why not.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Counter, ResourceSlice},
};

use super::place;

/// Pool of a driver, as seen by one node.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) driver: &'a str,
    pub(super) name: &'a str,
    pub(super) state: State<'a>,
}

/// State of a pool: its contents, or the reason why its devices cannot be taken.
#[derive(Debug)]
pub(super) enum State<'a> {
    Ready(Contents<'a>),
    /// Slices are missing: the driver is updating the pool.
    Incomplete,
    /// The slices contradict each other.
    Invalid(String),
}

/// Slices of a pool.
#[derive(Debug)]
pub(super) struct Contents<'a> {
    /// Slices with devices for the node, by name.
    pub(super) here: Vec<&'a ResourceSlice>,
    /// Slices for other nodes. Their devices may have consumed counters.
    pub(super) elsewhere: Vec<&'a ResourceSlice>,
    pub(super) counters: CounterSets<'a>,
}

/// Counters by set.
pub(super) type CounterSets<'a> = BTreeMap<&'a str, &'a BTreeMap<String, Counter>>;

/// Pools of a node, in allocation order: pools without binding conditions first, then by driver and name.
pub(super) fn gather<'a>(slices: &'a [ResourceSlice], node: &Node) -> Vec<Pool<'a>> {
    let mut relevant: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| place::is_relevant(slice, node)) {
        let known = relevant.entry((&slice.spec.driver, &slice.spec.pool.name)).or_default();
        let newest = known.first().map_or(i64::MIN, |known| known.spec.pool.generation);
        if slice.spec.pool.generation > newest {
            known.clear();
        }
        if slice.spec.pool.generation >= newest {
            known.push(slice);
        }
    }
    let pools = relevant.into_iter().filter_map(|((driver, name), here)| {
        Some(Pool { driver, name, state: State::of(here, slices)? })
    });
    let (last, mut first): (Vec<_>, Vec<_>) = pools.partition(Pool::needs_conditions);
    first.extend(last);
    first
}

// === impl Pool ===

impl Pool<'_> {
    fn needs_conditions(&self) -> bool {
        let State::Ready(contents) = &self.state else { return false };
        let devices = contents.here.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        devices.into_iter().any(|device| device.binding_conditions.is_some())
    }
}

// === impl State ===

impl<'a> State<'a> {
    /// State of a pool; `None` if another node has a newer generation of it.
    fn of(mut here: Vec<&'a ResourceSlice>, all: &'a [ResourceSlice]) -> Option<Self> {
        let pool = &here[0].spec.pool;
        let wanted = usize::try_from(pool.resource_slice_count).unwrap_or_default();
        let mut elsewhere = Vec::new();
        if here.len() != wanted {
            let of_pool = all.iter().filter(|slice| is_same_pool(slice, here[0]));
            if of_pool.clone().any(|slice| slice.spec.pool.generation > pool.generation) {
                return None;
            }
            let now = of_pool.filter(|slice| slice.spec.pool.generation == pool.generation);
            let (ours, others): (Vec<_>, Vec<_>) =
                now.partition(|slice| here.iter().any(|known| known.metadata == slice.metadata));
            if ours.len() + others.len() != wanted {
                return Some(Self::Incomplete);
            }
            elsewhere = others;
        }
        here.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Some(Contents::of(&here, elsewhere).map_or_else(Self::Invalid, Self::Ready))
    }
}

fn is_same_pool(a: &ResourceSlice, b: &ResourceSlice) -> bool {
    (&a.spec.driver, &a.spec.pool.name) == (&b.spec.driver, &b.spec.pool.name)
}

// === impl Contents ===

impl<'a> Contents<'a> {
    fn of(slices: &[&'a ResourceSlice], elsewhere: Vec<&'a ResourceSlice>) -> Result<Self, String> {
        let has_counters = |slice: &&'a ResourceSlice| {
            slice.spec.shared_counters.as_ref().is_some_and(|counters| !counters.is_empty())
        };
        let (with, here): (Vec<&ResourceSlice>, Vec<_>) =
            slices.iter().copied().partition(has_counters);
        let mut names = BTreeSet::new();
        for device in here.iter().flat_map(|slice| slice.spec.devices.iter().flatten()) {
            if !names.insert(&device.name) {
                return Err(format!("duplicate device name {}", device.name));
            }
        }
        let mut counters = CounterSets::new();
        for set in with.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten()) {
            if counters.insert(set.name.as_str(), &set.counters).is_some() {
                return Err(format!("duplicate counter set name {}", set.name));
            }
        }
        let contents = Self { here, elsewhere, counters };
        contents.check_consumption(slices)?;
        Ok(contents)
    }

    fn check_consumption(&self, slices: &[&ResourceSlice]) -> Result<(), String> {
        let slices = slices.iter().chain(&self.elsewhere);
        let devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
        for consumption in devices.flat_map(|device| device.consumes_counters.iter().flatten()) {
            let set = consumption.counter_set.as_str();
            let known = self.counters.get(set).ok_or(format!("counter set {set} not found"))?;
            for counter in consumption.counters.keys() {
                if !known.contains_key(counter) {
                    return Err(format!("counter {counter} not found in counter set {set}"));
                }
            }
        }
        Ok(())
    }
}
