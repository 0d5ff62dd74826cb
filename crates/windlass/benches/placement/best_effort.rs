//! Answers of the best-effort policy of NVIDIA's device plugin, computed without its enumeration.
//!
//! The policy (go-gpuallocator, `besteffort_policy.go`) partitions the free devices into sets of the requested size,
//! with one smaller set for a remainder. It takes the partition with the largest total value, of equal ones the first
//! in the order of enumeration, and answers with the best set of that partition. The enumeration visits up to 22
//! million partitions for 16 GPUs. Here, each set of free devices is partitioned once: into the set that contains its
//! first device, and a remainder that is already partitioned.
//!
//! The policy is modelled without two faults of the plugin at v0.20: it overwrites the best partition while it looks
//! for others, and it may answer with the remainder.

use windlass_core::{
    device::{Device, DeviceKind},
    topology::{Connection, PcieLevel},
};

use super::{
    machines::Machine,
    pairs::{PairValues, lowest_bits},
};

/// Maximum number of devices for which all sets fit into memory.
const MAX_DEVICES: usize = 16;

/// The answers for one size.
#[derive(Debug)]
pub(crate) struct BestEffort {
    pairs: PairValues,
    size: usize,
    /// By set of devices: the first set of its best partition.
    best_first_sets: Vec<u32>,
}

/// Partition of a set: the total value of its sets, and its first set.
type Partition = (i64, u32);

// === impl BestEffort ===

impl BestEffort {
    /// All answers for a size; `None` for devices without such a plugin or with another policy, and for too many
    /// devices.
    pub(crate) fn for_machine(machine: &Machine, size: usize) -> Option<Self> {
        let mut pool = machine.pool.iter().map(|&place| &machine.devices[place]);
        if machine.pool.len() > MAX_DEVICES || !pool.all(is_whole_gpu_of_nvidia) {
            return None;
        }
        let pairs = PairValues::from_machine(machine, score);
        let all_devices = u32::try_from(lowest_bits(pairs.devices())).expect("16 bits");
        let values: Vec<_> = (0..=all_devices).map(|set| pairs.sum(set.into())).collect();
        let mut best_partitions: Vec<Partition> = vec![(0, 0)];
        for set in 1..=all_devices {
            let partitions = first_sets(set, size).map(|first_set| {
                (
                    values[first_set as usize] + best_partitions[(set ^ first_set) as usize].0,
                    first_set,
                )
            });
            // The enumeration visits the set with the lower devices first.
            let key = |partition: &Partition| (partition.0, partition.1.reverse_bits());
            best_partitions.push(partitions.max_by_key(key).expect("a set has a partition"));
        }
        Some(Self {
            pairs,
            size,
            best_first_sets: best_partitions.into_iter().map(|(_, first_set)| first_set).collect(),
        })
    }

    /// The best set in the best partition of the free devices.
    pub(crate) fn choose(&self, free: u64) -> u64 {
        let mut remaining = usize::try_from(free).expect("16 bits");
        let mut best: Option<(i64, u64)> = None;
        while remaining != 0 {
            let set = self.best_first_sets[remaining];
            let value = self.pairs.sum(set.into());
            let is_whole = set.count_ones() as usize == self.size;
            if is_whole && best.is_none_or(|(best_value, _)| value > best_value) {
                best = Some((value, set.into()));
            }
            remaining ^= set as usize;
        }
        best.expect("at least `size` devices are free").1
    }
}

/// Possible first sets of a partition. Each has the first device, and the requested size or the size of the remainder.
fn first_sets(set: u32, size: usize) -> impl Iterator<Item = u32> {
    let lowest = set & set.wrapping_neg();
    let others = set ^ lowest;
    let remainder = set.count_ones() as usize % size;
    let subsets = std::iter::successors(Some(others), move |subset| {
        (*subset != 0).then(|| (subset - 1) & others)
    });
    subsets.map(move |subset| subset | lowest).filter(move |first_set| {
        let devices = first_set.count_ones() as usize;
        devices == size || devices == remainder
    })
}

/// True for a whole GPU of NVIDIA. For MIG devices, the plugin counts those in use on each GPU. GPUs with xGMI are
/// AMD's.
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
