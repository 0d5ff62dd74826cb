//! Random generation and length of walks.
//!
//! `WINDLASS_RANDOM_SECONDS` or `WINDLASS_RANDOM_STEPS` makes a run longer; `WINDLASS_RANDOM_SEED` repeats one.

use std::{
    env,
    time::{Duration, Instant},
};

/// Numbers of `SplitMix64`; a seed always gives the same ones.
pub(crate) struct Rng(u64);

/// Length of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Time(Duration),
    Steps(u64),
}

// === impl Rng ===

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the numbers below the end.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("less than a usize")
    }
}

// === impl Length ===

impl Length {
    /// Length by the environment variables, or else this number of steps.
    pub(crate) fn from_env_or(steps: u64) -> Self {
        let seconds = number("WINDLASS_RANDOM_SECONDS").map(Duration::from_secs);
        let steps = || number("WINDLASS_RANDOM_STEPS").unwrap_or(steps);
        seconds.map_or_else(|| Self::Steps(steps()), Self::Time)
    }

    pub(crate) fn is_reached(self, start: Instant, steps: u64) -> bool {
        match self {
            Self::Time(limit) => start.elapsed() >= limit,
            Self::Steps(limit) => steps >= limit,
        }
    }
}

pub(crate) fn seed() -> u64 {
    number("WINDLASS_RANDOM_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}
