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

/// Value of [`RegisterRequest::version`]. Kubelets since 1.10 accept no other value.
pub const VERSION: &str = "v1beta1";

/// File name of the kubelet's registration socket, in the device plugin directory.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Folder of plugin sockets below the kubelet's folder. The kubelet compiles in the absolute path, so `--root-dir` does
/// not move this folder.
pub const PLUGIN_DIR: &str = "device-plugins";

/// Value of [`Device::health`] for an allocatable device.
pub const HEALTHY: &str = "Healthy";

/// Value of [`Device::health`] for every other device.
pub const UNHEALTHY: &str = "Unhealthy";
