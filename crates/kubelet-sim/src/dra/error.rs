//! Errors of the DRA manager, with the kubelet's texts.

use std::fmt;

use crate::{manager_task::KubeletEnded, plugin::RpcError};

/// Method of a call to a DRA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimCall {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Unprepare,
}

/// A failed preparation or release of claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("DRA driver name is empty")]
    NoDriverName,
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    UidMismatch { name: String, uid: String },
    #[error(
        "checkpoint ResourceClaim {what}: could not save checkpoint dra_manager_state: {message}"
    )]
    Checkpoint { what: &'static str, message: String },
    #[error("{call}: {error}")]
    Call { call: ClaimCall, error: RpcError },
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownUid { call: ClaimCall, uid: String },
    #[error("{call} failed for ResourceClaim {name}: {message}")]
    Claim { call: ClaimCall, name: String, message: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: ClaimCall, count: usize },
    #[error(
        "internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}"
    )]
    UnknownClaim { name: String, namespace: String },
    /// The pod is ending, which cancels the preparation of its claims.
    #[error("NodePrepareResources: rpc error: code = Canceled desc = context canceled")]
    Cancelled,
    /// The kubelet stopped or panicked. The real kubelet has no such text.
    #[error("the kubelet was stopped")]
    Stopped,
}

impl From<KubeletEnded> for ClaimError {
    fn from(KubeletEnded: KubeletEnded) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for ClaimCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "NodePrepareResources",
            Self::Unprepare => "NodeUnprepareResources",
        })
    }
}
