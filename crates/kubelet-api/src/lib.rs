//! Kubelet protocols: gRPC APIs, sockets and checkpoint files; the version of the container runtime.
//!
//! Generated protobuf types are used only by the modules that serve or call the kubelet; other code uses the domain
//! types of `windlass-core`.

pub mod checkpoint;
pub mod cri;
pub mod dated;
pub mod deviceplugin;
pub mod dra;
pub mod endpoint;
pub mod pluginregistration;
pub mod podresources;
pub mod server;
pub mod socket;
