//! Partitions of GPUs for claims: every MIG profile at every placement, the full GPU if the driver may switch MIG mode
//! for claims, and the counters that they consume.
//!
//! The scheduler takes the first entry that fits, so the order packs partitions. GPUs follow each other: one is filled
//! before the next is partitioned. On a GPU, small profiles come first. Of a profile's placements, those that block the
//! fewest others come first, in descending order: seven of the smallest go to slices 6, 5, 4, …, and the large profile
//! that needs the first slices stays possible for long.
//!
//! ```text
//!   placements of GPUs without a full entry, placements of GPU 0, 1, …, 7, full GPU 7, 6, …, 0
//! ```
//!
//! GPUs with a full entry come after those without, and full entries come after all placements, in descending order.
//! Partitions start at the first GPU and full GPUs at the last, so that the two rarely compete. A full GPU consumes all
//! counters; if claims share it, the first share consumes them.

use std::cmp::Reverse;

use windlass_allocations::ledger::Ledger;
use windlass_config::{DriverName, Sharing};
use windlass_core::{
    attribute::{AttributeName, Quantity},
    device::{Device, Partition, PartitionCapacity, PossiblePartition},
    partition::{prospective_device, with_mig_off},
};
use windlass_resources::{NodeState, offers::present_parts};

use super::{
    CatalogEntry, Counters, DeviceName, Taint, attributes, device_plugin_taint, label_value,
    obstacle_taint, unclean_taint, unhealthy_taint, unknown_claims,
};

/// Taint of a placement that overlaps a MIG instance without a claim; the value is the instance's profile.
const UNCLAIMED_INSTANCE: &str = "mig-instance";

/// A GPU that is partitioned for claims, with the inputs of its entries.
pub(super) struct PartitionableGpu<'a> {
    pub(super) gpu: &'a Device,
    pub(super) state: &'a NodeState,
    pub(super) ledger: &'a Ledger,
    pub(super) driver: &'a DriverName,
    capacity: PartitionCapacity,
}

/// GPUs that are partitioned for claims, in the order in which the scheduler tries them.
pub(super) fn partitionable_gpus<'a>(
    state: &'a NodeState,
    ledger: &'a Ledger,
    driver: &'a DriverName,
) -> Vec<PartitionableGpu<'a>> {
    let gpus =
        state.inventory.devices.iter().filter(|gpu| state.policy.creates_instances_for_claims(gpu));
    let mut gpus: Vec<_> = gpus.collect();
    gpus.sort_by_key(|gpu| state.policy.dra.may_switch_mig(gpu));
    let partitionable = |gpu: &'a Device| {
        let capacity = PartitionCapacity::from_partitions(&gpu.partitions);
        PartitionableGpu { gpu, state, ledger, driver, capacity }
    };
    gpus.into_iter().map(partitionable).collect()
}

// === impl PartitionableGpu ===

impl PartitionableGpu<'_> {
    pub(super) fn counters(&self) -> Counters {
        let slices = 0..self.capacity.slices;
        let amounts =
            self.capacity.amounts.iter().map(|(name, amount)| (counter_name(name), *amount));
        self.counter_set(amounts.chain(slices.map(memory_slice_counter)))
    }

    /// Partitions in the order in which the scheduler tries them.
    pub(super) fn entries(&self) -> Vec<CatalogEntry> {
        let policy = &self.state.policy.dra;
        let mut ranked: Vec<_> =
            self.gpu.partitions.iter().map(|possible| (self.rank(possible), possible)).collect();
        ranked.sort_by(|(one, _), (other, _)| one.cmp(other));
        let entry = |(_, possible): (_, &PossiblePartition)| {
            let device = prospective_device(self.gpu, possible);
            let profile = Some(possible.partition.profile.as_str());
            policy.offers(&device, profile).then(|| self.entry(&device, possible))
        };
        ranked.into_iter().filter_map(entry).collect()
    }

    /// The full GPU with MIG mode off, if the policy offers it.
    pub(super) fn full_gpu_entry(&self) -> Option<CatalogEntry> {
        let Self { gpu, state, ledger, driver, .. } = *self;
        if !state.policy.dra.may_switch_mig(gpu) {
            return None;
        }
        let device = with_mig_off(gpu);
        state.policy.dra.offers(&device, None).then(|| CatalogEntry {
            taints: self.taints(gpu, |_| true),
            consumes: Some(self.counters()),
            ..CatalogEntry::of(&device, Sharing::Exclusive, state, ledger, driver)
        })
    }

    /// Taints of an entry. Claims on the GPU cause none: the scheduler accounts for them with counters.
    fn taints(&self, device: &Device, excludes: impl Fn(&Partition) -> bool) -> Vec<Taint> {
        let holder = device_plugin_taint(self.state, self.ledger, device);
        let holder = holder.or_else(|| self.unclaimed_instance(excludes));
        let (unclean, obstacle) =
            (unclean_taint(self.state, self.gpu), obstacle_taint(self.state, self.gpu));
        let unknown = unknown_claims(self.ledger);
        [unhealthy_taint(device), holder, unknown, unclean, obstacle]
            .into_iter()
            .flatten()
            .collect()
    }

    fn entry(&self, device: &Device, possible: &PossiblePartition) -> CatalogEntry {
        let partition = &possible.partition;
        let amounts = possible.capacity.iter().map(|(name, amount)| (counter_name(name), *amount));
        let partitions = &*self.gpu.partitions;
        CatalogEntry {
            name: DeviceName::of_partition(partition),
            device: device.id.clone(),
            sharing: Sharing::Exclusive,
            consumable: None,
            attributes: attributes::of(device, None, self.driver),
            capacity: attributes::capacity(device, Sharing::Exclusive, self.driver),
            taints: self.taints(device, |existing| {
                partition.conflicts_with(existing, &self.capacity, partitions)
            }),
            partition: Some(partition.clone()),
            consumes: Some(
                self.counter_set(amounts.chain(partition.slices().map(memory_slice_counter))),
            ),
            is_claimed: self.ledger.is_claimed(&device.id),
        }
    }

    fn counter_set(&self, amounts: impl Iterator<Item = (String, Quantity)>) -> Counters {
        let set = format!("{}-counters", DeviceName::of(&self.gpu.id));
        Counters { set, amounts: amounts.collect() }
    }

    /// Sort key: small before large, then few blocked partitions before many, then the last placement first.
    fn rank(&self, possible: &PossiblePartition) -> impl Ord + use<> {
        const UNITS: AttributeName = AttributeName::new("nvidia.com", "multiprocessors");
        let Partition { size, profile, start, .. } = possible.partition.clone();
        let partitions = self.gpu.partitions.iter();
        let excluded =
            partitions.filter(|other| !self.capacity.can_coexist(possible, other)).count();
        (size, possible.capacity.get(&UNITS).copied(), profile, excluded, Reverse(start))
    }

    /// Taint because of an instance without a claim: the scheduler does not count its counters.
    fn unclaimed_instance(&self, excludes: impl Fn(&Partition) -> bool) -> Option<Taint> {
        let parts = present_parts(&self.state.inventory, &self.gpu.id);
        let mut existing = parts.filter_map(|part| part.partition.as_ref());
        let unclaimed = existing
            .find(|partition| !self.ledger.is_claimed(&partition.id()) && excludes(partition))?;
        Some(Taint { key: UNCLAIMED_INSTANCE, value: label_value(unclaimed.profile.as_str()) })
    }
}

/// Name of a counter: `copyEngines` becomes `copy-engines`.
fn counter_name(name: &AttributeName) -> String {
    let in_kebab_case = |character: char| {
        if character.is_ascii_uppercase() {
            format!("-{}", character.to_ascii_lowercase())
        } else {
            character.into()
        }
    };
    name.name().chars().map(in_kebab_case).collect()
}

fn memory_slice_counter(index: u32) -> (String, Quantity) {
    (format!("memory-slice-{index}"), Quantity::Count(1))
}
