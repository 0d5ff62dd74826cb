//! Enforcement of a share's memory: the means that keeps a container to it.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The strongest means that keeps a container to its memory of a shared GPU, from none upwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// No limit.
    #[default]
    None,
    /// The watchdog measures from outside, and evicts the pod or ends its processes.
    Watched,
    /// The kernel's controller for device memory (`dmem`) keeps the container's memory of the GPU to it: an
    /// allocation beyond it goes to the host's memory, or fails.
    Dmem,
    /// An MPS daemon refuses each client process more. A program can run without the daemon.
    Mps,
    /// The driver refuses the container more, by its control group.
    Driver,
    /// The hardware keeps the container to a MIG instance.
    Mig,
}

/// A text that names no enforcement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no enforcement: write none, watched, dmem, mps, driver or mig")]
pub struct InvalidEnforcement(String);

/// Annotation of a pod with the weakest enforcement with which its containers may start.
pub const ANNOTATION: &str = "windlass.dev/enforcement";

// === impl Enforcement ===

impl Enforcement {
    /// From the weakest to the strongest.
    const ALL: &[Self] =
        &[Self::None, Self::Watched, Self::Dmem, Self::Mps, Self::Driver, Self::Mig];

    /// The word in metrics, attributes, labels and annotations.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Watched => "watched",
            Self::Dmem => "dmem",
            Self::Mps => "mps",
            Self::Driver => "driver",
            Self::Mig => "mig",
        }
    }

    /// The weakest that a pod accepts, by its annotation `windlass.dev/enforcement`.
    pub fn asked_for(annotations: &BTreeMap<String, String>) -> Result<Self, InvalidEnforcement> {
        annotations.get(ANNOTATION).map_or(Ok(Self::None), |text| text.parse())
    }
}

impl FromStr for Enforcement {
    type Err = InvalidEnforcement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().copied().find(|it| it.word() == text);
        found.ok_or_else(|| InvalidEnforcement(text.to_owned()))
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
