//! CPUs and memory: the request of a replica, or the free capacity of a node.

use std::ops::{AddAssign, SubAssign};

use crate::quantity::Bytes;

/// CPUs and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// CPUs; 0.1 is `100m` in Kubernetes.
    pub cpus: f64,
    /// Memory in bytes.
    pub memory: Bytes,
}

/// Tolerance of CPU comparisons, for rounding errors in sums of fractions.
const CPU_TOLERANCE: f64 = 1e-6;

// === impl Capacity ===

impl Capacity {
    /// True if `requested` and `additional` fit together.
    pub(crate) fn fits_both(self, requested: Self, additional: Self) -> bool {
        self.fits(Self {
            cpus: requested.cpus + additional.cpus,
            memory: Bytes(requested.memory.0.saturating_add(additional.memory.0)),
        })
    }

    /// True if the request fits.
    pub(crate) fn fits(self, requested: Self) -> bool {
        requested.cpus <= self.cpus + CPU_TOLERANCE && requested.memory <= self.memory
    }

    /// The number of requests of this size that fit.
    pub(crate) fn fit_count(self, request: Self) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a node has few CPUs"
        )]
        let by_cpus = ((self.cpus + CPU_TOLERANCE) / request.cpus).max(0.0) as usize;
        let by_memory = self.memory.0.checked_div(request.memory.0);
        let by_memory = by_memory.and_then(|count| usize::try_from(count).ok());
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
