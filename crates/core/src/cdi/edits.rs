//! What a document changes in a container: variables, device nodes, mounts, hooks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerEdits {
    /// `NAME=value` pairs; a name that the image sets too is overwritten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces that move into the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs that run while the container is made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Groups that the container's process is in besides its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Cache and memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
}

/// A device node in a container. What is left out the runtime takes from the host's node when it
/// makes the container, which is right also after the driver got another major number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Its path in the container.
    pub path: PathBuf,
    /// Its path on the host, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// `c`, `b`, `u` or `p`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub node_type: Option<String>,
    /// Major number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Permissions of the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the container's cgroup may do with it, of `r`, `w` and `m`; left out it is all three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A file or folder of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Its path on the host.
    pub host_path: PathBuf,
    /// Its path in the container.
    pub container_path: PathBuf,
    /// Kind of file system, where it is none of the host's.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
    /// Options of `mount(8)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A program of the host that runs while the container is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// When: one of [`Hook::STAGES`].
    pub hook_name: String,
    /// The program on the host.
    pub path: PathBuf,
    /// Its arguments, the first being its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A network interface that moves from the host into the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// Cache and memory bandwidth, as `resctrl` has them. Windlass writes none, others do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
    pub clos_id: Option<String>,
    /// Cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    /// Memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Lines of the class's `schemata` file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Whether the class has a monitoring group.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
    /// Whether cache occupancy is monitored; in versions before 1.1.0.
    #[serde(rename = "enableCMT", skip_serializing_if = "std::ops::Not::not")]
    pub enable_cmt: bool,
    /// Whether memory bandwidth is monitored; in versions before 1.1.0.
    #[serde(rename = "enableMBM", skip_serializing_if = "std::ops::Not::not")]
    pub enable_mbm: bool,
}

/// A container reads and writes a device, and makes no device nodes of its own.
const READ_WRITE: &str = "rw";

/// Seen and not changed: what a driver's files are to a container.
const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Spoken through: sockets, and the folders that hold them.
const SPOKEN_THROUGH: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];

// === impl ContainerEdits ===

impl ContainerEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl DeviceNode ===

impl DeviceNode {
    /// A node that is the host's of the same path, to be read and written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            host_path: None,
            node_type: None,
            major: None,
            minor: None,
            file_mode: None,
            permissions: Some(READ_WRITE.to_owned()),
            uid: None,
            gid: None,
        }
    }
}

// === impl Mount ===

impl Mount {
    /// A file that the container reads.
    pub fn read_only(host_path: impl Into<PathBuf>, container_path: impl Into<PathBuf>) -> Self {
        Self::with(&READ_ONLY, host_path.into(), container_path.into())
    }

    /// A file or folder of the host, with what is mounted below it.
    pub fn bound(
        host_path: impl Into<PathBuf>,
        container_path: impl Into<PathBuf>,
        writable: bool,
    ) -> Self {
        let access = if writable { "rw" } else { "ro" };
        Self::with(&["rbind", "nosuid", "nodev", access], host_path.into(), container_path.into())
    }

    /// A socket, or a folder with sockets.
    pub fn socket(host_path: impl Into<PathBuf>, container_path: impl Into<PathBuf>) -> Self {
        Self::with(&SPOKEN_THROUGH, host_path.into(), container_path.into())
    }

    fn with(options: &[&str], host_path: PathBuf, container_path: PathBuf) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self { host_path, container_path, mount_type: None, options }
    }
}

// === impl Hook ===

impl Hook {
    /// When a hook may run, by the OCI runtime specification.
    pub const STAGES: [&str; 6] =
        ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
}
