//! Protobuf messages of NRI and ttrpc: the fields that this plugin reads and writes (`api.proto`, `request.proto`).

use std::collections::BTreeMap;

use prost::Message;

/// Call of a method.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) payload: Vec<u8>,
}

/// Answer to a call.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub(crate) plugin_name: String,
    #[prost(string, tag = "2")]
    pub(crate) plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub(crate) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(crate) runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub(crate) events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SynchronizeRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) containers: Vec<NriContainer>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub(crate) more: bool,
}

/// `CreateContainerRequest`, `StopContainerRequest` and `RemoveContainerRequest`; for a pod, `container` is absent.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(crate) container: Option<NriContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub(crate) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(crate) container: Option<NriContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) uid: String,
    #[prost(string, tag = "4")]
    pub(crate) namespace: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NriContainer {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(int32, tag = "4")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) adjust: Option<ContainerAdjustment>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerAdjustment {
    #[prost(message, repeated, tag = "4")]
    pub(crate) env: Vec<KeyValue>,
    #[prost(message, optional, tag = "5")]
    pub(crate) hooks: Option<Hooks>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Hooks {
    #[prost(message, repeated, tag = "2")]
    pub(crate) create_runtime: Vec<NriHook>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NriHook {
    #[prost(string, tag = "1")]
    pub(crate) path: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) args: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) env: Vec<String>,
    #[prost(message, optional, tag = "4")]
    pub(crate) timeout: Option<OptionalInt>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct OptionalInt {
    #[prost(int64, tag = "1")]
    pub(crate) value: i64,
}

/// Values of the protocol's `Event` that this plugin subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    RemovePodSandbox = 3,
    CreateContainer = 4,
    StopContainer = 10,
    RemoveContainer = 11,
}

// === impl Event ===

impl Event {
    /// Mask of all these events. The bit of event `n` is `n - 1` (`api.EventMask`).
    pub(crate) const MASK: i32 = Self::RemovePodSandbox.bit()
        | Self::CreateContainer.bit()
        | Self::StopContainer.bit()
        | Self::RemoveContainer.bit();

    const fn bit(self) -> i32 {
        1 << (self as i32 - 1)
    }
}

// === impl NriContainer ===

impl NriContainer {
    /// `CONTAINER_STOPPED`.
    const STOPPED: i32 = 4;

    pub(crate) fn is_stopped(&self) -> bool {
        self.state == Self::STOPPED
    }
}
