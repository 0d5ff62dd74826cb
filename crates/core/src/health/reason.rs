//! Reasons for an unhealthy device.

use std::{fmt, str::FromStr};

use super::{Action, xid};

/// Reason for an unhealthy device. Reasons stay distinct up to the command line, since each needs a different response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The driver reported this XID, and the XID policy counts it as a failure.
    Xid(u64),
    /// The driver reported a double-bit ECC error.
    DoubleBitEcc,
    /// Uncorrected memory errors were counted without an event.
    UncorrectedEcc,
    /// Row remapping failed: a bad memory row stays in use.
    RowRemapFailed,
    /// An NVLink to a switch went down.
    NvlinkDown,
    /// The GPU could not join the NVLink fabric or reach its peers there.
    FabricFailed,
    /// The driver reports that the device fell off its bus.
    Lost,
    /// The driver did not answer within the deadline.
    Unresponsive,
    /// The driver answered the probe with another error.
    ProbeFailed,
    /// The driver requests a reset, a reboot or a drain.
    NeedsReset,
    /// The device disappeared.
    Vanished,
    /// The driver disappeared, and with it the device.
    DriverGone,
    /// The network interface has no link.
    LinkDown,
    /// A device node is missing.
    NodeMissing,
    /// The device is present but not ready, as a board without firmware.
    NotReady,
    /// The device does not answer over the network.
    Unreachable,
    /// No driver or the wrong driver is bound.
    DriverUnbound,
    /// Temperature or power is out of bounds.
    OutOfBounds,
}

/// Text that is not the name of a reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a health reason")]
pub struct UnknownReason(String);

/// Names of all reasons but XIDs, with their remedies where these do not depend on the detail.
#[rustfmt::skip]
const TABLE: &[(Reason, &str, Option<Action>)] = &[
    (Reason::DoubleBitEcc, "double-bit ECC error", Some(Action::ResetGpu)),
    (Reason::UncorrectedEcc, "uncorrected ECC errors", Some(Action::ResetGpu)),
    (Reason::RowRemapFailed, "row remapping failed", Some(Action::ContactSupport)),
    (Reason::NvlinkDown, "NVLink down", Some(Action::CheckLinks)),
    (Reason::FabricFailed, "fabric failed", Some(Action::CheckFabricManager)),
    (Reason::Lost, "lost", None),
    (Reason::Unresponsive, "unresponsive", None),
    (Reason::ProbeFailed, "probe failed", None),
    (Reason::NeedsReset, "needs a reset", None),
    (Reason::Vanished, "vanished", None),
    (Reason::DriverGone, "driver gone", None),
    (Reason::LinkDown, "link down", None),
    (Reason::NodeMissing, "device node missing", None),
    (Reason::NotReady, "not ready", None),
    (Reason::Unreachable, "unreachable", None),
    (Reason::DriverUnbound, "driver not bound", None),
    (Reason::OutOfBounds, "out of bounds", None),
];

serialize_as_text!(Reason);
deserialize_from_text!(Reason);

// === impl Reason ===

impl Reason {
    /// The remedy, if it does not depend on the detail.
    pub fn action(self) -> Option<Action> {
        match self {
            Self::Xid(code) => xid::action(code),
            other => other.row().2,
        }
    }

    /// The reason without its XID number: one of eighteen words.
    pub fn class(self) -> &'static str {
        if matches!(self, Self::Xid(_)) { "XID" } else { self.row().1 }
    }

    fn row(self) -> &'static (Self, &'static str, Option<Action>) {
        let row = TABLE.iter().find(|(reason, ..)| *reason == self);
        row.expect("the table has every reason but XIDs")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class())?;
        if let Self::Xid(code) = self { write!(f, " {code}") } else { Ok(()) }
    }
}

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        let xid = text.strip_prefix("XID ").and_then(|code| code.parse().ok()).map(Self::Xid);
        let by_name =
            || TABLE.iter().find(|(_, name, _)| *name == text).map(|(reason, ..)| *reason);
        xid.or_else(by_name).ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_as_it_is_written() {
        let named = TABLE.iter().map(|(reason, ..)| *reason);
        for reason in named.chain([Reason::Xid(79)]) {
            assert_eq!(reason.to_string().parse(), Ok(reason));
        }
        assert!("XID seventy".parse::<Reason>().is_err());
    }
}
