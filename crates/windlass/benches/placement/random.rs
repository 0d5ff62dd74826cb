//! Numbers drawn by lot, the same in every run: `SplitMix64`, as Java's `SplittableRandom` has it.

/// A source of numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

// === impl Random ===

impl Random {
    /// A source that gives the same numbers for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below a limit. The limits are small, so that the remainder favours nothing that
    /// anyone could measure.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let drawn = self.next() % limit as u64;
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

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The bit that has so many others below it.
fn nth_bit(mut set: u64, nth: usize) -> u64 {
    for _ in 0..nth {
        set &= set - 1;
    }
    set & set.wrapping_neg()
}
