//! Plugin side of the Node Resource Interface (NRI). A container runtime lets NRI plugins adjust containers.
//!
//! ```text
//!  unix socket ── frames ──┬─ connection 1: the runtime calls the plugin (Configure, Synchronize, ...)
//!                          └─ connection 2: the plugin calls the runtime (RegisterPlugin)
//!                             each carries ttrpc messages: a ten-byte header and protobuf
//! ```
//!
//! The formats are those of `github.com/containerd/nri` (`pkg/net/multiplex`, `pkg/api/api.proto`) and
//! `github.com/containerd/ttrpc` (`channel.go`).

mod connection;
mod decoder;
mod messages;
mod session;
mod settings;
mod ttrpc;

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::cdi::Hook;

pub use connection::{NriState, run};
pub use decoder::{Decoder, Message, ProtocolError, Service};
pub use session::{SessionError, serve};
pub use settings::NriSettings;

/// A container of a pod, as the runtime describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Id that the runtime assigned.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// Pod of the container.
    pub pod: Arc<Pod>,
}

/// A pod with its sandbox. A pod may get a second sandbox after its first ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Id of the sandbox.
    pub sandbox_id: String,
    /// UID of the pod object.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Annotations of the pod when its sandbox was created.
    pub annotations: BTreeMap<String, String>,
}

/// Changes of a container before it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// Environment variables by name. They replace those of the container.
    pub env: BTreeMap<String, String>,
    /// OCI hooks of the stage `createRuntime`.
    pub create_runtime: Vec<Hook>,
}

/// A container or sandbox that the runtime stopped or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndEvent {
    /// The container with this id.
    Container(String),
    /// The sandbox with this id, with all of its containers.
    Sandbox(String),
}

/// A plugin of the runtime. Its methods are called one at a time.
///
/// # Assumptions
///
/// The runtime waits two seconds for an answer by default. It then drops the plugin, and creates the container
/// unadjusted.
pub trait Plugin: Send {
    /// Receives the existing containers, after each connection.
    fn synchronize(&mut self, containers: Vec<Container>) -> impl Future<Output = ()> + Send;

    /// Adjusts a container before its creation. An error is the reason why the runtime must not create the container.
    fn create_container(
        &mut self,
        container: Container,
    ) -> impl Future<Output = Result<Adjustment, String>> + Send;

    /// Receives the end of a container or sandbox. The runtime may report the same end twice.
    fn handle_end(&mut self, event: EndEvent) -> impl Future<Output = ()> + Send;
}
