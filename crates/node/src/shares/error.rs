//! Reasons why a share is not bound; the kubelet shows them in the pod's event.

use std::{path::PathBuf, time::Duration};

use windlass_cdi::memory_limits::WeakLimitError;
use windlass_cluster::ClusterError;
use windlass_core::{
    enforcement::{self, InvalidEnforcement},
    virtual_gpus::RequestError,
};
use windlass_lifecycle::cleanup::NotReadyError;

/// Reason why a share is not bound. The kubelet tries again.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindError {
    #[error("the kubelet's checkpoint cannot be read")]
    UnreadableCheckpoint,
    #[error("the kubelet's checkpoint does not name the pod of these ids yet")]
    NoPod,
    #[error("the configuration no longer shares GPUs under this resource")]
    NotShared,
    #[error(
        "the pod asks for virtual GPUs, and for amounts of one GPU by another name: leave one out"
    )]
    MixedResources,
    #[error("the pod's request cannot be served")]
    Request(#[from] RequestError),
    #[error("the document of GPUs is not written yet")]
    NoGpus,
    #[error("no API server is configured, and it has the pod's placement")]
    NoApiServer,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the API server has no pod with UID {0} on this node yet")]
    UnknownPod(String),
    #[error("CDI document {} cannot be read, and any GPU may have its share: remove it once its pod has ended", .0.display())]
    Unreadable(PathBuf),
    #[error("no GPU of this node has it: {0}")]
    NoCapacity(String),
    #[error("{} is not ready: {}", .0.device, .0.reason)]
    NotReady(NotReadyError),
    #[error("its annotation {} cannot be read", enforcement::ANNOTATION)]
    Enforcement(#[from] InvalidEnforcement),
    #[error(transparent)]
    WeakLimit(#[from] WeakLimitError),
    #[error("{0}")]
    WriteDocument(String),
    #[error("the request took longer than {0:?}")]
    DeadlineExceeded(Duration),
}
