//! What a GPU has for claims that get instances made: every profile at every place, the whole where MIG is
//! turned on and off for claims, and what all of them take from each other.
//!
//! The scheduler takes the first that fits. So one GPU comes after the other: one that is cut already is
//! filled before the next is begun. On a GPU small profiles come first, for whoever does not say which; and
//! of the places of a profile those that leave most to others, from the last on. Seven of the smallest go to
//! slices 6, 5, 4, …, and the half that only the first slices can make stays whole for as long as it can.
//!
//! ```text
//!   places of GPUs that can only be cut, places of GPU 0, 1, …, 7, whole GPU 7, 6, …, 0
//! ```
//!
//! A GPU that is had whole as well comes after those that can only be cut, and its whole after all places: GPUs
//! are cut from the first on and had whole from the last on, so that the two meet as late as they can. A whole
//! takes all that there is; one of which claims have shares takes it once, for the first of them.

use std::cmp::Reverse;

use windlass_allocations::ledger::Ledger;
use windlass_config::{DriverName, Sharing};
use windlass_core::{
    attribute::{AttributeName, Quantity},
    device::{Device, Partition, PossiblePartition, Room},
    partition::{full_gpu, prospective},
};
use windlass_resources::{NodeState, offers::present_parts};

use super::{
    Counters, Entry, EntryName, Taint, attributes, held, obstacle, spelled, trouble, unclean,
    untold,
};

/// The taint of a place where an instance stands, or has a part of it, that was made for no claim; its value
/// is the profile of the instance.
const STANDING: &str = "mig-instance";

/// What is looked at for all entries of a GPU.
pub(super) struct Cut<'a> {
    pub(super) gpu: &'a Device,
    pub(super) state: &'a NodeState,
    pub(super) ledger: &'a Ledger,
    pub(super) driver: &'a DriverName,
    room: Room,
}

/// The GPUs that are cut for claims, in the order in which that is to be tried.
pub(super) fn cuts<'a>(
    (state, ledger): (&'a NodeState, &'a Ledger),
    driver: &'a DriverName,
) -> Vec<Cut<'a>> {
    let gpus = state.inventory.devices.iter().filter(|gpu| state.policy.cuts_for_claims(gpu));
    let mut gpus: Vec<_> = gpus.collect();
    gpus.sort_by_key(|gpu| state.policy.dra.may_switch(gpu));
    gpus.into_iter().map(|gpu| Cut::new(gpu, (state, ledger), driver)).collect()
}

// === impl Cut ===

impl<'a> Cut<'a> {
    fn new(
        gpu: &'a Device,
        (state, ledger): (&'a NodeState, &'a Ledger),
        driver: &'a DriverName,
    ) -> Self {
        Self { gpu, state, ledger, driver, room: Room::of(&gpu.partitions) }
    }

    /// All that there is on the GPU.
    pub(super) fn counters(&self) -> Counters {
        let slices = 0..self.room.slices;
        let amounts = self.room.amounts.iter().map(|(name, amount)| (counter(name), *amount));
        self.of_set(amounts.chain(slices.map(memory_slice)))
    }

    /// The partitions, in the order in which they are to be tried.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let policy = &self.state.policy.dra;
        let mut all: Vec<_> = self.gpu.partitions.iter().map(|it| (self.rank(it), it)).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        let entry = |(_, possible): (_, &PossiblePartition)| {
            let device = prospective(self.gpu, possible);
            let profile = Some(possible.partition.profile.as_str());
            policy.takes(&device, profile).then(|| self.entry(&device, possible))
        };
        all.into_iter().filter_map(entry).collect()
    }

    /// The GPU with MIG off, if it can be had so too.
    pub(super) fn whole(&self) -> Option<Entry> {
        let Self { gpu, state, ledger, driver, .. } = *self;
        if !state.policy.dra.may_switch(gpu) {
            return None;
        }
        let device = full_gpu(gpu);
        state.policy.dra.takes(&device, None).then(|| Entry {
            taints: self.taints(gpu, |_| true),
            consumes: Some(self.counters()),
            ..Entry::of((&device, Sharing::Exclusive), (state, ledger), driver)
        })
    }

    /// Why something of the GPU is not to be given away now. Of what claims have of it the scheduler knows by
    /// its counters.
    fn taints(&self, device: &Device, excludes: impl Fn(&Partition) -> bool) -> Vec<Taint> {
        let holder = held(self.state, self.ledger, device);
        let holder = holder.or_else(|| self.in_the_way(excludes));
        let (unclean, obstacle) = (unclean(self.state, self.gpu), obstacle(self.state, self.gpu));
        let untold = untold(self.ledger);
        [trouble(device), holder, untold, unclean, obstacle].into_iter().flatten().collect()
    }

    fn entry(&self, device: &Device, possible: &PossiblePartition) -> Entry {
        let partition = &possible.partition;
        let amounts = possible.capacity.iter().map(|(name, amount)| (counter(name), *amount));
        let all = &*self.gpu.partitions;
        Entry {
            name: EntryName::of_partition(partition),
            device: device.id.clone(),
            sharing: Sharing::Exclusive,
            portions: None,
            attributes: attributes::of(device, self.driver),
            capacity: attributes::capacity(device, Sharing::Exclusive, self.driver),
            taints: self.taints(device, |standing| partition.takes_from(standing, &self.room, all)),
            partition: Some(partition.clone()),
            consumes: Some(self.of_set(amounts.chain(partition.slices().map(memory_slice)))),
            is_claimed: self.ledger.is_claimed(&device.id),
        }
    }

    fn of_set(&self, amounts: impl Iterator<Item = (String, Quantity)>) -> Counters {
        let set = format!("{}-counters", EntryName::of(&self.gpu.id));
        Counters { set, amounts: amounts.collect() }
    }

    /// Smaller before larger, then by how many other partitions it shuts out, then from the last place on.
    fn rank(&self, it: &PossiblePartition) -> impl Ord + use<> {
        const UNITS: AttributeName = AttributeName::new("nvidia.com", "multiprocessors");
        let Partition { size, profile, start, .. } = it.partition.clone();
        let others = self.gpu.partitions.iter();
        let shut_out = others.filter(|other| !self.room.has_both(it, other)).count();
        (size, it.capacity.get(&UNITS).copied(), profile, shut_out, Reverse(start))
    }

    /// An instance that no claim accounts for: the scheduler does not know what it takes.
    fn in_the_way(&self, excludes: impl Fn(&Partition) -> bool) -> Option<Taint> {
        let parts = present_parts(&self.state.inventory, &self.gpu.id);
        let mut standing = parts.filter_map(|part| part.partition.as_ref());
        let unknown = standing.find(|it| !self.ledger.is_claimed(&it.id()) && excludes(it))?;
        Some(Taint { key: STANDING, value: spelled(unknown.profile.as_str()) })
    }
}

/// `copyEngines` as counters are named: `copy-engines`.
fn counter(name: &AttributeName) -> String {
    let letter = |c: char| {
        if c.is_ascii_uppercase() { format!("-{}", c.to_ascii_lowercase()) } else { c.into() }
    };
    name.name().chars().map(letter).collect()
}

fn memory_slice(at: u32) -> (String, Quantity) {
    (format!("memory-slice-{at}"), Quantity::Count(1))
}
