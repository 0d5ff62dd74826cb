//! Health policy: quiet period, probes, and verdicts on XIDs.

use std::{collections::BTreeSet, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::Text;

/// Conditions under which a device counts as failed or as recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HealthPolicy {
    /// Time without a failure after which a passed probe makes a device healthy again.
    #[serde(with = "Text::<Duration>")]
    pub quiet_period: Duration,
    /// Interval of probes.
    #[serde(with = "Text::<Duration>")]
    pub probe_interval: Duration,
    /// Deadline of a driver call. A GPU that misses it is unresponsive.
    #[serde(with = "Text::<Duration>")]
    pub call_deadline: Duration,
    /// Length of a wait for the driver's events while no GPU is lost. The waiting thread notices a shutdown only
    /// between waits.
    #[serde(skip)]
    pub event_wait: Duration,
    /// XIDs that never make a GPU unhealthy.
    pub ignored_xids: BTreeSet<u64>,
    /// XIDs that always make a GPU unhealthy.
    pub counted_xids: BTreeSet<u64>,
    /// Verdict on XIDs that are on neither list.
    pub unlisted_xids: UnlistedXids,
}

/// Verdict on XIDs that the configuration does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnlistedXids {
    /// The verdict of the XID catalogue.
    #[default]
    Judged,
    /// They never make a GPU unhealthy.
    Ignored,
    /// They always make a GPU unhealthy, including XIDs of faulty programs.
    Counted,
}

// === impl HealthPolicy ===

impl HealthPolicy {
    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self) -> Vec<String> {
        let in_both_lists = self.ignored_xids.intersection(&self.counted_xids);
        in_both_lists
            .map(|xid| format!("XID {xid} is in ignoredXids and in countedXids: keep one"))
            .collect()
    }
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            quiet_period: Duration::from_secs(60),
            // A shorter interval would keep an idle agent busy.
            probe_interval: Duration::from_secs(10),
            call_deadline: Duration::from_secs(5),
            event_wait: Duration::from_secs(10),
            ignored_xids: BTreeSet::new(),
            counted_xids: BTreeSet::new(),
            unlisted_xids: UnlistedXids::Judged,
        }
    }
}
