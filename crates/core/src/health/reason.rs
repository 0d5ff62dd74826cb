//! Why a device is not healthy.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Action, xid};

/// Why a device is not healthy. Each stays apart up to the command line, since each asks something
/// else of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The driver reported this XID, which the policy counts.
    Xid(u64),
    /// The driver reported a double-bit ECC error.
    DoubleBitEcc,
    /// Memory errors that ECC could not correct are counted, and no event told of them.
    UncorrectedEcc,
    /// A bad row of memory could not be replaced.
    RowRemapFailed,
    /// An NVLink to a switch went down.
    NvlinkDown,
    /// The GPU could not join the NVLink fabric, or cannot reach its peers in it.
    FabricFailed,
    /// The driver says that the device fell off its bus.
    Lost,
    /// The driver did not answer within the deadline.
    Unresponsive,
    /// The driver answered the probe with another error.
    ProbeFailed,
    /// The driver asks for a reset, a reboot or a drain.
    NeedsReset,
    /// It was there, and is no longer.
    Vanished,
    /// The driver is gone, and the device with it.
    DriverGone,
    /// A network device has no link.
    LinkDown,
    /// A device node that it needs is not there.
    NodeMissing,
    /// It is there and not ready for use yet, as a board without its firmware.
    NotReady,
    /// It does not answer over the network.
    Unreachable,
    /// It has no driver, or another one than it needs.
    DriverUnbound,
    /// It is too hot, or its power is out of bounds.
    OutOfBounds,
}

/// Text that names no reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reason for a device to be unhealthy")]
pub struct UnknownReason(String);

/// Every reason that is only a word.
const WORDS: [(Reason, &str); 17] = [
    (Reason::DoubleBitEcc, "double-bit ECC error"),
    (Reason::UncorrectedEcc, "uncorrected ECC errors"),
    (Reason::RowRemapFailed, "row remapping failed"),
    (Reason::NvlinkDown, "NVLink down"),
    (Reason::FabricFailed, "fabric failed"),
    (Reason::Lost, "lost"),
    (Reason::Unresponsive, "unresponsive"),
    (Reason::ProbeFailed, "probe failed"),
    (Reason::NeedsReset, "needs a reset"),
    (Reason::Vanished, "vanished"),
    (Reason::DriverGone, "driver gone"),
    (Reason::LinkDown, "link down"),
    (Reason::NodeMissing, "device node missing"),
    (Reason::NotReady, "not ready"),
    (Reason::Unreachable, "unreachable"),
    (Reason::DriverUnbound, "driver not bound"),
    (Reason::OutOfBounds, "out of bounds"),
];

// === impl Reason ===

impl Reason {
    /// What is to be done about it, where that does not depend on the detail.
    pub fn action(self) -> Option<Action> {
        match self {
            Self::Xid(code) => xid::action(code),
            Self::DoubleBitEcc | Self::UncorrectedEcc => Some(Action::ResetGpu),
            Self::RowRemapFailed => Some(Action::ContactSupport),
            Self::NvlinkDown => Some(Action::CheckLinks),
            Self::FabricFailed => Some(Action::CheckFabricManager),
            Self::Lost
            | Self::Unresponsive
            | Self::ProbeFailed
            | Self::NeedsReset
            | Self::Vanished
            | Self::DriverGone
            | Self::LinkDown
            | Self::NodeMissing
            | Self::NotReady
            | Self::Unreachable
            | Self::DriverUnbound
            | Self::OutOfBounds => None,
        }
    }

    /// The reason in words, without its number: one of eighteen.
    pub fn class(self) -> &'static str {
        if matches!(self, Self::Xid(_)) {
            return "XID";
        }
        let word = WORDS.iter().find(|(reason, _)| *reason == self);
        word.expect("the table has every other reason").1
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
        let word = || WORDS.iter().find(|(_, word)| *word == text).map(|(reason, _)| *reason);
        xid.or_else(word).ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> Deserialize<'a> for Reason {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_as_it_is_written() {
        let words = WORDS.iter().map(|(reason, _)| *reason);
        for reason in words.chain([Reason::Xid(79)]) {
            assert_eq!(reason.to_string().parse(), Ok(reason));
        }
        assert!("XID seventy".parse::<Reason>().is_err());
    }
}
