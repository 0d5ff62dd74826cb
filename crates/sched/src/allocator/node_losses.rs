//! Losses of a node by an allocation: unallocated devices that become less useful.
//!
//! | loss | meaning | points |
//! | --- | --- | --- |
//! | broken up | a GPU without a holder, of which the claims get a part | 100 per GPU |
//! | partition | largest possible partition of a GPU: before, minus after, minus the one allocated | 200 per GPU |
//! | stranded | a PCIe switch or root with free GPUs and free NICs that keeps only one of the two | 50 each |
//! | distance | between two chosen devices: 0 in one island, or at one PCIe switch or root, 1 on one NUMA node, else 2 | 40 times the mean |
//!
//! The points are on the scale of [`Policy::Windlass`](crate::policy::Policy::Windlass). A GPU that is broken up costs
//! as much as a GPU of a scarce product. A distance of 2 costs less: it slows one pod, whereas a broken-up GPU can
//! serve no pod that needs a whole one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use windlass_core::selector::Amount;

use super::{
    allocated_devices::{AllocatedDevices, Holding, Holdings},
    capacity::amount,
    counters::Counters,
    pool::State,
    pools::Pools,
    result::ChosenDevice,
};
use crate::policy::Term;

/// Losses by one allocation on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLosses {
    /// Number of GPUs that had no holder, and can no longer be allocated as a whole.
    pub broken_gpus: u32,
    /// Loss in the size of the largest possible partitions, in thousandths of a GPU.
    pub partition_milli: u32,
    /// Number of PCIe switches or roots that had free GPUs and free NICs, and keep only one of the two.
    pub stranded: u32,
    /// Mean distance between the chosen GPUs and NICs, in thousandths.
    pub distance_milli: u32,
}

/// Attributes that losses depend on, in any domain.
pub(super) const ATTRIBUTES: [&str; 5] = [ISLAND, "numaNode", ROOT, SWITCH, "type"];
const ROOT: &str = "pcieRoot";
const SWITCH: &str = "pcieSwitch";
/// GPUs that NVLink or xGMI connects.
const ISLAND: &str = "island";

/// Kind of a device whose distance to others matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gpu,
    Nic,
}

/// Availability of a node's devices, before or after an allocation.
struct Availability<'a> {
    pools: &'a Pools,
    holdings: &'a [Option<&'a Holdings>],
    counters: Counters,
    chosen: &'a [ChosenDevice],
}

/// Number of free devices below one PCIe switch or root: `[before, after]` the allocation.
#[derive(Default)]
struct FreeCounts {
    gpus: [u32; 2],
    nics: [u32; 2],
}

/// Partition of a GPU, by its consumption of a counter set.
struct Partition {
    /// Pool and counter set.
    counter_set: (usize, usize),
    /// Fraction of the set that the partition consumes, in thousandths.
    milli: u32,
}

// === impl NodeLosses ===

impl NodeLosses {
    /// The losses by the devices that [`Claims::choose`](super::Claims::choose) has chosen from these pools.
    pub fn of(pools: &Pools, allocated: &AllocatedDevices, chosen: &[ChosenDevice]) -> Self {
        let holdings = allocated.of_pools(&pools.members);
        let mut availabilities =
            [&[], chosen].map(|chosen| Availability::of(pools, &holdings, chosen));
        Self {
            broken_gpus: broken_gpus(&mut availabilities),
            partition_milli: partition_milli(&mut availabilities),
            stranded: stranded(&mut availabilities),
            distance_milli: distance_milli(pools, chosen),
        }
    }

    /// Sum of the losses in points; zero or negative.
    pub fn points(&self) -> i32 {
        self.terms().iter().map(|term| term.points).sum()
    }

    /// The losses in points, each zero or negative.
    pub fn terms(&self) -> [Term; 4] {
        let term = |name, count: u32, weight: u32, scale: u32| {
            let points = u64::from(count) * u64::from(weight) / u64::from(scale);
            Term { name, points: -i32::try_from(points).unwrap_or(i32::MAX) }
        };
        [
            term("GPUs broken up", self.broken_gpus, 100, 1),
            term("places for partitions", self.partition_milli, 200, 1000),
            term("stranded GPUs or NICs", self.stranded, 50, 1),
            term("distance of the devices", self.distance_milli, 40, 1000),
        ]
    }
}

fn broken_gpus([before, after]: &mut [Availability<'_>; 2]) -> u32 {
    let gpus = before.pools.of_kind(Kind::Gpu);
    let is_broken = |gpu: &usize| {
        let device = before.pools.device(*gpu).1;
        let is_fully_allocated = after.is_chosen(*gpu, |chosen| {
            chosen.consumed.as_ref().is_none_or(|consumed| exhausts(device, consumed))
        });
        !is_fully_allocated && before.is_free(*gpu) && !after.is_free(*gpu)
    };
    count(gpus.filter(is_broken))
}

/// True if this consumption exhausts a capacity of a shared device, so that no other claim can have a share.
fn exhausts(device: &Device, consumed: &BTreeMap<String, Amount>) -> bool {
    device.capacity.iter().flatten().any(|(name, capacity)| {
        let consumed = consumed.get(name).copied().unwrap_or(Amount::ZERO);
        consumed > Amount::ZERO && consumed >= amount(&capacity.value)
    })
}

/// Sum of the loss over the counter sets from which the claims get a partition.
fn partition_milli([before, after]: &mut [Availability<'_>; 2]) -> u32 {
    let mut allocated_milli: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    for ChosenDevice { device, .. } in after.chosen {
        if let Some(Partition { counter_set, milli }) = after.pools.partition(*device) {
            *allocated_milli.entry(counter_set).or_default() += milli;
        }
    }
    let loss = |(counter_set, allocated): ((usize, usize), u32)| {
        let largest = |availability: &mut Availability<'_>| {
            let pools = availability.pools;
            let partitions =
                (0..pools.len()).filter_map(|device| Some((device, pools.partition(device)?)));
            let in_set = partitions.filter(|(_, partition)| partition.counter_set == counter_set);
            let available = in_set.filter(|(device, _)| availability.is_available(*device));
            available.map(|(_, partition)| partition.milli).max().unwrap_or(0)
        };
        largest(before).saturating_sub(largest(after) + allocated)
    };
    allocated_milli.into_iter().map(loss).sum()
}

fn stranded(availabilities: &mut [Availability<'_>; 2]) -> u32 {
    let pools = availabilities[0].pools;
    let mut parents: BTreeMap<&str, FreeCounts> = BTreeMap::new();
    let of_kind = |device: usize| Some((pools.kind(device)?, pools.device(device).1));
    // A driver that publishes no switches would have its NICs elsewhere than the GPUs beside them.
    let have_switches =
        (0..pools.len()).filter_map(of_kind).all(|(_, device)| text(device, SWITCH).is_some());
    for device in 0..pools.len() {
        let Some((kind, facts)) = of_kind(device) else { continue };
        let Some(parent) = text(facts, if have_switches { SWITCH } else { ROOT }) else { continue };
        let counts = parents.entry(parent).or_default();
        for (phase, availability) in availabilities.iter_mut().enumerate() {
            match kind {
                Kind::Gpu => counts.gpus[phase] += u32::from(availability.is_free(device)),
                // A NIC that claims share can serve one more.
                Kind::Nic => counts.nics[phase] += u32::from(availability.is_available(device)),
            }
        }
    }
    let is_stranded = |FreeCounts { gpus, nics }: &&FreeCounts| {
        gpus[0] > 0 && nics[0] > 0 && (gpus[1] > 0) != (nics[1] > 0)
    };
    count(parents.values().filter(is_stranded))
}

fn distance_milli(pools: &Pools, chosen: &[ChosenDevice]) -> u32 {
    let devices: BTreeSet<_> = chosen.iter().map(|chosen| chosen.device).collect();
    let devices: Vec<_> =
        devices.into_iter().filter(|device| pools.kind(*device).is_some()).collect();
    let (mut sum, mut pairs) = (0, 0);
    for (index, first) in devices.iter().enumerate() {
        for second in &devices[index + 1..] {
            let [first, second] = [first, second].map(|device| pools.device(*device).1);
            sum += distance(first, second);
            pairs += 1;
        }
    }
    sum * 1000 / u32::max(pairs, 1)
}

fn distance(first: &Device, second: &Device) -> u32 {
    let both = |name| text(first, name).zip(text(second, name));
    // Drivers of others publish the root alone.
    let is_near = |name| both(name).is_some_and(|(one, other)| one == other);
    if [ISLAND, SWITCH, ROOT].into_iter().any(is_near) {
        return 0;
    }
    let numa_node = |device: &Device| attribute(device, "numaNode").and_then(|value| value.int);
    match (both(ROOT), numa_node(first).zip(numa_node(second))) {
        (_, Some((node, other))) if node == other => 1,
        // A distance that is unknown costs nothing.
        (None, None) => 0,
        _ => 2,
    }
}

/// The text of an attribute, in any domain.
fn text<'a>(device: &'a Device, name: &str) -> Option<&'a str> {
    attribute(device, name)?.string.as_deref()
}

/// The attribute with this name, in any domain.
fn attribute<'a>(device: &'a Device, attribute: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.iter().flatten();
    let mut matches = attributes.filter(|(name, _)| name.rsplit('/').next() == Some(attribute));
    matches.next().map(|(_, value)| value)
}

fn count(items: impl Iterator) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

// === impl Pools ===

impl Pools {
    fn kind(&self, device: usize) -> Option<Kind> {
        match attribute(self.device(device).1, "type")?.string.as_deref()? {
            "gpu" => Some(Kind::Gpu),
            "nic" => Some(Kind::Nic),
            _ => None,
        }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |device| self.kind(*device) == Some(kind))
    }

    /// The partition that a device is; `None` for a device without counters.
    fn partition(&self, device: usize) -> Option<Partition> {
        let candidate = &self.candidates[device];
        let State::Ready(contents) = &self.members[candidate.pool].state else { return None };
        let set = contents.counter_sets.set_of(&candidate.consumptions)?;
        let milli = contents.counter_sets.consumed_milli(set, &candidate.consumptions);
        Some(Partition { counter_set: (candidate.pool, set), milli })
    }
}

// === impl Availability ===

impl<'a> Availability<'a> {
    fn of(
        pools: &'a Pools,
        holdings: &'a [Option<&'a Holdings>],
        chosen: &'a [ChosenDevice],
    ) -> Self {
        let counters = Counters::of(&pools.members, holdings);
        let mut availability = Self { pools, holdings, counters, chosen: &[] };
        for (index, ChosenDevice { device, .. }) in chosen.iter().enumerate() {
            let candidate = &pools.candidates[*device];
            // Only the first share of a device consumes counters: a later one sees it among the devices before.
            availability.chosen = &chosen[..index];
            if !availability.needs_no_counters(*device) {
                availability.counters.consume(candidate.pool, &candidate.consumptions);
            }
        }
        Self { chosen, ..availability }
    }

    /// True if a new claim could get the device, or a share of it.
    fn is_available(&mut self, device: usize) -> bool {
        let candidate = &self.pools.candidates[device];
        let is_whole = |chosen: &ChosenDevice| chosen.consumed.is_none();
        candidate.is_on_node
            && candidate.taints().next().is_none()
            && self.holding(device).is_none_or(|holding| holding.whole == 0)
            && !self.is_chosen(device, is_whole)
            && (self.needs_no_counters(device)
                || self.counters.suffice(candidate.pool, &candidate.consumptions))
    }

    /// True if the device has no holder and a new claim could get it.
    fn is_free(&mut self, device: usize) -> bool {
        self.holding(device).is_none()
            && !self.is_chosen(device, |_| true)
            && self.is_available(device)
    }

    /// True if a further allocation consumes no counters: the device consumes none, or its first share has consumed
    /// them.
    fn needs_no_counters(&self, device: usize) -> bool {
        self.pools.candidates[device].consumptions.is_empty()
            || self.holding(device).is_some_and(|holding| holding.shares > 0)
            || self.is_chosen(device, |chosen| chosen.consumed.is_some())
    }

    fn is_chosen(&self, device: usize, condition: impl Fn(&ChosenDevice) -> bool) -> bool {
        self.chosen.iter().any(|chosen| chosen.device == device && condition(chosen))
    }

    fn holding(&self, device: usize) -> Option<&'a Holding> {
        let candidate = &self.pools.candidates[device];
        self.holdings[candidate.pool]?.get(&candidate.device().name)
    }
}
