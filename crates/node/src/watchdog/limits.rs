//! Limits of memory on shared GPUs, by the ledger.

use std::collections::{BTreeMap, BTreeSet};

use windlass_allocations::ledger::{ClaimRef, Ledger};
use windlass_core::device::DeviceId;

/// Limits of memory on each shared GPU. A GPU that one holder has as a whole is absent.
pub(super) type Limits = BTreeMap<DeviceId, GpuLimits>;

/// Limits of memory on a GPU, in MiB, by holder: pods with shares, and claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuLimits(BTreeMap<ClaimRef, u64>);

/// Holders that a pod's processes count for: its own share, and the claims that it uses. A claim may have several pods,
/// which share its limit.
pub(super) type Holders = BTreeSet<ClaimRef>;

/// Limits of the shares by amounts in the ledger.
pub(super) fn limits(ledger: &Ledger) -> Limits {
    let mut all = Limits::new();
    for (device, holds) in ledger.claims() {
        let portions = holds.values().filter_map(|hold| Some((hold.claim(), hold.portion()?)));
        let parts = portions.filter(|(_, portion)| portion.memory < portion.of);
        for (claim, portion) in parts {
            let gpu = all.entry(device.clone()).or_default();
            gpu.0.insert(claim.clone(), portion.memory);
        }
    }
    all
}

// === impl GpuLimits ===

impl GpuLimits {
    /// The pod's own share; `None` if it has none.
    pub(super) fn share_of(&self, pod: &str) -> Option<&ClaimRef> {
        self.0.keys().find(|holder| holder.pod_of_share() == Some(pod))
    }

    /// Claims of these names.
    pub(super) fn claims<'a>(
        &'a self,
        namespace: &'a str,
        names: &'a [String],
    ) -> impl Iterator<Item = &'a ClaimRef> {
        let is_one = move |holder: &&ClaimRef| {
            !holder.is_share() && holder.namespace == namespace && names.contains(&holder.name)
        };
        self.0.keys().filter(is_one)
    }

    /// All limits, in MiB.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ClaimRef, u64)> {
        self.0.iter().map(|(holder, mib)| (holder, *mib))
    }

    /// True if claims have limits: then a pod's claims must be known.
    pub(super) fn has_claims(&self) -> bool {
        self.0.keys().any(|holder| !holder.is_share())
    }

    /// Limit of these holders together, in MiB; `None` without any.
    pub(super) fn of(&self, holders: &Holders) -> Option<u64> {
        holders.iter().map(|holder| self.0.get(holder)).sum::<Option<u64>>().filter(|mib| *mib > 0)
    }
}
