//! Answers of the best-effort policy of NVIDIA's device plugin, computed without its enumeration.
//!
//! The policy (go-gpuallocator, `besteffort_policy.go`) cuts all that is free into sets of the size that
//! is asked for, and one for the rest where that does not come out even. Of all ways to cut it takes the
//! one whose sets are worth most together, of equals the first in the order of enumeration, and of its
//! sets the best. The enumeration looks at up to 22 million ways for 16 GPUs; here each set of free
//! devices is cut once, into the set that has its first device and a rest that is cut already.
//!
//! It is given its best form: two faults of the plugin at v0.20, which overwrites the best way while it
//! looks for others and may answer with the rest, are not repeated.

use windlass_core::{
    device::{Device, DeviceKind},
    topology::{Connection, PcieLevel},
};

use super::{
    machines::Machine,
    pairs::{PairValues, lowest_bits},
};

/// The most devices for which all sets fit into memory.
const MAX_DEVICES: usize = 16;

/// The answers for one size.
#[derive(Debug)]
pub(crate) struct BestEffort {
    pairs: PairValues,
    size: usize,
    /// For each set of devices the first set of the best way to cut it.
    best_first_sets: Vec<u32>,
}

/// A way to cut a set begins with these devices, and its sets are worth that much together.
type Partition = (i64, u32);

// === impl BestEffort ===

impl BestEffort {
    /// All answers for a size; `None` where there is no such plugin or it has another policy, or where
    /// there are too many devices.
    pub(crate) fn of(machine: &Machine, size: usize) -> Option<Self> {
        let mut pool = machine.pool.iter().map(|&place| &machine.devices[place]);
        if machine.pool.len() > MAX_DEVICES || !pool.all(is_whole_gpu_of_nvidia) {
            return None;
        }
        let pairs = PairValues::of(machine, score);
        let all = u32::try_from(lowest_bits(pairs.devices())).expect("16 bits");
        let worth: Vec<_> = (0..=all).map(|set| pairs.sum(set.into())).collect();
        let mut best: Vec<Partition> = vec![(0, 0)];
        for set in 1..=all {
            let cuts = first_sets(set, size)
                .map(|begin| (worth[begin as usize] + best[(set ^ begin) as usize].0, begin));
            // Enumeration meets the set with the lower devices first.
            let order = |cut: &Partition| (cut.0, cut.1.reverse_bits());
            best.push(cuts.max_by_key(order).expect("a set can be cut"));
        }
        Some(Self {
            pairs,
            size,
            best_first_sets: best.into_iter().map(|(_, begin)| begin).collect(),
        })
    }

    /// The best set of the best way to cut what is free.
    pub(crate) fn choose(&self, free: u64) -> u64 {
        let mut left = usize::try_from(free).expect("16 bits");
        let mut best: Option<(i64, u64)> = None;
        while left != 0 {
            let set = self.best_first_sets[left];
            let worth = self.pairs.sum(set.into());
            let is_whole = set.count_ones() as usize == self.size;
            if is_whole && best.is_none_or(|(most, _)| worth > most) {
                best = Some((worth, set.into()));
            }
            left ^= set as usize;
        }
        best.expect("as many are free as are asked for").1
    }
}

/// The sets that a way to cut can begin with: they have the first device, and the size, or that of the
/// rest.
fn first_sets(set: u32, size: usize) -> impl Iterator<Item = u32> {
    let lowest = set & set.wrapping_neg();
    let others = set ^ lowest;
    let rest = set.count_ones() as usize % size;
    let subsets = std::iter::successors(Some(others), move |subset| {
        (*subset != 0).then(|| (subset - 1) & others)
    });
    subsets.map(move |subset| subset | lowest).filter(move |begin| {
        let devices = begin.count_ones() as usize;
        devices == size || devices == rest
    })
}

/// For parts the plugin counts what is in use on each GPU. GPUs with xGMI are AMD's.
fn is_whole_gpu_of_nvidia(device: &Device) -> bool {
    device.kind == DeviceKind::Gpu && device.parent.is_none() && device.place.xgmi.is_empty()
}

/// A pair's score: links to a switch do not count.
pub(crate) fn score(connection: Connection) -> i64 {
    let direct = connection.nvlink.filter(|pair| !pair.via_switch);
    let pcie = match connection.pcie {
        PcieLevel::Device | PcieLevel::Board => 60,
        PcieLevel::Pix => 50,
        PcieLevel::Pxb => 40,
        PcieLevel::Phb => 30,
        PcieLevel::Node => 20,
        PcieLevel::Sys => 10,
    };
    pcie + direct.map_or(0, |pair| 100 * i64::from(pair.links))
}
