//! A pod's share of a GPU, and the amounts of its tokens.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use windlass_allocations::{
    follow::ContainerIds,
    ledger::{ClaimRef, Portion, Use},
};
use windlass_config::{ShareMethod, ShareResources};
use windlass_core::{
    annotation::{DecidedDevice, PodPlacement},
    device::DeviceId,
};

/// A pod's share of a GPU. All of its containers have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hold {
    /// The GPU.
    pub(super) device: DeviceId,
    /// The amounts.
    #[serde(flatten)]
    pub(super) amounts: Amounts,
    /// Memory of the whole GPU in MiB.
    pub(super) of_mib: u64,
    /// The pod.
    #[serde(flatten)]
    pub(super) pod: Pod,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pod {
    pub(super) namespace: String,
    #[serde(rename = "pod")]
    pub(super) name: String,
    pub(super) uid: String,
}

/// Amounts of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Amounts {
    /// Memory in MiB.
    pub(super) memory_mib: u64,
    /// Compute in percent; 0 is no request.
    pub(super) compute_percent: u64,
}

/// MiB of a token.
const MIB_PER_TOKEN: u64 = 1024;

// === impl Hold ===

impl Hold {
    /// The pod as a holder in the ledger, where it keeps other pods, claims and whole GPUs out.
    pub(super) fn claim(&self) -> ClaimRef {
        ClaimRef::of_share(&self.pod.namespace, &self.pod.name, &self.pod.uid)
    }

    pub(super) fn usage(&self) -> Use {
        Use::Portion(Portion {
            method: ShareMethod::TimeSlicing,
            shares: 1,
            memory: self.amounts.memory_mib,
            of: self.of_mib,
            compute: self.amounts.compute_percent,
        })
    }

    /// The share as a placement, for the cluster half.
    pub(super) fn placement(&self) -> PodPlacement {
        let Amounts { memory_mib, compute_percent } = self.amounts;
        let milli = compute_percent.saturating_mul(10);
        let (mib, milli) = (u32::try_from(memory_mib), u16::try_from(milli));
        let (mib, milli) = (mib.unwrap_or_default(), milli.unwrap_or_default());
        PodPlacement { devices: vec![DecidedDevice::share(self.device.clone(), mib, milli)] }
    }
}

// === impl Amounts ===

impl Amounts {
    /// Amounts of a pod's tokens. An init container's tokens serve later containers, so each counts once.
    pub(super) fn of(containers: &[ContainerIds], pod: &str, resources: &ShareResources) -> Self {
        let tokens = |resource: &Option<_>| {
            let is_it = |it: &&ContainerIds| {
                it.pod == pod && resource.as_ref().is_some_and(|name| it.resource == *name)
            };
            let ids: BTreeSet<_> = containers.iter().filter(is_it).flat_map(|it| &it.ids).collect();
            ids.len() as u64
        };
        Self {
            memory_mib: tokens(&resources.memory) * MIB_PER_TOKEN,
            compute_percent: tokens(&resources.compute),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
            compute_percent: self.compute_percent.saturating_add(other.compute_percent),
        }
    }

    /// True if neither amount is greater.
    pub(super) fn is_within(self, other: Self) -> bool {
        self.memory_mib <= other.memory_mib && self.compute_percent <= other.compute_percent
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self {
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
            compute_percent: self.compute_percent.saturating_sub(other.compute_percent),
        }
    }
}

impl std::fmt::Display for Amounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MiB of memory and {} % of compute", self.memory_mib, self.compute_percent)
    }
}
