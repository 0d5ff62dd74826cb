//! Numbers that come again for the same seed.

/// Who asks the same questions in the same order gets the same answers.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

// === impl Chance ===

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which is at least 1. That small ones are a trace more likely matters to nobody
    /// here.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("less than a usize")
    }

    /// The next number of `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
