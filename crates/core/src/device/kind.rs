//! Device kinds: one row each, with the facts that other layers need.

use std::fmt;

use serde::Serialize;

use super::SourceName;
use crate::health::Reason;

/// Declared facts of a kind.
#[derive(Debug)]
pub struct KindFacts {
    /// Word in tables and in the configuration.
    pub name: &'static str,
    /// Plural in sentences.
    pub plural: &'static str,
    /// Prefix of short names; `None` if the source decides.
    pub prefix: Option<&'static str>,
    /// Source for a rule that names no source.
    pub default_source: Option<SourceName>,
    /// The only source of this kind.
    pub only_source: Option<SourceName>,
    /// Health reasons that the sources of this kind report. NICs have few, since a node may have hundreds of functions.
    pub reasons: &'static [Reason],
}

/// Declares the kinds in listing order: a variant, its list entry and its facts are one row.
macro_rules! kinds {
    ($($(#[$attribute:meta])+ $kind:ident => $facts:expr;)+) => {
        /// Kind of device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DeviceKind {
            $($(#[$attribute])+ $kind,)+
        }

        static FACTS: &[KindFacts] = &[$($facts),+];

        impl DeviceKind {
            /// Every kind, in listing order.
            pub const ALL: &[Self] = &[$(Self::$kind),+];
        }
    };
}

kinds! {
    /// A whole GPU.
    Gpu => KindFacts {
        name: "gpu",
        plural: "GPUs",
        prefix: None,
        default_source: Some(SourceName::NVIDIA),
        only_source: None,
        reasons: GPU_REASONS,
    };
    /// A MIG instance: a slice of a GPU with memory and engines of its own.
    Mig => KindFacts {
        name: "mig",
        plural: "MIG instances",
        prefix: None,
        default_source: Some(SourceName::NVIDIA),
        only_source: None,
        reasons: GPU_REASONS,
    };
    /// A network or RDMA interface, or a virtual function of one.
    Nic => KindFacts {
        name: "nic",
        plural: "NICs",
        prefix: Some("NIC"),
        default_source: None,
        only_source: Some(SourceName::NICS),
        reasons: NIC_REASONS,
    };
    /// A reconfigurable board.
    Fpga => KindFacts {
        name: "fpga",
        plural: "FPGAs",
        prefix: Some("FPGA"),
        default_source: None,
        only_source: Some(SourceName::FPGA),
        reasons: OTHER_REASONS,
    };
    /// An NVMe drive.
    Nvme => KindFacts {
        name: "nvme",
        plural: "NVMe drives",
        prefix: Some("nvme"),
        default_source: None,
        only_source: None,
        reasons: OTHER_REASONS,
    };
    /// Any other device; its source defines it.
    Other => KindFacts {
        name: "other",
        plural: "devices other than GPUs",
        prefix: None,
        default_source: None,
        only_source: None,
        reasons: OTHER_REASONS,
    };
}

#[rustfmt::skip]
const GPU_REASONS: &[Reason] = &[
    Reason::Xid(0), Reason::DoubleBitEcc, Reason::UncorrectedEcc, Reason::RowRemapFailed, Reason::NvlinkDown,
    Reason::FabricFailed, Reason::Lost, Reason::Unresponsive, Reason::ProbeFailed, Reason::NeedsReset,
    Reason::Vanished, Reason::DriverGone, Reason::NodeMissing, Reason::NotReady, Reason::DriverUnbound,
    Reason::OutOfBounds,
];

#[rustfmt::skip]
const NIC_REASONS: &[Reason] =
    &[Reason::Vanished, Reason::LinkDown, Reason::NodeMissing, Reason::NotReady, Reason::DriverUnbound];

#[rustfmt::skip]
const OTHER_REASONS: &[Reason] = &[
    Reason::Unresponsive, Reason::ProbeFailed, Reason::NeedsReset, Reason::Vanished, Reason::NodeMissing,
    Reason::NotReady, Reason::Unreachable, Reason::DriverUnbound, Reason::OutOfBounds,
];

// === impl DeviceKind ===

impl DeviceKind {
    /// The declared facts of this kind.
    pub fn facts(self) -> &'static KindFacts {
        &FACTS[self as usize]
    }

    /// True for a GPU or a MIG instance.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::Gpu | Self::Mig)
    }

    /// True for a MIG instance, which has a profile.
    pub fn is_mig_instance(self) -> bool {
        self == Self::Mig
    }

    /// True for a network function: containers get its interface, and the kernel may renumber its nodes.
    pub fn is_network(self) -> bool {
        self == Self::Nic
    }

    /// True for a drive. CSI drivers provide storage, unless a configured source offers the drive.
    pub fn is_storage(self) -> bool {
        self == Self::Nvme
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.facts().name)
    }
}
