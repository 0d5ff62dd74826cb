//! Enforcement of a container's memory limit on a shared GPU.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Mechanism that limits a container's memory on a shared GPU, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// No limit.
    #[default]
    None,
    /// The watchdog measures memory from outside the container, and evicts the pod or ends its processes.
    Watched,
    /// The kernel's cgroup controller for device memory (`dmem`). An allocation beyond the limit goes to host
    /// memory, or fails.
    Dmem,
    /// An MPS daemon refuses allocations of a client process beyond the limit. A program can bypass the daemon.
    Mps,
    /// The driver refuses allocations of the container's cgroup beyond the limit.
    Driver,
    /// The hardware confines the container to a MIG instance.
    Mig,
}

/// Text that is not the name of an enforcement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an enforcement: write none, watched, dmem, mps, driver or mig")]
pub struct InvalidEnforcement(String);

/// Pod annotation: the weakest enforcement that its containers accept.
pub const ANNOTATION: &str = "windlass.dev/enforcement";

// === impl Enforcement ===

impl Enforcement {
    /// From the weakest to the strongest.
    const ALL: &[Self] =
        &[Self::None, Self::Watched, Self::Dmem, Self::Mps, Self::Driver, Self::Mig];

    /// The word in metrics, attributes, labels and annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Watched => "watched",
            Self::Dmem => "dmem",
            Self::Mps => "mps",
            Self::Driver => "driver",
            Self::Mig => "mig",
        }
    }

    /// The weakest enforcement that a pod accepts, by its annotation [`ANNOTATION`]; [`Self::None`] by default.
    pub fn required_by(annotations: &BTreeMap<String, String>) -> Result<Self, InvalidEnforcement> {
        annotations.get(ANNOTATION).map_or(Ok(Self::None), |text| text.parse())
    }
}

impl FromStr for Enforcement {
    type Err = InvalidEnforcement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let enforcement = Self::ALL.iter().copied().find(|candidate| candidate.as_str() == text);
        enforcement.ok_or_else(|| InvalidEnforcement(text.to_owned()))
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
