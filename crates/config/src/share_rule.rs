//! GPUs of which claims may have shares by amounts, and what keeps them to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::device::Device;

use super::{DraPolicy, Selector};

/// GPUs of which claims may have shares by amounts of memory and compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRule {
    /// Which GPUs.
    pub devices: Selector,
    /// How they are shared.
    pub manner: ShareManner,
}

/// How claims share a GPU by amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareManner {
    /// What shares it.
    pub method: ShareMethod,
    /// What an amount means that the method does not enforce.
    pub limits: ShareLimits,
}

/// What shares a GPU among claims.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum ShareMethod {
    /// An MPS daemon, which keeps each client process to its amounts.
    Mps,
    /// The driver's time slices, which keep nobody to anything.
    TimeSlicing,
}

/// What an amount means that is not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ShareLimits {
    /// A claim that asks for it is refused.
    #[default]
    Enforced,
    /// The scheduler adds up, and the containers are trusted.
    Advisory,
}

// === impl DraPolicy ===

impl DraPolicy {
    /// How claims share a device by amounts, if they do: its driver shares a whole GPU so.
    pub fn shares_of(&self, device: &Device) -> Option<ShareManner> {
        let is_whole = !device.kind.is_instance() && !device.partitioned;
        let is_meant = |rule: &&ShareRule| rule.devices.matches(device, None).unwrap_or(false);
        let rule = self.shares.iter().find(is_meant)?;
        (device.family().is_managed && is_whole).then_some(rule.manner)
    }
}
