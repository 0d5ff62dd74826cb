//! Watchdog over shared GPUs: its interval, and its action against pods that use more than their share.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::Text;

/// The watchdog over shared GPUs. It measures each pod's memory from outside of its containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WatchdogPolicy {
    /// Action against a pod that uses more memory of a GPU than its share.
    pub action: WatchdogAction,
    /// Interval of measurements, from `1s` to `1h`. Three measurements above the limit are a violation.
    #[serde(with = "Text::<Duration>")]
    pub interval: Duration,
}

/// Action against a pod that uses more memory of a GPU than its share.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum WatchdogAction {
    /// No action and no measurement.
    Off,
    /// An event on the pod, a metric, and a line in the log.
    #[default]
    Observe,
    /// As `observe`, and the pod is evicted, within disruption budgets.
    Evict,
    /// As `observe`, and the pod's processes on the GPU are killed (SIGKILL).
    Kill,
}

/// Minimum interval. Shorter intervals would load the driver, and the use of a starting program changes within a
/// second.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum interval. Longer intervals would miss most violations.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

// === impl WatchdogPolicy ===

impl WatchdogPolicy {
    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self) -> Vec<String> {
        let is_out_of_range = !(MIN_INTERVAL..=MAX_INTERVAL).contains(&self.interval);
        let text = || format!("interval: {:?}: write a time from 1s to 1h", self.interval);
        is_out_of_range.then(text).into_iter().collect()
    }
}

impl Default for WatchdogPolicy {
    fn default() -> Self {
        Self { action: WatchdogAction::default(), interval: MIN_INTERVAL }
    }
}

// === impl WatchdogAction ===

impl WatchdogAction {
    /// True for an action that ends the excess: eviction or kill.
    pub fn is_enforcing(self) -> bool {
        matches!(self, Self::Evict | Self::Kill)
    }

    /// The word of the configuration, for labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Evict => "evict",
            Self::Kill => "kill",
        }
    }
}
