//! Kubelet protocols: gRPC APIs, sockets and checkpoint files. Also queries the container runtime's version.
//!
//! Only modules that serve or call the kubelet use the generated protobuf types. Other code uses the domain types of
//! `windlass-core`.

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
