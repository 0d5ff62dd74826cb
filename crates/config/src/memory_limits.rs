//! Limits of GPU memory that NVIDIA's driver or the kernel enforces, and the weakest limit that a share may have.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::enforcement::Enforcement;

use crate::watchdog::WatchdogAction;

/// Limits of the memory of shares by amounts, of claims, and of replicas with a given memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryLimitPolicy {
    /// The program `windlass-hook`, as the host names it: with cgroup v2, the container runtime sets the limits by it, on
    /// NVIDIA's GPUs with driver 615 or newer, on AMD's and Intel's with Linux 6.14 or newer. Left out, neither limits.
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
    /// None: the best that the node has.
    #[default]
    None,
    /// The watchdog's, which acts and sees the host's processes.
    Watched,
    /// The kernel's, by the controller dmem, or a stronger one.
    Dmem,
    /// The driver's.
    Driver,
}

// === impl MemoryLimitPolicy ===

impl MemoryLimitPolicy {
    /// Mistakes that the types allow.
    pub(crate) fn mistakes(&self, watchdog: WatchdogAction) -> Vec<String> {
        let mut found = Vec::new();
        if self.hook.as_ref().is_some_and(|path| !path.is_absolute()) {
            found.push("hook: write the whole path of windlass-hook on the host".to_owned());
        }
        match self.at_least {
            RequiredLimit::Driver | RequiredLimit::Dmem if self.hook.is_none() => {
                let word = self.at_least.enforcement();
                found.push(format!("atLeast: {word} needs the hook: name its path"));
            }
            RequiredLimit::Watched if self.hook.is_none() && !watchdog.acts() => {
                found.push(
                    "atLeast: watched needs a watchdog that acts: write action: kill or evict"
                        .to_owned(),
                );
            }
            _ => {}
        }
        found
    }
}

// === impl RequiredLimit ===

impl RequiredLimit {
    /// The weakest enforcement that fulfils it.
    pub fn enforcement(self) -> Enforcement {
        match self {
            Self::None => Enforcement::None,
            Self::Watched => Enforcement::Watched,
            Self::Dmem => Enforcement::Dmem,
            Self::Driver => Enforcement::Driver,
        }
    }
}
