//! Deterministic random numbers.

/// Generator that repeats its numbers for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

// === impl Rng ===

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Number below `end`, which is at least 1. The slight bias towards small numbers is acceptable.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("less than a usize")
    }

    /// Next number of `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
