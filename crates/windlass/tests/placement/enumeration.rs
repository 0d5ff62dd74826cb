//! NVIDIA's best-effort policy, which enumerates all partitions, compared with the fast form in the job simulations.

use crate::placement::{
    best_effort::{BestEffort, score},
    every_machine,
    pairs::{PairValues, bit_indices, lowest_bits},
};

/// Enumerates all partitions of the free devices into sets of one size, and a remainder.
struct Enumeration<'a> {
    pairs: &'a PairValues,
    size: usize,
    /// Total score and sets of the best partition so far.
    best: Option<(i64, Vec<u64>)>,
}

// === impl Enumeration ===

impl Enumeration<'_> {
    /// Puts the lowest remaining device into a set with each choice of others, lower ones first.
    fn partition(&mut self, remaining: u64, sets: &mut Vec<u64>) {
        let Some(lowest) = bit_indices(remaining).next() else { return self.compare(sets) };
        let remainder = remaining.count_ones() as usize % self.size;
        for others in subsets(remaining & !(1 << lowest)) {
            let set = others | 1 << lowest;
            let devices = set.count_ones() as usize;
            if devices == self.size || devices == remainder {
                sets.push(set);
                self.partition(remaining & !set, sets);
                sets.pop();
            }
        }
    }

    fn compare(&mut self, sets: &[u64]) {
        let total = sets.iter().map(|&set| self.pairs.sum(set)).sum();
        if self.best.as_ref().is_none_or(|(best_total, _)| total > *best_total) {
            self.best = Some((total, sets.to_vec()));
        }
    }

    /// First of the best full sets of the best partition.
    fn answer(&self) -> u64 {
        let (_, sets) = self.best.as_ref().expect("a partition");
        let full = sets.iter().copied().filter(|set| set.count_ones() as usize == self.size);
        let better_set =
            |best: u64, set| if self.pairs.sum(set) > self.pairs.sum(best) { set } else { best };
        full.reduce(better_set).expect("enough are free")
    }
}

/// All subsets: those with the lowest device before those without it.
fn subsets(devices: u64) -> Vec<u64> {
    let Some(lowest) = bit_indices(devices).next() else { return vec![0] };
    let other_subsets = subsets(devices & !(1 << lowest));
    other_subsets.iter().map(|set| set | 1 << lowest).chain(other_subsets.iter().copied()).collect()
}

#[tokio::test]
async fn the_fast_form_of_best_effort_equals_the_enumeration() {
    let machines = every_machine().await.iter();
    for machine in machines.filter(|machine| ["dgx-1", "l40s-pcie"].contains(&machine.name)) {
        let pairs = PairValues::from_machine(machine, score);
        for size in 1..=8 {
            let best_effort = BestEffort::for_machine(machine, size).expect("GPUs of NVIDIA's");
            let is_enough = |free: &u64| free.count_ones() as usize >= size;
            for free in (1..=lowest_bits(8)).filter(is_enough) {
                let mut enumeration = Enumeration { pairs: &pairs, size, best: None };
                enumeration.partition(free, &mut Vec::new());
                assert_eq!(best_effort.choose(free), enumeration.answer(), "{size} of {free:08b}");
            }
        }
    }
}
