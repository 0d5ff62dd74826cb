//! How many pairs each device is in: as even as the numbers allow.

/// The pairs of a choice, one for each device of the more numerous kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loads {
    pub(super) gpu: Load,
    pub(super) nic: Load,
    pub(super) pairs: usize,
    /// How many devices of the less numerous kind are in one pair more than the least.
    pub(super) extra: usize,
}

/// How many pairs a device of one kind is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) least: usize,
    pub(super) most: usize,
}

// === impl Loads ===

impl Loads {
    /// The loads of so many of each; neither is 0.
    pub(super) fn of(gpus: usize, nics: usize) -> Self {
        let (pairs, fewer) = (gpus.max(nics), gpus.min(nics));
        let extra = pairs % fewer;
        let one = Load { least: 1, most: 1 };
        let several = Load { least: pairs / fewer, most: pairs.div_ceil(fewer) };
        let (gpu, nic) = if gpus >= nics { (one, several) } else { (several, one) };
        Self { gpu, nic, pairs, extra }
    }

    /// Whether so many of each can be paired among themselves.
    pub(super) fn fit(self, gpus: usize, nics: usize) -> bool {
        gpus * self.gpu.least <= nics * self.nic.most
            && nics * self.nic.least <= gpus * self.gpu.most
    }
}
