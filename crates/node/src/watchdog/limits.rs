//! Limits of memory and compute on shared GPUs: of shares by amounts in the ledger, of replicas with a given memory,
//! and of GPU fractions.

use std::collections::{BTreeMap, BTreeSet};

use windlass_allocations::{
    follow::Allocations,
    ledger::{ClaimRef, Ledger, Portion},
};
use windlass_config::SharingMethod;
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_resources::{NodeState, offers::OfferedDevice};

use crate::nv_fractions::FractionLimits;

/// Limits on each shared GPU. A GPU that one holder has as a whole is absent.
pub(super) type Limits = BTreeMap<DeviceId, GpuLimits>;

/// Limits on a GPU by holder: pods with shares, and claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuLimits(BTreeMap<ClaimRef, Limit>);

/// Limit of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Memory in MiB; 0 for a holder of compute alone.
    pub(super) mib: u64,
    /// Compute in percent of the GPU; 0 for a holder without a compute request.
    pub(super) compute_percent: u32,
    /// True if an MPS daemon serves the holder.
    pub(super) is_mps: bool,
}

/// Holders that a pod's processes count for: its own share, and the claims that it uses. Pods of one claim share its
/// limit.
pub(super) type Holders = BTreeSet<ClaimRef>;

/// Limits of the shares by amounts in the ledger.
pub(super) fn limits(ledger: &Ledger) -> Limits {
    let mut limits = Limits::new();
    for (device, holds) in ledger.claims() {
        let portions = holds.values().filter_map(|hold| Some((hold.claim(), hold.portion()?)));
        let partial_shares = portions.filter(|(_, portion)| portion.memory < portion.of);
        for (claim, portion) in partial_shares {
            let gpu = limits.entry(device.clone()).or_default();
            gpu.0.insert(claim.clone(), Limit::of(&portion));
        }
    }
    limits
}

/// Adds the limits of the replicas that containers hold. They count per pod; each replica counts once, because later
/// containers reuse those of an init container.
pub(super) fn add_replicas(limits: &mut Limits, allocations: &Allocations, state: &NodeState) {
    let (held_ids, containers) =
        (allocations.held_ids(), allocations.containers().unwrap_or_default());
    let mut counted = BTreeSet::new();
    for container in containers {
        let held_ids_of_resource = held_ids.and_then(|ids| ids.get(&container.resource));
        let ids = container
            .ids
            .iter()
            .filter(|id| held_ids_of_resource.is_some_and(|ids| ids.contains(*id)));
        for id in ids.filter(|id| counted.insert((&container.pod, *id))) {
            let Ok(replica) = id.parse::<ReplicaId>() else { continue };
            let Some(mib) = state.replica_memory.get(&replica.device) else { continue };
            let offer = state.offers.get(&container.resource);
            let device = offer.and_then(|offer| offer.devices.get(&replica.device));
            let shared = device.and_then(OfferedDevice::shared);
            let is_mps = shared.is_some_and(|shared| shared.method == SharingMethod::Mps);
            let holder = ClaimRef::of_share("", &container.pod, &container.pod);
            limits.entry(replica.device).or_default().add_memory(holder, *mib, is_mps);
        }
    }
}

/// Adds the limits of pods with GPU fractions.
pub(super) fn add_fractions(limits: &mut Limits, fractions: &FractionLimits) {
    for (device, pods) in fractions {
        let gpu = limits.entry(device.clone()).or_default();
        for (holder, mib) in pods {
            gpu.add_memory(holder.clone(), *mib, false);
        }
    }
}

/// Joins sets that have a holder in common: pods that share a claim count together.
pub(super) fn merge_overlapping<'a>(sets: impl Iterator<Item = &'a Holders>) -> Vec<Holders> {
    let mut groups: Vec<Holders> = Vec::new();
    for set in sets {
        let (overlapping, mut disjoint): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| !group.is_disjoint(set));
        disjoint.push(overlapping.into_iter().flatten().chain(set.iter().cloned()).collect());
        groups = disjoint;
    }
    groups
}

// === impl GpuLimits ===

impl GpuLimits {
    /// Adds memory to a holder's limit.
    fn add_memory(&mut self, holder: ClaimRef, mib: u64, is_mps: bool) {
        let zero = Limit { mib: 0, compute_percent: 0, is_mps };
        self.0.entry(holder).or_insert(zero).mib += mib;
    }

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
        let is_named = move |holder: &&ClaimRef| {
            !holder.is_share() && holder.namespace == namespace && names.contains(&holder.name)
        };
        self.0.keys().filter(is_named)
    }

    /// All limits.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ClaimRef, Limit)> {
        self.0.iter().map(|(holder, limit)| (holder, *limit))
    }

    /// True if claims have limits here. Then a pod's claims must be known to judge it.
    pub(super) fn has_claims(&self) -> bool {
        self.0.keys().any(|holder| !holder.is_share())
    }

    /// Limit of these holders together; `None` without any.
    pub(super) fn combined(&self, holders: &Holders) -> Option<Limit> {
        let limits = holders.iter().map(|holder| self.0.get(holder)).collect::<Option<Vec<_>>>()?;
        let (mib, is_mps) =
            (limits.iter().map(|limit| limit.mib).sum(), limits.iter().any(|limit| limit.is_mps));
        // A holder without a compute request may use the whole GPU's compute.
        let all_request = limits.iter().all(|limit| limit.compute_percent > 0);
        let compute = limits.iter().map(|limit| limit.compute_percent).sum();
        let compute_percent = if all_request { compute } else { 0 };
        (mib > 0 || compute_percent > 0).then_some(Limit { mib, compute_percent, is_mps })
    }
}

impl FromIterator<(ClaimRef, Limit)> for GpuLimits {
    fn from_iter<I: IntoIterator<Item = (ClaimRef, Limit)>>(limits: I) -> Self {
        Self(limits.into_iter().collect())
    }
}

// === impl Limit ===

impl Limit {
    fn of(portion: &Portion) -> Self {
        let compute_percent = u32::try_from(portion.compute).unwrap_or(0);
        Self { mib: portion.memory, compute_percent, is_mps: portion.method.is_mps() }
    }

    /// Share of the GPU's time in percent, if only time slices provide it; `None` under MPS, whose daemon limits
    /// threads.
    pub(super) fn time_share(self) -> Option<u32> {
        Some(self.compute_percent).filter(|percent| *percent > 0 && !self.is_mps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_a_claim_in_common_count_together() {
        let claim = |name: &str| ClaimRef {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        };
        let set = |names: &[&str]| names.iter().map(|name| claim(name)).collect::<Holders>();
        let sets = [set(&["a"]), set(&["a", "b"]), set(&["c"]), set(&["b", "d"]), set(&["c"])];
        assert_eq!(merge_overlapping(sets.iter()), [set(&["a", "b", "d"]), set(&["c"])]);
    }
}
