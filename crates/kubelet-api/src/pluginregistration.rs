//! Plugin registration API v1: the kubelet discovers DRA drivers.
//!
//! A driver serves a socket in [`REGISTRY_DIR`]. The kubelet watches that folder and dials each new socket. Its
//! requests have the socket's percent-encoded path as `:authority`. [`socket_name`] returns a file name for which h2
//! accepts this header.

pub use generated::*;

#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
mod generated {
    include!("generated/pluginregistration.rs");
}

/// Folder of registration sockets, below the kubelet's folder.
pub const REGISTRY_DIR: &str = "plugins_registry";

/// Value of `type` in [`PluginInfo`] for a DRA driver (Kubernetes, `pkg/kubelet/pluginmanager/pluginwatcher`).
pub const DRA_PLUGIN: &str = "DRAPlugin";

/// File name of a driver's registration socket.
///
/// The name contains an `@`. grpc-go leaves `@` unescaped when it derives the authority from the path, and the text
/// before an `@` may be percent-encoded. Without the `@`, h2 refuses the kubelet's requests with `PROTOCOL_ERROR`.
/// `instance` distinguishes several instances of a driver on one node.
pub fn socket_name(driver: &str, instance: Option<&str>) -> String {
    match instance {
        Some(instance) => format!("{driver}-{instance}@reg.sock"),
        None => format!("{driver}@reg.sock"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_authority_for_a_registration_socket_can_be_parsed() {
        for name in [socket_name("gpu.example.com", None), socket_name("a.b", Some("0e57-uid"))] {
            let path = format!("/var/lib/kubelet/{REGISTRY_DIR}/{name}");
            let authority = path.replace('/', "%2F");
            assert!(authority.parse::<tonic::codegen::http::uri::Authority>().is_ok(), "{name}");
            let plain = authority.replace('@', "-");
            assert!(plain.parse::<tonic::codegen::http::uri::Authority>().is_err(), "{plain}");
        }
    }
}
