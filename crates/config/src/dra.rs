//! Dynamic Resource Allocation: the offered devices, the driver's name, shares by amounts.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Device, Family, MemoryLimiter},
    enforcement::Enforcement,
    name::is_subdomain,
    partition::switches_mig_without_reset,
};

use crate::{
    scalar::{Text, displayed, is_default},
    selector::Selector,
    sharing::{DMEM_OF_OTHERS, DRIVER_OF_OTHERS, MPS_OF_OTHERS},
};

/// Devices for Dynamic Resource Allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DraPolicy {
    /// The interfaces through which devices are offered.
    pub offer: DraOffer,
    /// Name of the driver. With `gpu.nvidia.com` the device classes of NVIDIA's driver work unchanged. A change takes
    /// effect when the agent restarts.
    #[serde(with = "Text::<DriverName>")]
    pub driver: DriverName,
    /// The offered devices. Default: all.
    pub devices: Vec<Selector>,
    /// Effect of the taint of a device that is not healthy.
    pub taints: DraTaints,
    /// Creator of MIG instances.
    pub partitions: DraPartitions,
    /// Turns MIG on and off for claims, on GPUs where that needs no reset. Needs `partitions: onDemand`.
    pub mig_mode: DraMigMode,
    /// Whole GPUs that claims may share by amounts of memory and compute. The first entry that matches a GPU
    /// applies.
    pub shares: Vec<ShareRule>,
}

/// GPUs that claims may share by amounts of memory and compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(ShareDevices, ShareSettings)")]
#[schemars(!from, deny_unknown_fields)]
pub struct ShareRule {
    /// The GPUs.
    pub devices: Selector,
    /// Method and limits of the sharing.
    #[serde(flatten)]
    pub manner: ShareSettings,
}

/// The key of a share rule that selects GPUs.
#[derive(Deserialize)]
struct ShareDevices {
    devices: Selector,
}

/// Method and limits by which claims share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShareSettings {
    /// Method that separates the claims.
    pub method: ShareMethod,
    /// Treatment of amounts that the method does not enforce. Default: `enforced`, which refuses a claim that requests
    /// such an amount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: ShareLimits,
}

/// The method by which claims share a GPU.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum ShareMethod {
    /// An MPS daemon, which limits each client process to its amounts. For NVIDIA's GPUs.
    Mps,
    /// The driver's time slices, with the strongest memory limit that the node has.
    TimeSlicing,
    /// Time slices, with memory limited by NVIDIA's driver. Without that limit no claim is prepared.
    Driver,
    /// Time slices, with memory limited by the kernel's controller `dmem`, for GPUs of AMD and Intel.
    Dmem,
}

/// Treatment of amounts that are not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ShareLimits {
    /// A claim that requests such an amount is refused.
    #[default]
    Enforced,
    /// The scheduler adds the amounts up, and nothing limits the containers.
    Advisory,
}

/// Creator of MIG instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraPartitions {
    /// An administrator: the existing instances are the devices.
    #[default]
    AsCut,
    /// The agent: it creates an instance for a claim, and removes it when the claim is released.
    OnDemand,
}

/// Owner of the MIG mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraMigMode {
    /// An administrator: the mode of a GPU stays as it is set.
    #[default]
    AsSet,
    /// The agent, on GPUs where that needs no reset: a GPU may serve one claim whole, and the next claims by instances.
    OnDemand,
}

/// Effect of a device's taint. Containers that have the device stay in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraTaints {
    /// Only claims that tolerate the taint get the device.
    #[default]
    NoSchedule,
    /// None: the taint is information.
    None,
}

/// The kubelet's interfaces through which devices are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraOffer {
    /// Through the device plugin alone.
    #[default]
    Off,
    /// Through both: the first request gets the device.
    Beside,
    /// Through Dynamic Resource Allocation alone. A device that a container has through the device plugin moves
    /// when the container releases it.
    Instead,
}

/// Name of a DRA driver, as in claims, classes and slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverName(String);

/// Text that is not the name of a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a DRA driver: write a DNS name of at most {most} characters, such as windlass.dev",
    most = DriverName::MAX_CHARS
)]
pub struct InvalidDriverName(String);

// === impl DraPolicy ===

impl DraPolicy {
    /// True for an offered device. A selector that cannot be evaluated for the device does not match it.
    pub fn offers(&self, device: &Device, profile: Option<&str>) -> bool {
        let is_offered = |rule: &Selector| rule.matches(device, profile).unwrap_or(false);
        self.offer != DraOffer::Off
            && (self.devices.is_empty() || self.devices.iter().any(is_offered))
    }

    /// True if MIG may be turned on and off on this GPU, provided that instances are created for claims.
    pub fn may_switch_mig(&self, gpu: &Device) -> bool {
        self.mig_mode == DraMigMode::OnDemand
            && switches_mig_without_reset(gpu.compute_capability())
    }

    /// Method and limits by which claims share a device; `None` if claims do not share it.
    pub fn share_settings(&self, device: &Device) -> Option<ShareSettings> {
        let matches = |rule: &&ShareRule| rule.devices.matches(device, None).unwrap_or(false);
        let settings = self.shares.iter().find(matches)?.manner;
        let is_supported = settings.method.unsupported_reason(device.family()).is_none();
        (device.is_divisible() && is_supported).then_some(settings)
    }

    pub(crate) fn validate_mig_mode(&self) -> Option<&'static str> {
        let lacks_partitions =
            self.mig_mode == DraMigMode::OnDemand && self.partitions == DraPartitions::AsCut;
        lacks_partitions.then_some(MIG_MODE_WITHOUT_PARTITIONS)
    }
}

const MIG_MODE_WITHOUT_PARTITIONS: &str =
    "migMode: onDemand turns MIG on to make instances for claims: write partitions: onDemand too";

// === impl ShareMethod ===

impl ShareMethod {
    /// True if an MPS daemon serves the containers.
    pub fn is_mps(self) -> bool {
        self == Self::Mps
    }

    /// The weakest enforcement of memory with which a container may start.
    pub fn required_enforcement(self) -> Enforcement {
        match self {
            Self::Mps | Self::TimeSlicing => Enforcement::None,
            Self::Driver => Enforcement::Driver,
            Self::Dmem => Enforcement::Dmem,
        }
    }

    /// Error message if this method cannot share GPUs of the family.
    pub(crate) fn unsupported_reason(self, family: &Family) -> Option<&'static str> {
        match (self, family.memory_limiter) {
            (_, None) => Some("claims share GPUs by amounts only, those of NVIDIA, AMD and Intel"),
            (Self::Mps, _) if !family.has_nvml => Some(MPS_OF_OTHERS),
            (Self::Driver, Some(MemoryLimiter::Kernel)) => Some(DRIVER_OF_OTHERS),
            (Self::Dmem, Some(MemoryLimiter::Driver)) => Some(DMEM_OF_OTHERS),
            (Self::Mps | Self::TimeSlicing | Self::Driver | Self::Dmem, Some(_)) => None,
        }
    }
}

// === impl ShareRule ===

impl From<(ShareDevices, ShareSettings)> for ShareRule {
    fn from((ShareDevices { devices }, settings): (ShareDevices, ShareSettings)) -> Self {
        Self { devices, manner: settings }
    }
}

// === impl DriverName ===

displayed! {
    DriverName: { "type": "string", "pattern": "^[a-z0-9.-]{1,63}$" }
}

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
        let is_valid = text.len() <= Self::MAX_CHARS && is_subdomain(text);
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidDriverName(text.to_owned())) }
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
    fn a_driver_has_a_name_that_kubernetes_accepts() {
        for good in ["windlass.dev", "gpu.nvidia.com", "a"] {
            assert_eq!(good.parse::<DriverName>().expect("valid").as_str(), good);
        }
        for bad in ["", "A.com", "a..b", "-a.com", "a.com-", "a/b", &"x".repeat(64)] {
            assert!(bad.parse::<DriverName>().is_err(), "{bad:?}");
        }
    }
}
