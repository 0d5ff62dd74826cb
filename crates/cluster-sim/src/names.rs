//! Generated names and ids, the same in each run.

/// A source of names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(u64);

// === impl Names ===

impl Names {
    /// Letters of the real server. Without vowels no words occur.
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates a source. Equal texts give equal names.
    pub(crate) fn seeded_by(text: &str) -> Self {
        // FNV-1a.
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014) mixes even a counter well.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Suffix of five letters for a generated name.
    pub(crate) fn suffix(&mut self) -> String {
        let mut number = self.next();
        let letter = |_| {
            let index = usize::try_from(number % 27).expect("less than 27");
            number /= 27;
            char::from(Self::LETTERS[index])
        };
        (0..5).map(letter).collect()
    }

    /// Unique id in the format of a random UUID.
    pub(crate) fn uid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        // Version 4, variant 1.
        let high = (high & !0xf000) | 0x4000;
        let low = (low & !(0b11 << 62)) | (0b10 << 62);
        let digits = format!("{high:016x}{low:016x}");
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }
}
