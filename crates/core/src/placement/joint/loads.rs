//! Pair counts per device, as even as possible.

/// Pair counts of a choice: one pair per device of the more numerous kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loads {
    pub(super) gpu: Load,
    pub(super) nic: Load,
    pub(super) pairs: usize,
    /// Number of devices of the less numerous kind with one extra pair.
    pub(super) extra: usize,
}

/// Range of the pair count of a device of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) min: usize,
    pub(super) max: usize,
}

// === impl Loads ===

impl Loads {
    /// Pair counts for these numbers of devices, neither 0.
    pub(super) fn of(gpus: usize, nics: usize) -> Self {
        let (pairs, smaller_count) = (gpus.max(nics), gpus.min(nics));
        let extra = pairs % smaller_count;
        let single = Load { min: 1, max: 1 };
        let several = Load { min: pairs / smaller_count, max: pairs.div_ceil(smaller_count) };
        let (gpu, nic) = if gpus >= nics { (single, several) } else { (several, single) };
        Self { gpu, nic, pairs, extra }
    }

    /// True if these numbers of devices can be paired among themselves.
    pub(super) fn can_be_paired(self, gpus: usize, nics: usize) -> bool {
        gpus * self.gpu.min <= nics * self.nic.max && nics * self.nic.min <= gpus * self.gpu.max
    }
}
