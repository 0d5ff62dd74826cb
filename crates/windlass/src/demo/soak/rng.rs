//! Deterministic random numbers.

use windlass_sched::random::Random;

/// Generator that repeats its numbers for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Rng(Random);

// === impl Rng ===

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Number below `end`, which is at least 1. The slight bias towards small numbers is acceptable.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % end.max(1) as u64)
            .expect("the remainder is below `end`, a usize")
    }
}
