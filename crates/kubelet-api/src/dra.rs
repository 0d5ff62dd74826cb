//! Dynamic Resource Allocation: driver API in its two current versions, and device health.

pub mod checkpoint;

/// Used since Kubernetes 1.34.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod v1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1.rs");
}

/// Used before Kubernetes 1.34; shares have no id.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod v1beta1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");
}

/// Device health for the status of pods.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod health {
    include!("generated/v1alpha1.rs");
}

/// Services that a driver announces, in order of preference for the kubelet (Kubernetes,
/// `staging/src/k8s.io/kubelet/pkg/apis/dra`).
pub const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Folder of the drivers' folders, below the kubelet's.
pub const PLUGINS_DIR: &str = "plugins";

/// File name of a driver's socket in its folder.
pub fn socket_name(instance: Option<&str>) -> String {
    instance.map_or_else(|| "dra.sock".to_owned(), |instance| format!("dra-{instance}.sock"))
}
