//! Length of the time slices of programs that share a GPU.

use serde::{Deserialize, Serialize};

/// Length of a time slice, as NVIDIA's DRA driver names it.
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
    /// True for the GPU's own default.
    pub(super) fn is_default(self) -> bool {
        self == Self::Default
    }

    /// The value for `nvidia-smi compute-policy --set-timeslice`.
    pub(super) fn nvidia_smi_value(self) -> &'static str {
        match self {
            Self::Default => "0",
            Self::Short => "1",
            Self::Medium => "2",
            Self::Long => "3",
        }
    }
}
