//! The kubelet's wire: the APIs a device plugin meets, and the sockets and files around them.
//!
//! Generated protobuf types live here and are spoken only by the modules that serve or dial the
//! kubelet; the rest of Windlass works with the domain types of `windlass-core`.

pub mod checkpoint;
pub mod dated;
pub mod deviceplugin;
pub mod dra;
pub mod endpoint;
pub mod pluginregistration;
pub mod podresources;
pub mod server;
pub mod socket;
