//! Device plugin API v1beta1: messages, client, server, and the constants both sides agree on.

pub use generated::*;

#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    rustdoc::invalid_html_tags,
    reason = "generated; the protos carry the words"
)]
mod generated {
    include!("generated/v1beta1.rs");
}

/// The only API version a kubelet since 1.10 accepts in [`RegisterRequest::version`].
pub const VERSION: &str = "v1beta1";

/// File name of the kubelet's registration socket, in the device plugin directory.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Folder of plugin sockets below the kubelet's directory. A real kubelet has the whole path
/// compiled in: its `--root-dir` does not move it.
pub const PLUGIN_DIR: &str = "device-plugins";

/// The one spelling of [`Device::health`] that makes a device allocatable.
pub const HEALTHY: &str = "Healthy";

/// The spelling of [`Device::health`] for everything else.
pub const UNHEALTHY: &str = "Unhealthy";
