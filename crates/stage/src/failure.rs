//! Failures of items, with stage, replica and reason.

use std::fmt;

use crate::{settings::Identity, wire};

/// Failure of an item, in place of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stage at which the item failed.
    pub stage: String,
    /// Name of the process among the stage's replicas.
    pub replica: String,
    /// Cause as text, for display.
    pub reason: String,
    /// Cause as a category.
    pub kind: FailureKind,
}

/// Category of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureKind {
    /// The deadline passed before processing started.
    Deadline,
    /// The stage stopped, or lost its connection, while it had the item.
    Stopped,
    /// The payload exceeds the limit of the sender or of the receiver.
    TooLarge,
    /// The work function returned an error.
    Work,
    /// The work function panicked.
    Panic,
    /// The work function returned fewer or more results than items.
    WrongResultCount,
    /// The work function exceeded its time limit.
    WorkTimeout,
    /// A join got no part from one of its stages in time, or a part from an unexpected stage.
    MissingPart,
    /// A category that only a newer peer knows.
    Other,
}

/// Maximum bytes of a reason. A message over the size limit would break the stream.
const MAX_REASON: usize = 2000;

/// Replaces the middle of a long reason by an ellipsis.
fn shortened(reason: String) -> String {
    if reason.len() <= MAX_REASON {
        return reason;
    }
    let is_boundary = |at: &usize| reason.is_char_boundary(*at);
    let head = (0..=MAX_REASON / 2).rfind(is_boundary).unwrap_or_default();
    let tail = (reason.len() - MAX_REASON / 2..=reason.len()).find(is_boundary).unwrap_or_default();
    format!("{} ... {}", &reason[..head], &reason[tail..])
}

// === impl FailureKind ===

impl FailureKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Deadline,
        Self::Stopped,
        Self::TooLarge,
        Self::Work,
        Self::Panic,
        Self::WrongResultCount,
        Self::WorkTimeout,
        Self::MissingPart,
        Self::Other,
    ];

    /// Value of the label `reason` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Stopped => "stopped",
            Self::TooLarge => "too_large",
            Self::Work => "work",
            Self::Panic => "panic",
            Self::WrongResultCount => "count",
            Self::WorkTimeout => "silent",
            Self::MissingPart => "part",
            Self::Other => "other",
        }
    }

    fn from_wire(kind: i32) -> Self {
        match wire::FailureKind::try_from(kind) {
            Ok(wire::FailureKind::Deadline) => Self::Deadline,
            Ok(wire::FailureKind::Stopped) => Self::Stopped,
            Ok(wire::FailureKind::TooLarge) => Self::TooLarge,
            Ok(wire::FailureKind::Work) => Self::Work,
            Ok(wire::FailureKind::Panic) => Self::Panic,
            Ok(wire::FailureKind::Count) => Self::WrongResultCount,
            Ok(wire::FailureKind::Silent) => Self::WorkTimeout,
            Ok(wire::FailureKind::Part) => Self::MissingPart,
            Ok(wire::FailureKind::Unspecified) | Err(_) => Self::Other,
        }
    }

    fn to_wire(self) -> wire::FailureKind {
        match self {
            Self::Deadline => wire::FailureKind::Deadline,
            Self::Stopped => wire::FailureKind::Stopped,
            Self::TooLarge => wire::FailureKind::TooLarge,
            Self::Work => wire::FailureKind::Work,
            Self::Panic => wire::FailureKind::Panic,
            Self::WrongResultCount => wire::FailureKind::Count,
            Self::WorkTimeout => wire::FailureKind::Silent,
            Self::MissingPart => wire::FailureKind::Part,
            Self::Other => wire::FailureKind::Unspecified,
        }
    }
}

// === impl Identity ===

impl Identity {
    /// Makes a failure at this stage.
    pub(crate) fn failure(&self, kind: FailureKind, reason: String) -> Failure {
        let reason = shortened(reason);
        Failure { stage: self.stage.to_string(), replica: self.replica.to_string(), reason, kind }
    }
}

// === impl Failure ===

impl Failure {
    pub(crate) fn from_wire(failure: wire::Failure) -> Self {
        let wire::Failure { stage, replica, reason, kind } = failure;
        let reason = shortened(reason);
        Self { stage, replica, reason, kind: FailureKind::from_wire(kind) }
    }

    pub(crate) fn to_wire(&self) -> wire::Failure {
        let Self { stage, replica, reason, kind } = self.clone();
        wire::Failure { stage, replica, reason, kind: kind.to_wire().into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.stage, self.replica, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_keeps_its_beginning_and_its_end() {
        let long = format!("begins {} ends", "\u{e9}".repeat(1 << 20));
        let short = shortened(long);
        assert!(short.len() <= MAX_REASON + 8, "{}", short.len());
        assert!(short.starts_with("begins ") && short.ends_with(" ends"), "{short}");
        assert_eq!(shortened("as it is".to_owned()), "as it is");
    }
}
