//! Pseudo-random numbers, the same in every run.

use windlass_sched::random;

/// A generator of numbers.
#[derive(Debug)]
pub(crate) struct Random(random::Random);

// === impl Random ===

impl Random {
    /// A generator whose numbers depend only on the seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    /// A number below a limit. The limits are small, so the bias of the remainder is not measurable.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let number = self.0.next_u64() % limit as u64;
        usize::try_from(number).expect("below a limit of that type")
    }

    /// A random subset with this number of bits.
    pub(crate) fn random_subset(&mut self, superset: u64, size: usize) -> u64 {
        let mut set = superset;
        while set.count_ones() as usize > size {
            let nth = self.below(set.count_ones() as usize);
            set &= !nth_bit(set, nth);
        }
        set
    }
}

/// The bit with `nth` set bits below it.
fn nth_bit(mut set: u64, nth: usize) -> u64 {
    for _ in 0..nth {
        set &= set - 1;
    }
    set & set.wrapping_neg()
}
