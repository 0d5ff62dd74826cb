//! The rival as its source has it, every way to cut looked at, beside the quick form that jobs are played
//! with.

use crate::placement::{
    best_effort::{BestEffort, score},
    every_machine,
    pairs::{Pairs, first, members},
};

/// Looks at every way to cut what is free into sets of a size, and a rest.
struct Enumeration<'a> {
    pairs: &'a Pairs,
    size: usize,
    /// The sets of the best way so far, and what they are worth together.
    best: Option<(i64, Vec<u64>)>,
}

// === impl Enumeration ===

impl Enumeration<'_> {
    /// The first device that is left goes into a set with each choice of others, the lower ones first.
    fn cut(&mut self, left: u64, sets: &mut Vec<u64>) {
        let Some(lowest) = members(left).next() else { return self.compare(sets) };
        let rest = left.count_ones() as usize % self.size;
        for others in subsets(left & !(1 << lowest)) {
            let set = others | 1 << lowest;
            let devices = set.count_ones() as usize;
            if devices == self.size || devices == rest {
                sets.push(set);
                self.cut(left & !set, sets);
                sets.pop();
            }
        }
    }

    fn compare(&mut self, sets: &[u64]) {
        let worth = sets.iter().map(|&set| self.pairs.sum(set)).sum();
        if self.best.as_ref().is_none_or(|(most, _)| worth > *most) {
            self.best = Some((worth, sets.to_vec()));
        }
    }

    /// The first of the best sets of the best way.
    fn answer(&self) -> u64 {
        let (_, sets) = self.best.as_ref().expect("there is a way");
        let whole = sets.iter().copied().filter(|set| set.count_ones() as usize == self.size);
        let better =
            |best: u64, set| if self.pairs.sum(set) > self.pairs.sum(best) { set } else { best };
        whole.reduce(better).expect("enough are free")
    }
}

/// All subsets, in the order of their lists: those with the lowest device before those without.
fn subsets(of: u64) -> Vec<u64> {
    let Some(lowest) = members(of).next() else { return vec![0] };
    let others = subsets(of & !(1 << lowest));
    others.iter().map(|set| set | 1 << lowest).chain(others.iter().copied()).collect()
}

#[tokio::test]
async fn the_rival_is_what_its_enumeration_says() {
    let machines = every_machine().await.iter();
    for machine in machines.filter(|machine| ["dgx-1", "l40s-pcie"].contains(&machine.name)) {
        let pairs = Pairs::of(machine, score);
        for size in 1..=8 {
            let quick = BestEffort::of(machine, size).expect("GPUs of NVIDIA's");
            let is_enough = |free: &u64| free.count_ones() as usize >= size;
            for free in (1..=first(8)).filter(is_enough) {
                let mut all = Enumeration { pairs: &pairs, size, best: None };
                all.cut(free, &mut Vec::new());
                assert_eq!(quick.choose(free), all.answer(), "{size} of {free:08b}");
            }
        }
    }
}
