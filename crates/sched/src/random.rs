//! Deterministic random number generator. Equal seeds give equal simulations with one build on one machine.

/// `SplitMix64` of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator seeded with a text's hash.
    pub fn of_text(text: &str) -> Self {
        // FNV-1a.
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A random UUID (version 4).
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.next_u64(), self.next_u64());
        // Version 4, variant 1.
        let high = (high & !0xf000) | 0x4000;
        let low = (low & !(0b11 << 62)) | (0b10 << 62);
        let digits = format!("{high:016x}{low:016x}");
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }

    /// A uniform number below `bound`, which is at least one. Its bias is below one in 2^32 for bounds below 2^32.
    pub fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next_u64()) * bound as u128;
        usize::try_from(product >> 64).expect("a product's upper half is below the bound")
    }

    /// A uniform number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        // Precision of an f64.
        const BITS: u32 = 53;
        #[expect(clippy::cast_precision_loss, reason = "as many bits as the type has")]
        let [numerator, denominator] =
            [(self.next_u64() >> (64 - BITS)) + 1, 1 << BITS].map(|it| it as f64);
        numerator / denominator
    }

    /// A number from the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    /// Shuffles the items, with equal probability for each order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
