//! Rejection of a pod, with the kubelet's reasons and messages for the pod's status.

use std::fmt;

use crate::{
    manager::{InsufficientResource, ManagerError},
    manager_task::KubeletEnded,
};

/// Rejection of a pod. The kubelet does not retry the admission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod rejected: {reason}: {message}")]
pub struct Rejection {
    /// The pod's `status.reason`.
    pub reason: RejectionReason,
    /// The pod's `status.message`.
    pub message: String,
}

/// A pod's `status.reason` after a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// `UnexpectedAdmissionError`: the allocation of devices failed.
    UnexpectedAdmissionError,
    /// `TopologyAffinityError`: the devices cannot be aligned as the topology policy requires.
    TopologyAffinityError,
    /// `OutOf<resource>`: the node has too little of this resource.
    OutOf(String),
    /// The embedded kubelet stopped or panicked during the admission. The real kubelet has no such reason.
    KubeletEnded,
}

/// Cause of a rejection, before its conversion to the pod's status.
#[derive(Debug)]
pub(super) enum RejectionCause {
    Allocation(ManagerError),
    Misaligned,
    Insufficient(InsufficientResource),
}

// === impl RejectionCause ===

impl RejectionCause {
    pub(super) fn into_rejection(self) -> Rejection {
        let (reason, cause) = match self {
            Self::Allocation(ended @ (ManagerError::Stopped | ManagerError::Panic(_))) => {
                return Rejection {
                    reason: RejectionReason::KubeletEnded,
                    message: ended.to_string(),
                };
            }
            Self::Allocation(error) => (
                RejectionReason::UnexpectedAdmissionError,
                format!("Allocate failed due to {error}, which is unexpected"),
            ),
            Self::Misaligned => (
                RejectionReason::TopologyAffinityError,
                "Resources cannot be allocated with Topology locality".to_owned(),
            ),
            Self::Insufficient(error) => {
                (RejectionReason::OutOf(error.resource.clone()), error.to_string())
            }
        };
        Rejection { reason, message: format!("Pod was rejected: {cause}") }
    }
}

impl From<ManagerError> for RejectionCause {
    fn from(error: ManagerError) -> Self {
        Self::Allocation(error)
    }
}

impl From<KubeletEnded> for RejectionCause {
    fn from(ended: KubeletEnded) -> Self {
        Self::Allocation(ended.into())
    }
}

impl From<KubeletEnded> for Rejection {
    fn from(ended: KubeletEnded) -> Self {
        RejectionCause::from(ended).into_rejection()
    }
}

// === impl RejectionReason ===

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedAdmissionError => f.write_str("UnexpectedAdmissionError"),
            Self::TopologyAffinityError => f.write_str("TopologyAffinityError"),
            Self::OutOf(resource) => write!(f, "OutOf{resource}"),
            Self::KubeletEnded => f.write_str("KubeletEnded"),
        }
    }
}
