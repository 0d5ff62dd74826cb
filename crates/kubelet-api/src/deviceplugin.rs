//! Device plugin API v1beta1: messages, client, server and shared constants.

pub use generated::*;

#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    rustdoc::invalid_html_tags,
    reason = "generated; documented in the .proto files"
)]
mod generated {
    include!("generated/v1beta1.rs");
}

/// API version in [`RegisterRequest::version`], the only one that kubelets since 1.10 accept.
pub const VERSION: &str = "v1beta1";

/// File name of the kubelet's registration socket, in the device plugin directory.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Folder of plugin sockets below the kubelet's folder. A real kubelet has the whole path compiled in; its `--root-dir`
/// does not move it.
pub const PLUGIN_DIR: &str = "device-plugins";

/// Value of [`Device::health`] for an allocatable device.
pub const HEALTHY: &str = "Healthy";

/// Value of [`Device::health`] for every other device.
pub const UNHEALTHY: &str = "Unhealthy";
