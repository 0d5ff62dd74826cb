//! Paths on the machine, and access to the API server.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_host::{Host, Roots};

/// Places on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Places {
    /// The kubelet's folder; its sockets are in `device-plugins` below.
    pub kubelet_dir: PathBuf,
    /// Root of the host's `/sys`, `/proc`, `/dev` and driver.
    pub host_root: PathBuf,
    /// Path of `hostRoot` for the container runtime: `/`, except for simulated machines.
    pub host_root_on_node: PathBuf,
    /// The NVML library; left out, it is searched where drivers put it.
    pub nvml_library: Option<PathBuf>,
    /// Roots of the driver's installation.
    pub driver: DriverPlaces,
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
pub struct DriverPlaces {
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
    /// A kubeconfig; left out, the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object; left out, `NODE_NAME` or the host's name.
    pub node_name: Option<String>,
    /// Namespace of namespaced objects; left out, the pod's own.
    pub namespace: Option<String>,
    /// The pod that the agent runs in.
    #[serde(skip)]
    pub pod: Option<PodIdentity>,
    /// Writes changes of health as events of the Node object.
    pub events: bool,
}

/// The pod that the agent runs in. Objects of the agent are deleted with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace. Objects of another namespace cannot belong to it.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its unique id.
    pub uid: String,
}

// === impl Places ===

impl Places {
    /// The host's files.
    pub fn host(&self) -> Host {
        Host::new(&self.host_root, &self.host_root_on_node)
    }

    /// The trees that a device's files lie in.
    pub fn roots(&self) -> Roots {
        self.driver.roots(self.host())
    }
}

impl Default for Places {
    fn default() -> Self {
        Self {
            kubelet_dir: "/var/lib/kubelet".into(),
            host_root: "/".into(),
            host_root_on_node: "/".into(),
            nvml_library: None,
            driver: DriverPlaces::default(),
            cdi_dir: "/var/run/cdi".into(),
            state_dir: "/var/lib/windlass".into(),
            mps_dir: "/run/windlass/mps".into(),
            device_info_dir: "/var/run/k8s.cni.cncf.io/devinfo/dp".into(),
        }
    }
}

// === impl DriverPlaces ===

impl DriverPlaces {
    /// The trees that a device's files on this host lie in.
    pub fn roots(&self, host: Host) -> Roots {
        Roots::new(host, &self.root, self.mounted_at.as_deref(), self.dev_root.as_deref())
    }
}

impl Default for DriverPlaces {
    fn default() -> Self {
        Self { root: "/".into(), mounted_at: None, dev_root: None }
    }
}
