//! What is published of the catalog: devices cut into slices, and what is left out of them and why.
//!
//! A slice takes 128 devices, but 64 when one of them has a taint. It never gets more than 64 here: a
//! device that falls ill must not move its neighbours to other slices. The partitions of a GPU have slices of
//! their own, and so have the wholes of all such GPUs, since some come and go; and what they take their parts
//! from is in slices before all others.

mod wire;

use std::collections::{BTreeMap, BTreeSet};

use windlass_cluster::slices::{Content, LeftOut, Misfit, Wanted, check_device, check_pool};
use windlass_config::{DraTaints, DriverName};
use windlass_core::device::DeviceId;

use super::catalog::{Catalog, Entry, Pool};

/// How devices are written into slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) taints: DraTaints,
}

/// The most devices of a slice in which one has a taint (`ResourceSliceMaxDevicesWithAdvancedFeatures`).
const MOST_DEVICES: usize = 64;

/// The most sets of counters in a slice (`ResourceSliceMaxCounterSets`).
const MOST_COUNTER_SETS: usize = 8;

/// Cuts a catalog into slices. A device that breaks a limit is left out, not its pool.
pub(crate) fn slices(catalog: &Catalog, manner: Manner<'_>) -> Wanted {
    let mut left_out = Vec::new();
    let mut pools = BTreeMap::new();
    for (name, pool) in &catalog.pools {
        match check_pool(name) {
            Ok(()) => drop(pools.insert(name.clone(), cut(name, pool, manner, &mut left_out))),
            Err(misfit) => {
                let all = pool.entries.iter().map(|entry| entry.name.to_string());
                left_out.extend(all.map(|device| is_left_out(name, device, &misfit)));
            }
        }
    }
    Wanted { pools, left_out, ..Wanted::default() }
}

fn cut(name: &str, pool: &Pool, manner: Manner<'_>, left_out: &mut Vec<LeftOut>) -> Vec<Content> {
    let (mut names, mut devices) = (BTreeSet::new(), Vec::new());
    for entry in pool.entries.iter().filter(|entry| !would_block_others(entry, manner)) {
        let device = wire::device(entry, manner);
        let is_new = names.insert(device.name.clone());
        let fits = if is_new { check_device(&device) } else { Err(Misfit::Duplicate) };
        match fits {
            Ok(()) => devices.push((kin(entry), device)),
            Err(misfit) => left_out.push(is_left_out(name, device.name, &misfit)),
        }
    }
    let counters = pool.counters.chunks(MOST_COUNTER_SETS).map(|sets| Content {
        shared_counters: sets.iter().map(wire::counter_set).collect(),
        ..Content::default()
    });
    let alike = devices.chunk_by(|(one, _), (other, _)| one == other);
    let devices = alike.flat_map(|devices| devices.chunks(MOST_DEVICES)).map(|devices| Content {
        devices: devices.iter().map(|(_, device)| device.clone()).collect(),
        ..Content::default()
    });
    let slices: Vec<_> = counters.chain(devices).collect();
    if slices.is_empty() { vec![Content::default()] } else { slices }
}

/// What it shares slices with: whether anything comes and goes there, and of which GPU.
fn kin(entry: &Entry) -> (bool, Option<&DeviceId>) {
    (entry.consumes.is_some(), entry.partition.as_ref().map(|it| &it.gpu))
}

/// What consumes counters and has a taint is left out: the scheduler takes its counters before it looks at
/// taints, and does not give them back in that search, so that its healthy siblings would seem to be taken. One
/// that a claim has stays, for the scheduler to know what it takes.
fn would_block_others(entry: &Entry, manner: Manner<'_>) -> bool {
    let keeps_away = manner.taints == DraTaints::NoSchedule && !entry.taints.is_empty();
    keeps_away && entry.consumes.is_some() && !entry.is_claimed
}

fn is_left_out(pool: &str, device: String, misfit: &Misfit) -> LeftOut {
    LeftOut { pool: pool.to_owned(), device, reason: misfit.to_string() }
}

#[cfg(test)]
mod tests;
