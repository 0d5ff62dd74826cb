//! Limits of GPU memory that NVIDIA's driver or the kernel enforces, and the weakest limit that a share may have.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::enforcement::Enforcement;

use crate::watchdog::WatchdogAction;

/// Memory limits of shares by amounts, of claims, and of replicas with `memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryLimitPolicy {
    /// Path of the program `windlass-hook` on the host, by which the container runtime sets the limits. Needs cgroup
    /// v2, and driver 615 or newer for NVIDIA's GPUs, Linux 6.14 or newer for AMD's and Intel's. Default: none, so that
    /// neither driver nor kernel limits memory.
    pub hook: Option<PathBuf>,
    /// The weakest limit with which a container starts.
    pub at_least: RequiredLimit,
}

/// The weakest limit with which a container starts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum RequiredLimit {
    /// No limit is required: a container gets the strongest limit that the node has.
    #[default]
    None,
    /// A watchdog that evicts or kills, and that sees the host's processes.
    Watched,
    /// The kernel's controller `dmem`, or a stronger limit.
    Dmem,
    /// NVIDIA's driver.
    Driver,
}

// === impl MemoryLimitPolicy ===

impl MemoryLimitPolicy {
    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self, watchdog: WatchdogAction) -> Vec<String> {
        let mut errors = Vec::new();
        if self.hook.as_ref().is_some_and(|path| !path.is_absolute()) {
            errors.push("hook: write the whole path of windlass-hook on the host".to_owned());
        }
        match self.at_least {
            RequiredLimit::Driver | RequiredLimit::Dmem if self.hook.is_none() => {
                let enforcement = self.at_least.enforcement();
                errors.push(format!("atLeast: {enforcement} needs the hook: name its path"));
            }
            RequiredLimit::Watched if self.hook.is_none() && !watchdog.is_enforcing() => {
                errors.push(
                    "atLeast: watched needs a watchdog that acts: write action: kill or evict"
                        .to_owned(),
                );
            }
            _ => {}
        }
        errors
    }
}

// === impl RequiredLimit ===

impl RequiredLimit {
    /// The weakest enforcement that fulfils the requirement.
    pub fn enforcement(self) -> Enforcement {
        match self {
            Self::None => Enforcement::None,
            Self::Watched => Enforcement::Watched,
            Self::Dmem => Enforcement::Dmem,
            Self::Driver => Enforcement::Driver,
        }
    }
}
