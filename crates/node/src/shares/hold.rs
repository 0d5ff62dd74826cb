//! A pod's share of one or more GPUs, and the amounts that the pod's tokens stand for.

use std::{collections::BTreeSet, iter};

use serde::{Deserialize, Serialize};
use windlass_allocations::{
    follow::ContainerIds,
    ledger::{ClaimRef, ClaimUse, FULL_COMPUTE_PERCENT, Portion},
};
use windlass_cdi::memory_limits::GpuMemory;
use windlass_config::{ShareMethod, ShareResources};
use windlass_core::{
    annotation::{PlacedGpu, PodPlacement},
    device::DeviceId,
    enforcement::Enforcement,
    pci::PciAddress,
    replica::token_number,
};

/// A pod's share of one GPU, or of each of several, for all of the pod's containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hold {
    /// First GPU: a share has at least one. Its fields are at the top level of the document.
    #[serde(flatten)]
    pub(super) first: HeldGpu,
    /// Further GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) more: Vec<HeldGpu>,
    #[serde(flatten)]
    pub(super) pod: Pod,
}

/// A GPU, and the amounts of it that a pod holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeldGpu {
    pub(super) device: DeviceId,
    #[serde(flatten)]
    pub(super) amounts: Amounts,
    /// Memory of the whole GPU in MiB.
    pub(super) of_mib: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pod {
    pub(super) namespace: String,
    #[serde(rename = "pod")]
    pub(super) name: String,
    pub(super) uid: String,
    /// Weakest enforcement that the pod's annotation accepts. With less, its containers do not start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) at_least: Enforcement,
}

/// Amounts of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Amounts {
    /// Memory in MiB.
    pub(super) memory_mib: u64,
    /// Compute in percent of the GPU; 0 if the pod requests none.
    pub(super) compute_percent: u64,
}

/// Memory that a token stands for, in MiB. The kubelet counts memory and compute as tokens, which name no GPU.
const MIB_PER_TOKEN: u64 = 1024;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

// === impl Hold ===

impl Hold {
    /// The pod as a holder in the ledger, which protects the share from other pods, claims and users of the whole GPU.
    pub(super) fn claim(&self) -> ClaimRef {
        ClaimRef::of_share(&self.pod.namespace, &self.pod.name, &self.pod.uid)
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = &HeldGpu> {
        iter::once(&self.first).chain(&self.more)
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.gpus().map(|gpu| &gpu.device)
    }

    /// The GPUs and their amounts, for the ledger.
    pub(super) fn uses(&self) -> impl Iterator<Item = (&DeviceId, ClaimUse)> {
        self.gpus().map(|gpu| (&gpu.device, gpu.usage()))
    }

    /// The share as a placement, for the cluster half.
    pub(super) fn placement(&self) -> PodPlacement {
        PodPlacement { devices: self.gpus().map(HeldGpu::placement).collect() }
    }
}

// === impl HeldGpu ===

impl HeldGpu {
    /// True if the pod has all memory and compute of the GPU.
    pub(super) fn is_whole(&self) -> bool {
        Amounts { memory_mib: self.of_mib, compute_percent: FULL_COMPUTE_PERCENT }
            .is_within(self.amounts)
    }

    /// Memory of the share, to limit it. `drm` is the PCI address of a GPU whose memory the kernel limits.
    pub(super) fn memory(&self, drm: Option<PciAddress>) -> GpuMemory {
        GpuMemory {
            device: self.device.clone(),
            limit_mib: self.amounts.memory_mib,
            total_mib: self.of_mib,
            is_by_mps: false,
            // The pod's own requirement holds for the whole share: the caller passes it to the limit rules.
            required: Enforcement::None,
            drm_address: drm,
        }
    }

    fn usage(&self) -> ClaimUse {
        ClaimUse::Portion(Portion {
            method: ShareMethod::TimeSlicing,
            shares: 1,
            memory: self.amounts.memory_mib,
            of: self.of_mib,
            compute: self.amounts.compute_percent,
        })
    }

    fn placement(&self) -> PlacedGpu {
        if self.is_whole() {
            return PlacedGpu::whole(self.device.clone());
        }
        let Amounts { memory_mib, compute_percent } = self.amounts;
        // No GPU has amounts beyond these types.
        let memory_mib = u32::try_from(memory_mib).unwrap_or_default();
        let compute_milli = u16::try_from(compute_percent.saturating_mul(10)).unwrap_or_default();
        PlacedGpu::share(self.device.clone(), memory_mib, compute_milli)
    }
}

// === impl Amounts ===

impl Amounts {
    /// More than any GPU has, for a share of unknown size.
    const MAX: Self = Self { memory_mib: u64::MAX, compute_percent: u64::MAX };

    /// Upper bound on the amounts of the pod with UID `pod`, by its tokens alone. A token of a virtual GPU may stand
    /// for a whole GPU.
    pub(super) fn upper_bound(
        containers: &[ContainerIds],
        pod: &str,
        resources: &ShareResources,
    ) -> Self {
        let is_virtual = |container: &ContainerIds| {
            container.pod == pod
                && resources.gpus.as_ref() == Some(&container.resource)
                && container.ids.iter().any(|id| token_number(id).is_some())
        };
        if containers.iter().any(is_virtual) {
            return Self::MAX;
        }
        Self::from_tokens(containers, pod, resources)
    }

    /// Amounts of a pod's tokens of memory and compute. An init container's tokens serve later containers, so each
    /// counts once.
    pub(super) fn from_tokens(
        containers: &[ContainerIds],
        pod: &str,
        resources: &ShareResources,
    ) -> Self {
        let token_count = |resource: &Option<_>| {
            let is_of_pod = |container: &&ContainerIds| {
                container.pod == pod
                    && resource.as_ref().is_some_and(|name| container.resource == *name)
            };
            let ids: BTreeSet<_> =
                containers.iter().filter(is_of_pod).flat_map(|container| &container.ids).collect();
            ids.len() as u64
        };
        Self {
            memory_mib: token_count(&resources.memory) * MIB_PER_TOKEN,
            compute_percent: token_count(&resources.compute),
        }
    }

    pub(super) fn saturating_add(self, other: Self) -> Self {
        Self {
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
            compute_percent: self.compute_percent.saturating_add(other.compute_percent),
        }
    }

    pub(super) fn saturating_sub(self, other: Self) -> Self {
        Self {
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
            compute_percent: self.compute_percent.saturating_sub(other.compute_percent),
        }
    }

    /// True if neither amount is greater.
    pub(super) fn is_within(self, other: Self) -> bool {
        self.memory_mib <= other.memory_mib && self.compute_percent <= other.compute_percent
    }
}

impl std::fmt::Display for Amounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MiB of memory and {} % of compute", self.memory_mib, self.compute_percent)
    }
}
