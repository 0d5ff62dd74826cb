//! Paths on the machine, and access to the API server.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_host::{Host, Roots};

/// Paths on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostPaths {
    /// The kubelet's folder; its sockets are in the folder `device-plugins` below it.
    pub kubelet_dir: PathBuf,
    /// Root of the host's `/sys`, `/proc`, `/dev` and driver.
    pub host_root: PathBuf,
    /// Path of `hostRoot` for the container runtime: `/`, except for simulated machines.
    pub host_root_on_node: PathBuf,
    /// Path of the NVML library. Default: searched in the folders that drivers use.
    pub nvml_library: Option<PathBuf>,
    /// Roots of the driver's installation.
    pub driver: DriverRoots,
    /// Folder of CDI documents.
    pub cdi_dir: PathBuf,
    /// Folder of the state that must outlive the agent.
    pub state_dir: PathBuf,
    /// Folder of the pipes and logs of MPS daemons, on the host.
    pub mps_dir: PathBuf,
    /// Folder in which CNI plugins look up network devices, on the host.
    pub device_info_dir: PathBuf,
}

/// Roots of the driver's installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "DriverRoots")]
pub struct DriverRoots {
    /// Root of libraries, binaries and firmware on the host: `/`, or `/run/nvidia/driver` with a driver
    /// container.
    pub root: PathBuf,
    /// Path of that root in the agent's container, if not below `hostRoot`.
    pub mounted_at: Option<PathBuf>,
    /// Root of `/dev` on the host, if not the host's own.
    pub dev_root: Option<PathBuf>,
}

/// Access to the API server, and the name of the node there. The agent connects only for features that need it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterAccess {
    /// Path of a kubeconfig. Default: the account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object. Default: `NODE_NAME`, or the host's name.
    pub node_name: Option<String>,
    /// Namespace of namespaced objects. Default: the namespace of the agent's pod.
    pub namespace: Option<String>,
    /// The pod that the agent runs in.
    #[serde(skip)]
    pub pod: Option<PodIdentity>,
    /// Writes changes of health as events of the Node object.
    pub events: bool,
}

/// The pod that the agent runs in. Objects of the agent are deleted with the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace of the pod. An object of another namespace cannot have the pod as its owner.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

// === impl HostPaths ===

impl HostPaths {
    /// The host's files.
    pub fn host(&self) -> Host {
        Host::new(&self.host_root, &self.host_root_on_node)
    }

    /// Roots of the files of devices: the host, the driver's installation, and `/dev`.
    pub fn roots(&self) -> Roots {
        self.driver.roots(self.host())
    }
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            kubelet_dir: "/var/lib/kubelet".into(),
            host_root: "/".into(),
            host_root_on_node: "/".into(),
            nvml_library: None,
            driver: DriverRoots::default(),
            cdi_dir: "/var/run/cdi".into(),
            state_dir: "/var/lib/windlass".into(),
            mps_dir: "/run/windlass/mps".into(),
            device_info_dir: "/var/run/k8s.cni.cncf.io/devinfo/dp".into(),
        }
    }
}

// === impl DriverRoots ===

impl DriverRoots {
    /// Roots of the files of devices on a host.
    pub fn roots(&self, host: Host) -> Roots {
        Roots::new(host, &self.root, self.mounted_at.as_deref(), self.dev_root.as_deref())
    }
}

impl Default for DriverRoots {
    fn default() -> Self {
        Self { root: "/".into(), mounted_at: None, dev_root: None }
    }
}
