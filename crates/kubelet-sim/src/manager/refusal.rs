//! Failures of an allocation, in the kubelet's words.
//!
//! Texts from `pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36.

use crate::plugin::RpcError;

/// A failed allocation; each text ends up in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Re-admission with another quantity.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    ChangedRequest { pod: String, container: String, resource: String, from: usize, to: usize },
    /// A container holds the resource, and no plugin lists it.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The resource has no healthy device, for any request.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthy(String),
    /// Re-admission after a device was lost.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    Lost(String),
    /// Too few devices are free.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable { resource: String, requested: usize, available: usize },
    /// The sets of devices are too small; the real one has the same last resort.
    #[error(
        "unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}"
    )]
    Short { requested: usize, got: usize },
    /// The grace period ended while a container still holds devices.
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
    /// `PreStartContainer` has no devices to send.
    #[error(
        "no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"
    )]
    NothingHeld { pod: String, container: String, resource: String },
    /// `Allocate` returned no container response. Go prints an empty message as an empty string.
    #[error("no containers return in allocation response ")]
    EmptyResponse,
    /// The container uses a claim that the DRA manager does not know.
    #[error("{0}")]
    Claims(String),
    /// The checkpoint could not be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
    /// A nil dereference ended the real kubelet.
    #[error(transparent)]
    Panic(#[from] Vanished),
    /// The embedded kubelet was stopped meanwhile.
    #[error("the kubelet was stopped")]
    Stopped,
}

/// Id of a device in use that is no longer listed. Reading its topology is a nil dereference in the
/// real kubelet, whose process ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "panic: runtime error: invalid memory address or nil pointer dereference: device {id} is no longer listed by its plugin"
)]
pub(crate) struct Vanished {
    /// Device id.
    pub(crate) id: String,
}
