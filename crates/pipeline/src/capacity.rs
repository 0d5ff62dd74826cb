//! CPUs and memory: those that a replica requests, and those that a node has free.

use std::ops::{AddAssign, SubAssign};

use crate::quantity::Bytes;

/// CPUs and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// CPUs; a tenth is 100m.
    pub cpus: f64,
    /// Memory.
    pub memory: Bytes,
}

/// Sums of tenths are not exact.
const CPU_TOLERANCE: f64 = 1e-6;

// === impl Capacity ===

impl Capacity {
    /// True if there is room for more beside what is taken.
    pub(crate) fn has_room(self, taken: Self, more: Self) -> bool {
        self.holds(Self {
            cpus: taken.cpus + more.cpus,
            memory: Bytes(taken.memory.0.saturating_add(more.memory.0)),
        })
    }

    /// True if it is no less than what is requested.
    pub(crate) fn holds(self, requested: Self) -> bool {
        requested.cpus <= self.cpus + CPU_TOLERANCE && requested.memory <= self.memory
    }

    /// The number of equal parts that fit.
    pub(crate) fn parts(self, part: Self) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a node has few CPUs"
        )]
        let by_cpus = ((self.cpus + CPU_TOLERANCE) / part.cpus).max(0.0) as usize;
        let by_memory = self.memory.0.checked_div(part.memory.0);
        let by_memory = by_memory.and_then(|parts| usize::try_from(parts).ok());
        by_cpus.min(by_memory.unwrap_or(usize::MAX))
    }
}

impl AddAssign for Capacity {
    fn add_assign(&mut self, other: Self) {
        self.cpus += other.cpus;
        self.memory.0 = self.memory.0.saturating_add(other.memory.0);
    }
}

impl SubAssign for Capacity {
    fn sub_assign(&mut self, other: Self) {
        self.cpus -= other.cpus;
        self.memory.0 = self.memory.0.saturating_sub(other.memory.0);
    }
}
