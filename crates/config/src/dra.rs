//! What is offered through Dynamic Resource Allocation, and under which driver's name.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Cuts, Device, PossiblePartition},
    name::is_subdomain,
    partition::{full_gpu, prospective, switches_at_once},
};

use super::{Policy, Selector, ShareRule};

/// What is offered through Dynamic Resource Allocation. May change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraPolicy {
    /// Whether anything is, and what that means for the device plugin.
    pub offer: DraOffer,
    /// Which devices are; none named are all.
    pub devices: Vec<Selector>,
    /// What the taint of a device does.
    pub taints: DraTaints,
    /// Of which claims have shares by amounts; the first rule that matches a device counts.
    pub shares: Vec<ShareRule>,
    /// Who cuts GPUs in MIG mode.
    pub partitions: DraPartitions,
    /// Who turns MIG on and off. Only an agent that cuts GPUs may.
    pub mig_mode: DraMigMode,
}

/// Who cuts GPUs in MIG mode, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraPartitions {
    /// An administrator, beforehand: the instances that exist are the devices.
    #[default]
    AsCut,
    /// The agent: a claim gets an instance that is made for it, and removed when it is released.
    OnDemand,
}

/// Who turns MIG on and off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraMigMode {
    /// An administrator: a GPU is whole or cut as its mode is set.
    #[default]
    AsSet,
    /// The agent, where it takes no reset: a GPU is whole for one claim and cut for the next.
    OnDemand,
}

/// What the taint of a device does. Containers that have the device stay in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraTaints {
    /// It is given to no claim that does not tolerate it.
    #[default]
    NoSchedule,
    /// Nothing: it only tells.
    None,
}

/// Through which of the kubelet's two ways devices are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraOffer {
    /// Through the device plugin alone.
    #[default]
    Off,
    /// Through both: who comes first has the device.
    Beside,
    /// Through Dynamic Resource Allocation alone; what containers hold through the device plugin moves
    /// when they let go.
    Instead,
}

/// The name of a DRA driver, as claims, classes and slices have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverName(String);

/// A text that cannot name a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a DRA driver: write a DNS name of at most {most} characters, such as windlass.dev",
    most = DriverName::MAX_CHARS
)]
pub struct InvalidDriverName(String);

// === impl DraPolicy ===

impl DraPolicy {
    /// Whether a device is to be offered so. A selector without an answer does not take it.
    pub fn takes(&self, device: &Device, profile: Option<&str>) -> bool {
        let is_taken = |rule: &Selector| rule.matches(device, profile).unwrap_or(false);
        self.offer != DraOffer::Off
            && (self.devices.is_empty() || self.devices.iter().any(is_taken))
    }

    /// Whether MIG may be turned on and off on this GPU, if it is cut for claims at all.
    pub fn may_switch(&self, gpu: &Device) -> bool {
        self.mig_mode == DraMigMode::OnDemand && switches_at_once(gpu.compute_capability())
    }
}

// === impl Policy ===

impl Policy {
    /// Whether instances on this GPU are made for claims: it is in MIG mode or may be brought into it, is not
    /// kept back, and one of its partitions is offered.
    pub fn cuts_for_claims(&self, gpu: &Device) -> bool {
        let is_taken = |it: &PossiblePartition| {
            self.dra.takes(&prospective(gpu, it), Some(it.partition.profile.as_str()))
        };
        // A rule about the mode would change its mind with it.
        let seen = if self.dra.may_switch(gpu) { &full_gpu(gpu) } else { gpu };
        let is_let_in = |rule: &Selector| rule.matches(seen, None).is_ok_and(|matches| !matches);
        self.dra.partitions == DraPartitions::OnDemand
            && gpu.family().cuts == Cuts::Mig
            && (gpu.partitioned || self.dra.may_switch(gpu))
            && !gpu.health.has_vanished()
            && self.exclude.iter().all(is_let_in)
            && gpu.partitions.iter().any(is_taken)
    }

    /// Whether claims have this GPU whole or cut, as each asks: MIG is turned on and off for them.
    pub fn switches_for_claims(&self, gpu: &Device) -> bool {
        self.dra.may_switch(gpu) && self.cuts_for_claims(gpu)
    }
}

// === impl DriverName ===

impl DriverName {
    /// Kubernetes' limit (`DriverNameMaxLength` of `resource.k8s.io`).
    pub const MAX_CHARS: usize = 63;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for DriverName {
    fn default() -> Self {
        Self("windlass.dev".to_owned())
    }
}

impl FromStr for DriverName {
    type Err = InvalidDriverName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = text.len() <= Self::MAX_CHARS && is_subdomain(text);
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidDriverName(text.to_owned())) }
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_has_a_name_that_kubernetes_takes() {
        for good in ["windlass.dev", "gpu.nvidia.com", "a"] {
            assert_eq!(good.parse::<DriverName>().expect("valid").as_str(), good);
        }
        for bad in ["", "A.com", "a..b", "-a.com", "a.com-", "a/b", &"x".repeat(64)] {
            assert!(bad.parse::<DriverName>().is_err(), "{bad:?}");
        }
    }
}
