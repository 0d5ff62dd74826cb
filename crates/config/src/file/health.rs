//! The file's keys for health: when a device counts as failed, and when as recovered.

use std::{collections::BTreeSet, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::word::{Pause, Written};
use crate::{HealthPolicy, Remark, UnlistedXids};

/// When a device counts as failed, and when as recovered.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct HealthEntry {
    /// How long a device must be without trouble before it is trusted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet_period: Option<Pause>,
    /// How often devices are probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe_interval: Option<Pause>,
    /// How long the driver may take for an answer before its GPU is unresponsive.
    #[serde(skip_serializing_if = "Option::is_none")]
    call_deadline: Option<Pause>,
    /// XIDs that never make a GPU unhealthy.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    ignored_xids: BTreeSet<u64>,
    /// XIDs that always make a GPU unhealthy.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    counted_xids: BTreeSet<u64>,
    /// What becomes of XIDs that are on neither list.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted_xids: Option<UnlistedXids>,
}

// === impl HealthEntry ===

impl HealthEntry {
    pub(super) fn into_policy(self, line: u64, wrong: &mut Vec<Remark>) -> HealthPolicy {
        for xid in self.ignored_xids.intersection(&self.counted_xids) {
            let problem = format!("XID {xid} is in ignoredXids and in countedXids: keep one");
            wrong.push(Remark::new(line, problem));
        }
        let usual = HealthPolicy::default();
        let or = |given: Option<Pause>, usual| given.map_or(usual, |Written(time)| time);
        HealthPolicy {
            quiet_period: or(self.quiet_period, usual.quiet_period),
            probe_interval: or(self.probe_interval, usual.probe_interval),
            call_deadline: or(self.call_deadline, usual.call_deadline),
            ignored_xids: self.ignored_xids,
            counted_xids: self.counted_xids,
            unlisted_xids: self.unlisted_xids.unwrap_or_default(),
            ..usual
        }
    }

    pub(super) fn of(policy: &HealthPolicy) -> Option<Self> {
        let usual = HealthPolicy::default();
        let given = |time: Duration, usual| (time != usual).then_some(Written(time));
        let entry = Self {
            quiet_period: given(policy.quiet_period, usual.quiet_period),
            probe_interval: given(policy.probe_interval, usual.probe_interval),
            call_deadline: given(policy.call_deadline, usual.call_deadline),
            ignored_xids: policy.ignored_xids.clone(),
            counted_xids: policy.counted_xids.clone(),
            unlisted_xids: Some(policy.unlisted_xids).filter(|it| *it != usual.unlisted_xids),
        };
        (*policy != usual).then_some(entry)
    }
}
