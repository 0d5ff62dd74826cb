//! Resources of the device plugin that count shares of GPUs by amounts.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Device, SourceName},
    resource::ResourceName,
    virtual_gpus,
};

use crate::scalar::Text;

/// Resources that count amounts of memory or compute on the whole GPUs of one vendor. The agent chooses the GPU of a
/// pod when the first container of the pod starts. The watchdog measures the memory in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ShareResources {
    /// Source of the GPUs: `nvidia` (the default), `amd` or `intel`.
    #[serde(with = "Text::<SourceName>")]
    pub source: SourceName,
    /// Resource that counts memory in GiB. Default: none.
    #[serde(with = "Text::<ResourceName>")]
    pub memory: Option<ResourceName>,
    /// Resource that counts compute in percent of a GPU. Default: none.
    #[serde(with = "Text::<ResourceName>")]
    pub compute: Option<ResourceName>,
    /// Resource that counts virtual GPUs, as HAMi's device plugin does: `nvidia.com/gpu`, in place of whole GPUs.
    /// Default: none.
    #[serde(with = "Text::<ResourceName>")]
    pub gpus: Option<ResourceName>,
    /// Number of virtual GPUs per GPU. It limits the pods with a part of a GPU, on average over the node.
    pub per_gpu: NonZeroU32,
}

/// HAMi's `deviceSplitCount`.
const DEFAULT_PER_GPU: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// Maximum number of virtual GPUs per GPU: more would make the kubelet's list of devices too long.
const MAX_PER_GPU: u32 = 1000;

// === impl ShareResources ===

impl Default for ShareResources {
    fn default() -> Self {
        let source = SourceName::DEFAULT_GPUS;
        Self { source, memory: None, compute: None, gpus: None, per_gpu: DEFAULT_PER_GPU }
    }
}

impl ShareResources {
    /// Names of the resources.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.amounts().chain(&self.gpus)
    }

    /// True for a GPU whose amounts are counted.
    pub fn counts_amounts_of(&self, device: &Device) -> bool {
        self.is_enabled() && device.source == self.source && device.is_divisible()
    }

    /// Names of resources that count an amount of one GPU.
    fn amounts(&self) -> impl Iterator<Item = &ResourceName> {
        self.memory.iter().chain(&self.compute)
    }

    /// True if any resource counts shares.
    pub fn is_enabled(&self) -> bool {
        self.names().next().is_some()
    }

    /// Errors that the types do not exclude. `others` are the names of all other resources. Virtual GPUs may replace
    /// one of these resources.
    pub(crate) fn validate(&self, others: &[ResourceName]) -> Vec<String> {
        let is_used_twice =
            |name: &&ResourceName| others.contains(name) || self.gpus.as_ref() == Some(*name);
        let message = |name| {
            format!("{name} is the name of another resource already: use another one for shares")
        };
        let mut errors: Vec<_> = self.amounts().filter(is_used_twice).map(message).collect();
        if self.memory.is_some() && self.memory == self.compute {
            errors.push("memory and compute have the same resource name: use two names".to_owned());
        }
        if self.per_gpu.get() > MAX_PER_GPU {
            let number = self.per_gpu;
            errors.push(format!("perGpu: {number}: write a number from 1 to {MAX_PER_GPU}"));
        }
        if self.source.family().memory_limiter.is_none() {
            let source = &self.source;
            errors.push(format!("source: {source}: write nvidia, amd or intel"));
        } else if self.gpus.is_some() && !self.source.family().has_nvml {
            errors.push(
                "gpus: virtual GPUs are for NVIDIA's GPUs only: remove source or gpus".to_owned(),
            );
        }
        if self.gpus.as_ref().is_some_and(|name| name.as_str() != virtual_gpus::COUNT_RESOURCE) {
            let name = virtual_gpus::COUNT_RESOURCE;
            errors.push(format!("gpus: write {name}, the name that HAMi's pods use"));
        }
        errors
    }
}
