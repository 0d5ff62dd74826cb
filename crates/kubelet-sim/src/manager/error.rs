//! Errors of the device manager, with the kubelet's texts.
//!
//! Source: `pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36.

use crate::plugin::RpcError;

/// A failed allocation or container start. The pod's status shows the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManagerError {
    /// The container holds another number of devices than it requests.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    ChangedRequest { pod: String, container: String, resource: String, from: usize, to: usize },
    /// A container holds devices of the resource, but the manager knows no list of it.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The resource has no healthy device. Fails a request of 0 devices too.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthyDevice(String),
    /// The container holds a device that is no longer healthy.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    HeldDeviceUnhealthy(String),
    /// Too few healthy devices are free.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    TooFewAvailable { resource: String, requested: usize, available: usize },
    /// The choice ran out of devices. The real manager has the same last check.
    #[error(
        "unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}"
    )]
    ChoiceIncomplete { requested: usize, got: usize },
    /// The manager knows the resource but has no endpoint for it, such as after the grace period.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The endpoint was removed between the choice and `Allocate`.
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
    /// The container holds no devices for `PreStartContainer`.
    #[error(
        "no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"
    )]
    NoAllocatedDevices { pod: String, container: String, resource: String },
    /// `Allocate` returned no container response. Go prints an empty message as an empty string.
    #[error("no containers return in allocation response ")]
    EmptyResponse,
    /// The container uses a claim that the DRA manager does not know.
    #[error("{0}")]
    Claims(String),
    /// The checkpoint could not be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(String),
    /// The real kubelet panics here, with a nil dereference.
    #[error(transparent)]
    Panic(#[from] UnlistedDevice),
    /// The embedded kubelet was stopped during the operation.
    #[error("the kubelet was stopped")]
    Stopped,
}

/// A device in use that its plugin no longer lists. The real kubelet dereferences nil when it reads
/// the device's topology, and panics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "panic: runtime error: invalid memory address or nil pointer dereference: device {id} is no longer listed by its plugin"
)]
pub(crate) struct UnlistedDevice {
    /// Id of the device.
    pub(crate) id: String,
}
