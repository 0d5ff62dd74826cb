//! Resources that count amounts of GPUs: memory in GiB, or compute in percent. Their ids are tokens without a
//! device, since a share's GPU is chosen when its first container starts.

use std::{borrow::Cow, collections::BTreeMap};

use windlass_core::{device::DeviceId, replica::token_number};

use super::{Allocatability, ListEntry, Offer};

/// GPUs of which pods may have shares by amounts.
pub type ShareableGpus = BTreeMap<DeviceId, ShareableGpu>;

/// A GPU of which pods may have shares by amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareableGpu {
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Reason why the GPU gets no new shares.
    pub obstacle: Option<String>,
}

/// The amount that a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareUnit {
    /// A GiB of memory.
    Gibibyte,
    /// A hundredth of a GPU's compute.
    Percent,
    /// A virtual GPU. Each GPU has this many.
    VirtualGpu(u32),
}

/// Tokens of a resource that counts an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareTokens {
    /// Tokens of all GPUs.
    total: u32,
    /// Tokens of GPUs without an obstacle. They have the lowest numbers.
    usable: u32,
    /// State of the tokens that are not usable.
    unusable_state: Allocatability,
}

/// Compute of a whole GPU in percent.
const WHOLE_GPU_PERCENT: u32 = 100;

const MIB_PER_GIB: u64 = 1024;

/// Reason why tokens beyond the usable GPUs cannot be allocated.
const UNUSABLE_REASON: &str = "GPUs with these amounts are held as a whole, or not healthy";

static USABLE: Allocatability = Allocatability::Ready;

// === impl ShareUnit ===

impl ShareUnit {
    fn tokens(self, gpu: &ShareableGpu) -> u32 {
        match self {
            Self::Gibibyte => u32::try_from(gpu.memory_mib / MIB_PER_GIB).unwrap_or(u32::MAX),
            Self::Percent => WHOLE_GPU_PERCENT,
            Self::VirtualGpu(per_gpu) => per_gpu,
        }
    }
}

// === impl ShareTokens ===

impl ShareTokens {
    /// Tokens for the amounts of these GPUs; `None` if there are none.
    pub(super) fn from_gpus(unit: ShareUnit, gpus: &ShareableGpus) -> Option<Self> {
        let sum = |gpus: &mut dyn Iterator<Item = &ShareableGpu>| {
            gpus.map(|gpu| unit.tokens(gpu)).fold(0, u32::saturating_add)
        };
        let total = sum(&mut gpus.values());
        let usable = sum(&mut gpus.values().filter(|gpu| gpu.obstacle.is_none()));
        let unusable_state = Allocatability::Blocked(UNUSABLE_REASON.to_owned());
        (total > 0).then_some(Self { total, usable, unusable_state })
    }
}

// === impl Offer ===

impl Offer {
    /// True if the resource counts amounts of GPUs.
    pub fn counts_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// True if the resource counts amounts and all ids are tokens, withdrawn ones included.
    pub fn are_share_tokens(&self, ids: &[String]) -> bool {
        self.counts_shares() && ids.iter().all(|id| token_number(id).is_some())
    }

    /// Number of tokens that count amounts.
    pub(super) fn share_token_count(&self) -> u32 {
        self.shares.as_ref().map_or(0, |shares| shares.total)
    }

    /// Number of tokens that count amounts of usable GPUs.
    pub(super) fn usable_share_count(&self) -> u32 {
        self.shares.as_ref().map_or(0, |shares| shares.usable)
    }

    pub(super) fn list_shares(&self) -> impl Iterator<Item = ListEntry<'_>> {
        self.shares.iter().flat_map(|shares| {
            (0..shares.total).map(|number| ListEntry {
                id: Cow::Owned(number.to_string()),
                state: if number < shares.usable { &USABLE } else { &shares.unusable_state },
                numa_node: None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(amounts: &[(&str, u64, bool)]) -> ShareableGpus {
        let gpu = |(id, memory_mib, is_usable): &(&str, u64, bool)| {
            let obstacle = (!is_usable).then(|| "lost".to_owned());
            (id.parse().expect("an id"), ShareableGpu { memory_mib: *memory_mib, obstacle })
        };
        amounts.iter().map(gpu).collect()
    }

    #[test]
    fn tokens_count_whole_units_of_each_gpu_and_those_of_usable_gpus_come_first() {
        let gpus = gpus(&[("a", 3 * 1024 + 1023, true), ("b", 2 * 1024, false)]);
        let units = [
            (ShareUnit::Gibibyte, 5, 3),
            (ShareUnit::Percent, 200, 100),
            (ShareUnit::VirtualGpu(10), 20, 10),
        ];
        for (unit, total, usable) in units {
            let offer = Offer { shares: ShareTokens::from_gpus(unit, &gpus), ..Offer::default() };
            assert_eq!((offer.listed_count(), offer.allocatable_count()), (total, usable));
            let entries: Vec<_> = offer
                .list()
                .map(|entry| (entry.id.into_owned(), entry.state.obstacle().is_none()))
                .collect();
            let expected = (0..total).map(|number| (number.to_string(), number < usable));
            assert_eq!(entries, expected.collect::<Vec<_>>());
            assert!(offer.has_token("0") && !offer.has_token(&total.to_string()));
        }
        assert_eq!(ShareTokens::from_gpus(ShareUnit::Gibibyte, &ShareableGpus::new()), None);
    }
}
