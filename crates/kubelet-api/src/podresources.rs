//! Pod resources API v1: the kubelet's report of devices by pod and container.

pub use generated::*;

#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    rustdoc::invalid_html_tags,
    reason = "generated; documented in the .proto files"
)]
mod generated {
    include!("generated/v1.rs");
}

/// Folder of the pod resources socket, below the kubelet's folder.
pub const SOCKET_DIR: &str = "pod-resources";

/// File name of the pod resources socket.
pub const SOCKET_NAME: &str = "kubelet.sock";
