//! The file's keys for Dynamic Resource Allocation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    resources::{SelectorEntry, unlined},
    word::Written,
};
use crate::{
    DraMigMode, DraOffer, DraPartitions, DraPolicy, DraTaints, DriverName, Remark, ShareLimits,
    ShareManner, ShareMethod, ShareRule, SourceRule, document::Lined,
};

/// What is offered through Dynamic Resource Allocation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct DraEntry {
    /// Whether anything is, and whether the device plugin has it too; left out, `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    offer: Option<DraOffer>,
    /// The driver's name; left out, `windlass.dev`. With `gpu.nvidia.com` the device classes of
    /// NVIDIA's driver serve as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<Written<DriverName>>,
    /// Which devices are; left out, all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Lined<SelectorEntry>>,
    /// What the taint of a device that is not healthy does; left out, `noSchedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    taints: Option<DraTaints>,
    /// Whether MIG instances are made for claims; left out, `asCut`: those that exist are the devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<DraPartitions>,
    /// Whether MIG is turned on and off for claims, where that takes no reset; left out, `asSet`. Takes
    /// `partitions: onDemand`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mig_mode: Option<Lined<DraMigMode>>,
    /// GPUs of which claims may have shares by amounts of memory and compute; the first entry that
    /// matches a GPU counts. NVIDIA's, as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<ShareEntry>,
}

/// GPUs of which claims may have shares by amounts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShareEntry {
    /// Which GPUs.
    devices: Lined<SelectorEntry>,
    /// `mps`, which keeps programs to their amounts, or `timeSlicing`, which does not.
    method: ShareMethod,
    /// What an amount means that the method does not enforce; left out, `enforced`: a claim that asks
    /// for it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<ShareLimits>,
}

const MODE_ALONE: &str =
    "migMode: onDemand turns MIG on to make instances for claims: write partitions: onDemand too";

// === impl DraEntry ===

impl DraEntry {
    /// The driver's name, if one is given.
    pub(super) fn driver(&self) -> Option<DriverName> {
        self.driver.as_ref().map(|Written(name)| name.clone())
    }

    pub(super) fn into_policy(
        self,
        sources: &[Lined<SourceRule>],
        wrong: &mut Vec<Remark>,
    ) -> DraPolicy {
        let devices = { self.devices }.into_iter();
        let devices: Vec<_> = devices
            .map(|Lined { line, value }| value.into_selector(line, sources, wrong))
            .collect();
        let partitions = self.partitions.unwrap_or_default();
        let mig_mode = self.mig_mode.map_or_else(DraMigMode::default, |Lined { line, value }| {
            if value == DraMigMode::OnDemand && partitions == DraPartitions::AsCut {
                wrong.push(Remark::new(line, MODE_ALONE));
            }
            value
        });
        DraPolicy {
            offer: self.offer.unwrap_or_default(),
            devices,
            taints: self.taints.unwrap_or_default(),
            shares: { self.shares }.into_iter().map(|it| it.into_rule(sources, wrong)).collect(),
            partitions,
            mig_mode,
        }
    }

    pub(super) fn of(driver: &DriverName, policy: &DraPolicy) -> Option<Self> {
        let entry = Self {
            offer: Some(policy.offer).filter(|offer| *offer != DraOffer::default()),
            driver: Some(driver).filter(|it| **it != DriverName::default()).cloned().map(Written),
            devices: policy.devices.iter().map(|it| unlined(it.into())).collect(),
            taints: Some(policy.taints).filter(|taints| *taints != DraTaints::default()),
            shares: policy.shares.iter().map(ShareEntry::of).collect(),
            partitions: Some(policy.partitions).filter(|it| *it != DraPartitions::default()),
            mig_mode: Some(policy.mig_mode).filter(|it| *it != DraMigMode::default()).map(unlined),
        };
        let says_something = entry.offer.is_some()
            || entry.driver.is_some()
            || entry.taints.is_some()
            || entry.partitions.is_some()
            || entry.mig_mode.is_some()
            || !entry.devices.is_empty()
            || !entry.shares.is_empty();
        says_something.then_some(entry)
    }
}

// === impl ShareEntry ===

impl ShareEntry {
    fn into_rule(self, sources: &[Lined<SourceRule>], wrong: &mut Vec<Remark>) -> ShareRule {
        let Lined { line, value } = self.devices;
        let manner = ShareManner { method: self.method, limits: self.limits.unwrap_or_default() };
        ShareRule { devices: value.into_selector(line, sources, wrong), manner }
    }

    fn of(rule: &ShareRule) -> Self {
        let ShareRule { devices, manner } = rule;
        Self {
            devices: unlined(devices.into()),
            method: manner.method,
            limits: Some(manner.limits).filter(|limits| *limits != ShareLimits::default()),
        }
    }
}
