//! Dynamic Resource Allocation: driver API in versions v1 and v1beta1, and the device health API.

pub mod checkpoint;

/// Driver API since Kubernetes 1.34.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod v1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1.rs");
}

/// Driver API before Kubernetes 1.34. Devices have no share id.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod v1beta1 {
    include!("generated/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");
}

/// Device health API. The kubelet copies the health to pod status.
#[allow(
    clippy::pedantic,
    missing_docs,
    missing_debug_implementations,
    reason = "generated; documented in the .proto files"
)]
pub mod health {
    include!("generated/v1alpha1.rs");
}

/// gRPC services that a driver announces. The kubelet uses the first `DRAPlugin` version that it supports (Kubernetes,
/// `staging/src/k8s.io/kubelet/pkg/apis/dra`).
pub const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Folder below the kubelet's folder, with one subfolder per driver.
pub const PLUGINS_DIR: &str = "plugins";

/// File name of a driver's DRA socket in its folder: `dra.sock`, or `dra-<instance>.sock` for an instance.
pub fn socket_name(instance: Option<&str>) -> String {
    instance.map_or_else(|| "dra.sock".to_owned(), |instance| format!("dra-{instance}.sock"))
}
