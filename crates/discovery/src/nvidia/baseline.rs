//! Baselines: earlier readings of each GPU, for comparison with later readings. Baselines survive a new initialisation
//! of NVML.
//!
//! A link that is down is a fault only if it was up before, and a count of errors only if it grew. Without its
//! baseline, a broken GPU would look healthy after a new initialisation.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;

use super::{conditions::Conditions, facts::LinkFacts};

/// Baselines of all GPUs that answered once.
pub(super) type Baselines = BTreeMap<DeviceId, Baseline>;

#[derive(Clone, Default)]
pub(super) struct Baseline {
    pub(super) links: LinkFacts,
    pub(super) conditions: Conditions,
    pub(super) errors: ErrorCount,
}

/// Uncorrected memory errors as of the last probe.
#[derive(Clone, Copy, Default)]
pub(super) struct ErrorCount {
    /// Errors since the driver was loaded.
    uncorrected: Option<u64>,
    /// True if an event has reported a contained error since then. The next count includes it.
    pub(super) contained: bool,
}

// === impl ErrorCount ===

impl ErrorCount {
    /// New errors since the last probe, unless a contained error explains them.
    pub(super) fn count(&mut self, uncorrected: Option<u64>) -> Option<u64> {
        let last = std::mem::replace(self, Self { uncorrected, contained: false });
        let new_errors =
            uncorrected?.checked_sub(last.uncorrected?).filter(|&new_errors| new_errors > 0)?;
        (!last.contained).then_some(new_errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_new_if_the_count_grew_and_no_contained_error_explains_it() {
        let mut errors = ErrorCount::default();
        let counts = [Some(3), Some(3), Some(5), None, Some(9), Some(1), Some(2)];
        let new_errors = counts.map(|count| errors.count(count));
        assert_eq!(new_errors, [None, None, Some(2), None, None, None, Some(1)]);
        errors.contained = true;
        assert_eq!((errors.count(Some(4)), errors.count(Some(5))), (None, Some(1)));
    }
}
