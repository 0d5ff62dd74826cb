//! How long a program's turn on a GPU is, where several take turns: the intervals that the driver knows.

use serde::{Deserialize, Serialize};

/// The length of turns, as NVIDIA's driver for claims calls them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Interval {
    #[default]
    Default,
    Short,
    Medium,
    Long,
}

// === impl Interval ===

impl Interval {
    /// Whether it is what a GPU has that nobody set anything on.
    pub(super) fn is_default(self) -> bool {
        self == Self::Default
    }

    /// As `nvidia-smi compute-policy --set-timeslice` takes it.
    pub(super) fn number(self) -> &'static str {
        match self {
            Self::Default => "0",
            Self::Short => "1",
            Self::Medium => "2",
            Self::Long => "3",
        }
    }
}
