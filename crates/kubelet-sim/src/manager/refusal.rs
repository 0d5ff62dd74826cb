//! Why devices were not allocated, in the kubelet's words.
//!
//! Texts from `pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36.

use crate::plugin::RpcError;

/// An allocation that failed; each text is what ends up in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Re-admission with another quantity.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    ChangedRequest { pod: String, container: String, resource: String, from: usize, to: usize },
    /// Some container holds it, no plugin lists it.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// Nothing healthy, whatever the request.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthy(String),
    /// Re-admission after a device was lost.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    Lost(String),
    /// Too few free devices.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable { resource: String, requested: usize, available: usize },
    /// The sets did not add up; the real one has the same last resort.
    #[error(
        "unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}"
    )]
    Short { requested: usize, got: usize },
    /// The grace period ended while something is still held.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The grace period ended between choice and call.
    #[error("unknown Device Plugin {0}")]
    UnknownPlugin(String),
    /// `GetPreferredAllocation` failed.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(RpcError),
    /// `Allocate` failed.
    #[error("{0}")]
    Allocate(RpcError),
    /// `PreStartContainer` failed.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(RpcError),
    /// `PreStartContainer` has nothing to tell.
    #[error(
        "no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"
    )]
    NothingHeld { pod: String, container: String, resource: String },
    /// `Allocate` answered without a container response. Go prints an empty message as nothing.
    #[error("no containers return in allocation response ")]
    EmptyResponse,
    /// The container uses a claim that the DRA manager does not know.
    #[error("{0}")]
    Claims(String),
    /// The checkpoint could not be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
    /// A nil dereference: the real kubelet is gone.
    #[error(transparent)]
    Panic(#[from] Vanished),
    /// The embedded kubelet was stopped meanwhile.
    #[error("the kubelet was stopped")]
    Stopped,
}

/// The id of a device that is in use and no longer listed. Reading its topology is a nil
/// dereference in the real kubelet, whose process ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "panic: runtime error: invalid memory address or nil pointer dereference: device {id} is no longer listed by its plugin"
)]
pub(crate) struct Vanished {
    /// The id.
    pub(crate) id: String,
}
