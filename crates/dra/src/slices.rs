//! Division of the catalog into ResourceSlices, and the devices that cannot be published.
//!
//! A slice may have 128 devices, but 64 if one has a taint. Slices here have at most 64, so that a device that becomes
//! unhealthy does not move others to another slice. The partitions of each GPU have slices of their own, because they
//! appear and disappear. Slices with counters precede all others.

mod wire;

use std::collections::{BTreeMap, BTreeSet};

use windlass_cluster::slices::{
    DesiredSlices, InvalidField, OmittedDevice, SliceContent, check_device, check_pool,
};
use windlass_config::{DraTaints, DriverName};
use windlass_core::device::DeviceId;

use super::catalog::{Catalog, CatalogEntry, Pool};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceOptions<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) taints: DraTaints,
}

/// Most devices of a slice with a taint (`ResourceSliceMaxDevicesWithAdvancedFeatures`).
const MAX_DEVICES: usize = 64;

/// Most counter sets of a slice (`ResourceSliceMaxCounterSets`).
const MAX_COUNTER_SETS: usize = 8;

/// Divides a catalog into slices. A device that violates a limit is left out; the rest of its pool is published.
pub(crate) fn slices(catalog: &Catalog, options: SliceOptions<'_>) -> DesiredSlices {
    let mut omitted = Vec::new();
    let mut pools = BTreeMap::new();
    for (name, pool) in &catalog.pools {
        match check_pool(name) {
            Ok(()) => drop(pools.insert(name.clone(), divide(name, pool, options, &mut omitted))),
            Err(error) => {
                let device_names = pool.entries.iter().map(|entry| entry.name.to_string());
                omitted.extend(device_names.map(|device| omitted_device(name, device, &error)));
            }
        }
    }
    DesiredSlices { pools, omitted, ..DesiredSlices::default() }
}

fn divide(
    name: &str,
    pool: &Pool,
    options: SliceOptions<'_>,
    omitted: &mut Vec<OmittedDevice>,
) -> Vec<SliceContent> {
    let (mut names, mut devices) = (BTreeSet::new(), Vec::new());
    for entry in pool.entries.iter().filter(|entry| !would_block_others(entry, options)) {
        let device = wire::device(entry, options);
        let is_new = names.insert(device.name.clone());
        let result = if is_new { check_device(&device) } else { Err(InvalidField::Duplicate) };
        match result {
            Ok(()) => devices.push((group(entry), device)),
            Err(error) => omitted.push(omitted_device(name, device.name, &error)),
        }
    }
    let counters = pool.counters.chunks(MAX_COUNTER_SETS).map(|sets| SliceContent {
        shared_counters: sets.iter().map(wire::counter_set).collect(),
        ..SliceContent::default()
    });
    let groups = devices.chunk_by(|(one, _), (other, _)| one == other);
    let devices =
        groups.flat_map(|devices| devices.chunks(MAX_DEVICES)).map(|devices| SliceContent {
            devices: devices.iter().map(|(_, device)| device.clone()).collect(),
            ..SliceContent::default()
        });
    let slices: Vec<_> = counters.chain(devices).collect();
    if slices.is_empty() { vec![SliceContent::default()] } else { slices }
}

/// Group of a device; slices have devices of one group. Groups are devices without counters, full GPUs, and the
/// partitions of each GPU.
fn group(entry: &CatalogEntry) -> (bool, Option<&DeviceId>) {
    (entry.consumes.is_some(), entry.partition.as_ref().map(|partition| &partition.gpu))
}

/// True for an entry with a taint and counters, unless a claim holds it. The scheduler subtracts the counters before it
/// sees the taint, and does not return them in that search: healthy partitions of the GPU would seem allocated.
fn would_block_others(entry: &CatalogEntry, options: SliceOptions<'_>) -> bool {
    let excludes_claims = options.taints == DraTaints::NoSchedule && !entry.taints.is_empty();
    excludes_claims && entry.consumes.is_some() && !entry.is_claimed
}

fn omitted_device(pool: &str, device: String, error: &InvalidField) -> OmittedDevice {
    OmittedDevice { pool: pool.to_owned(), device, reason: error.to_string() }
}

#[cfg(test)]
mod tests;
