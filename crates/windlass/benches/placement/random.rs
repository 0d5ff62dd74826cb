//! Numbers drawn by lot, the same in every run.

use windlass_sched::random;

/// A source of numbers.
#[derive(Debug)]
pub(crate) struct Random(random::Random);

// === impl Random ===

impl Random {
    /// A source that gives the same numbers for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    /// A number below a limit. The limits are small, so that the remainder favours nothing that
    /// anyone could measure.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let drawn = self.0.next_u64() % limit as u64;
        usize::try_from(drawn).expect("below a limit of that type")
    }

    /// A set of so many of the bits of another.
    pub(crate) fn subset(&mut self, of: u64, size: usize) -> u64 {
        let mut set = of;
        while set.count_ones() as usize > size {
            let nth = self.below(set.count_ones() as usize);
            set &= !nth_bit(set, nth);
        }
        set
    }
}

/// The bit that has so many others below it.
fn nth_bit(mut set: u64, nth: usize) -> u64 {
    for _ in 0..nth {
        set &= set - 1;
    }
    set & set.wrapping_neg()
}
