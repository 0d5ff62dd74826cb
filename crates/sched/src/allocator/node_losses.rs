//! Losses of a node by an allocation: devices that become less useful, beside those that it takes.
//!
//! | loss | meaning | points |
//! | --- | --- | --- |
//! | broken up | a GPU without a holder, of which the claims take a part | 100 per GPU |
//! | place | largest possible partition of a GPU: before, minus after, minus the one taken | 200 per GPU |
//! | stranded | a PCIe switch or root with free GPUs and free NICs that keeps only one of the two | 50 each |
//! | distance | between two chosen devices: 0 at one PCIe switch or root, 1 on one NUMA node, else 2 | 40 times the mean |
//!
//! The points are on the scale of [`Policy::Windlass`](crate::policy::Policy::Windlass). A GPU that is broken up costs
//! as much as a GPU of a scarce product. A distance of 2 costs less: it slows one pod, but a broken-up GPU serves no
//! pod that needs a whole one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use windlass_core::selector::Amount;

use super::{
    capacity::amount,
    counters::Counters,
    pool::State,
    pools::Pools,
    result::ChosenDevice,
    taken::{Holding, Holdings, Taken},
};
use crate::policy::Term;

/// Losses by one allocation on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLosses {
    /// GPUs without a holder before, which can no longer be given as a whole.
    pub broken_gpus: u32,
    /// Loss of places for partitions, in thousandths of a GPU.
    pub place_milli: u32,
    /// PCIe switches or roots that had free GPUs and free NICs, and keep only one of the two.
    pub stranded: u32,
    /// Mean distance between the chosen GPUs and NICs, in thousandths.
    pub distance_milli: u32,
}

/// Attributes that losses depend on, in any domain.
pub(super) const ATTRIBUTES: [&str; 4] = ["numaNode", "pcieRoot", SWITCH, "type"];
const SWITCH: &str = "pcieSwitch";

/// Kind of a device whose distance to others matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gpu,
    Nic,
}

/// Availability of a node's devices, before or after an allocation.
struct Room<'a> {
    pools: &'a Pools,
    holdings: &'a [Option<&'a Holdings>],
    counters: Counters,
    chosen: &'a [ChosenDevice],
}

/// Number of free devices below one PCIe switch or root: `[before, after]` the allocation.
#[derive(Default)]
struct Neighbours {
    gpus: [u32; 2],
    nics: [u32; 2],
}

// === impl NodeLosses ===

impl NodeLosses {
    /// The losses by the devices that [`Claims::choose`](super::Claims::choose) has chosen from these pools.
    pub fn of(pools: &Pools, taken: &Taken, chosen: &[ChosenDevice]) -> Self {
        let holdings = taken.of_pools(&pools.all);
        let mut rooms = [&[], chosen].map(|chosen| Room::of(pools, &holdings, chosen));
        Self {
            broken_gpus: broken_gpus(&mut rooms),
            place_milli: place_milli(&mut rooms),
            stranded: stranded(&mut rooms),
            distance_milli: distance_milli(pools, chosen),
        }
    }

    /// Sum of the losses in points; zero or negative.
    pub fn points(&self) -> i32 {
        self.terms().iter().map(|term| term.points).sum()
    }

    /// The losses in points, each zero or negative.
    pub fn terms(&self) -> [Term; 4] {
        let term = |name, count: u32, each: u32, per: u32| {
            let points = u64::from(count) * u64::from(each) / u64::from(per);
            Term { name, points: -i32::try_from(points).unwrap_or(i32::MAX) }
        };
        [
            term("GPUs broken up", self.broken_gpus, 100, 1),
            term("places for partitions", self.place_milli, 200, 1000),
            term("stranded GPUs or NICs", self.stranded, 50, 1),
            term("distance of the devices", self.distance_milli, 40, 1000),
        ]
    }
}

fn broken_gpus([before, after]: &mut [Room<'_>; 2]) -> u32 {
    let gpus = before.pools.of_kind(Kind::Gpu);
    let is_broken = |gpu: &usize| {
        let device = before.pools.device(*gpu).1;
        let is_given = after.is_chosen(*gpu, |chosen| {
            chosen.consumed.as_ref().is_none_or(|consumed| is_all(device, consumed))
        });
        !is_given && before.is_free(*gpu) && !after.is_free(*gpu)
    };
    count(gpus.filter(is_broken))
}

/// True if this consumption exhausts a capacity of a shared device, so that no other claim can have a share.
fn is_all(device: &Device, consumed: &BTreeMap<String, Amount>) -> bool {
    device.capacity.iter().flatten().any(|(name, capacity)| {
        let consumed = consumed.get(name).copied().unwrap_or(Amount::ZERO);
        consumed > Amount::ZERO && consumed >= amount(&capacity.value)
    })
}

/// Sum of the loss over the counter sets from which the claims take a partition.
fn place_milli([before, after]: &mut [Room<'_>; 2]) -> u32 {
    let mut own: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    for ChosenDevice { device, .. } in after.chosen {
        if let Some((pool, set, milli)) = after.pools.cut(*device) {
            *own.entry((pool, set)).or_default() += milli;
        }
    }
    let lost = |((pool, set), own): ((usize, usize), u32)| {
        let largest = |room: &mut Room<'_>| {
            let cuts = (0..room.pools.len()).filter_map(|it| Some((it, room.pools.cut(it)?)));
            let of_set = cuts.filter(|(_, cut)| (cut.0, cut.1) == (pool, set));
            let open: Vec<_> = of_set.map(|(device, cut)| (cut.2, device)).collect();
            open.into_iter().filter(|(_, it)| room.is_open(*it)).map(|it| it.0).max().unwrap_or(0)
        };
        largest(before).saturating_sub(largest(after) + own)
    };
    own.into_iter().map(lost).sum()
}

fn stranded(rooms: &mut [Room<'_>; 2]) -> u32 {
    let pools = rooms[0].pools;
    let mut places: BTreeMap<&str, Neighbours> = BTreeMap::new();
    for device in 0..pools.len() {
        let Some((kind, place)) = pools.kind(device).zip(place(pools.device(device).1)) else {
            continue;
        };
        let neighbours = places.entry(place).or_default();
        for (time, room) in rooms.iter_mut().enumerate() {
            match kind {
                Kind::Gpu => neighbours.gpus[time] += u32::from(room.is_free(device)),
                Kind::Nic => neighbours.nics[time] += u32::from(room.is_open(device)),
            }
        }
    }
    let is_stranded = |Neighbours { gpus, nics }: &&Neighbours| {
        gpus[0] > 0 && nics[0] > 0 && (gpus[1] > 0) != (nics[1] > 0)
    };
    count(places.values().filter(is_stranded))
}

fn distance_milli(pools: &Pools, chosen: &[ChosenDevice]) -> u32 {
    let near: BTreeSet<_> = chosen.iter().map(|chosen| chosen.device).collect();
    let near: Vec<_> = near.into_iter().filter(|it| pools.kind(*it).is_some()).collect();
    let (mut sum, mut pairs) = (0, 0);
    for (index, first) in near.iter().enumerate() {
        for second in &near[index + 1..] {
            let [first, second] = [first, second].map(|it| pools.device(*it).1);
            sum += distance(first, second);
            pairs += 1;
        }
    }
    sum * 1000 / u32::max(pairs, 1)
}

fn distance(first: &Device, second: &Device) -> u32 {
    let places = place(first).zip(place(second));
    let [numa, other] = [first, second].map(|it| attribute(it, "numaNode").and_then(|it| it.int));
    match (places, numa.zip(other)) {
        (Some((place, other)), _) if place == other => 0,
        (_, Some((numa, other))) if numa == other => 1,
        (None, None) => 0,
        _ => 2,
    }
}

/// The PCIe switch above a device, or else its PCIe root.
fn place(device: &Device) -> Option<&str> {
    let text = |name| attribute(device, name).and_then(|value| value.string.as_deref());
    text(SWITCH).or_else(|| text("pcieRoot"))
}

fn attribute<'a>(device: &'a Device, wanted: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.iter().flatten();
    let mut named = attributes.filter(|(name, _)| name.rsplit('/').next() == Some(wanted));
    named.next().map(|(_, value)| value)
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

    /// Pool and counter set from which a partition is made, and its fraction of the set in thousandths.
    fn cut(&self, device: usize) -> Option<(usize, usize, u32)> {
        let candidate = &self.candidates[device];
        let State::Ready(contents) = &self.all[candidate.pool].state else { return None };
        let set = contents.stock.set_of(&candidate.draws)?;
        Some((candidate.pool, set, contents.stock.milli_of(set, &candidate.draws)))
    }
}

// === impl Room ===

impl<'a> Room<'a> {
    fn of(
        pools: &'a Pools,
        holdings: &'a [Option<&'a Holdings>],
        chosen: &'a [ChosenDevice],
    ) -> Self {
        let counters = Counters::of(&pools.all, holdings);
        let mut room = Self { pools, holdings, counters, chosen: &[] };
        for (index, ChosenDevice { device, .. }) in chosen.iter().enumerate() {
            let candidate = &pools.candidates[*device];
            room.chosen = &chosen[..index];
            if !room.needs_no_counters(*device) {
                room.counters.take(candidate.pool, &candidate.draws);
            }
        }
        Self { chosen, ..room }
    }

    /// True if a new claim could get the device, or a share of it.
    fn is_open(&mut self, device: usize) -> bool {
        let candidate = &self.pools.candidates[device];
        let is_whole = |chosen: &ChosenDevice| chosen.consumed.is_none();
        candidate.is_here
            && candidate.taints().next().is_none()
            && self.holding(device).is_none_or(|holding| holding.whole == 0)
            && !self.is_chosen(device, is_whole)
            && (self.needs_no_counters(device)
                || self.counters.suffice(candidate.pool, &candidate.draws))
    }

    /// True if the device has no holder and a new claim could get it.
    fn is_free(&mut self, device: usize) -> bool {
        self.holding(device).is_none() && !self.is_chosen(device, |_| true) && self.is_open(device)
    }

    /// True if a further allocation consumes no counters: the device consumes none, or its first share did so.
    fn needs_no_counters(&self, device: usize) -> bool {
        self.pools.candidates[device].draws.is_empty()
            || self.holding(device).is_some_and(|holding| holding.shares > 0)
            || self.is_chosen(device, |chosen| chosen.consumed.is_some())
    }

    fn is_chosen(&self, device: usize, is_so: impl Fn(&ChosenDevice) -> bool) -> bool {
        self.chosen.iter().any(|chosen| chosen.device == device && is_so(chosen))
    }

    fn holding(&self, device: usize) -> Option<&'a Holding> {
        let candidate = &self.pools.candidates[device];
        self.holdings[candidate.pool]?.get(&candidate.device().name)
    }
}
