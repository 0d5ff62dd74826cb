//! Dynamic Resource Allocation: what the kubelet asks of a driver, in the two versions that are spoken,
//! and the health of devices.

pub mod checkpoint;

/// Since Kubernetes 1.34.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; the protos carry the words"
)]
pub mod v1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1.rs");
}

/// Before Kubernetes 1.34; shares have no id.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; the protos carry the words"
)]
pub mod v1beta1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");
}

/// Health of devices, for the status of pods.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; the protos carry the words"
)]
pub mod health {
    include!("generated/v1alpha1.rs");
}

/// What a driver says it serves, in the order in which a kubelet is to prefer it (Kubernetes,
/// `staging/src/k8s.io/kubelet/pkg/apis/dra`).
pub const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Folder below the kubelet's directory in which each driver has one of its own.
pub const PLUGINS_DIR: &str = "plugins";

/// The file name of a driver's socket in its folder.
pub fn socket_name(instance: Option<&str>) -> String {
    instance.map_or_else(|| "dra.sock".to_owned(), |instance| format!("dra-{instance}.sock"))
}
