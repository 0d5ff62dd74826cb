//! Reasons of a rejected admission, in the words of the pod's status.

use std::fmt;

use crate::{
    manager::{Insufficient, Refusal},
    manager_task::Gone,
};

/// A rejected pod. The kubelet does not try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod rejected: {reason}: {message}")]
pub struct Rejection {
    /// The pod's `status.reason`.
    pub reason: Reason,
    /// The pod's `status.message`.
    pub message: String,
}

/// A pod's `status.reason` after a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `UnexpectedAdmissionError`: the allocation of devices failed.
    UnexpectedAdmissionError,
    /// `TopologyAffinityError`: devices cannot be aligned as the policy demands.
    TopologyAffinityError,
    /// `OutOf<resource>`: the node's count is too small.
    OutOf(String),
    /// The embedded kubelet stopped or panicked before its decision. The real kubelet has no such reason.
    KubeletGone,
}

/// Cause of a rejection, before its translation to the pod's status.
#[derive(Debug)]
pub(super) enum Denial {
    Refused(Refusal),
    Misaligned,
    Insufficient(Insufficient),
}

// === impl Denial ===

impl Denial {
    pub(super) fn into_rejection(self) -> Rejection {
        let (reason, cause) = match self {
            Self::Refused(gone @ (Refusal::Stopped | Refusal::Panic(_))) => {
                return Rejection { reason: Reason::KubeletGone, message: gone.to_string() };
            }
            Self::Refused(refusal) => (
                Reason::UnexpectedAdmissionError,
                format!("Allocate failed due to {refusal}, which is unexpected"),
            ),
            Self::Misaligned => (
                Reason::TopologyAffinityError,
                "Resources cannot be allocated with Topology locality".to_owned(),
            ),
            Self::Insufficient(short) => (Reason::OutOf(short.resource.clone()), short.to_string()),
        };
        Rejection { reason, message: format!("Pod was rejected: {cause}") }
    }
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Gone> for Denial {
    fn from(gone: Gone) -> Self {
        Self::Refused(gone.into())
    }
}

impl From<Gone> for Rejection {
    fn from(gone: Gone) -> Self {
        Denial::from(gone).into_rejection()
    }
}

// === impl Reason ===

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedAdmissionError => f.write_str("UnexpectedAdmissionError"),
            Self::TopologyAffinityError => f.write_str("TopologyAffinityError"),
            Self::OutOf(resource) => write!(f, "OutOf{resource}"),
            Self::KubeletGone => f.write_str("KubeletGone"),
        }
    }
}
