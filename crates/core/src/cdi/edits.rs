//! Container edits of a CDI document: variables, device nodes, mounts, hooks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerEdits {
    /// `NAME=value` pairs; they override variables of the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes to create.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<SpecNode>,
    /// Network interfaces to move into the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Files and folders to mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<SpecMount>,
    /// Programs to run at stages of the container's life.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Supplementary groups of the container's process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Cache and memory bandwidth allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
}

/// A device node in a container.
///
/// The runtime reads omitted fields from the host's node when it creates the container. So the edit stays correct after
/// a change of the driver's major number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecNode {
    /// Path in the container.
    pub path: PathBuf,
    /// Path on the host, if different.
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
    /// Permission bits of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Device cgroup permissions, of `r`, `w` and `m`; all three if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A file or folder of the host, mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecMount {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path in the container.
    pub container_path: PathBuf,
    /// File system type, for mounts other than bind mounts.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
    /// Options of `mount(8)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A host program that runs at a stage of the container's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// One of [`Hook::STAGES`].
    pub hook_name: String,
    /// Path of the program on the host.
    pub path: PathBuf,
    /// Arguments, beginning with the program's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment, as `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds until the program is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A network interface that moves from the host into the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// Name on the host.
    pub host_interface_name: String,
    /// Name in the container.
    pub name: String,
}

/// Cache and memory bandwidth, by `resctrl`. Windlass reads them in other vendors' documents and writes none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntelRdt {
    /// Class of service (CLOS).
    #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
    pub clos_id: Option<String>,
    /// L3 cache schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    /// Memory bandwidth schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Lines of the class's `schemata` file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// True if the class has a monitoring group.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
    /// True if cache occupancy is monitored; in versions before 1.1.0.
    #[serde(rename = "enableCMT", skip_serializing_if = "std::ops::Not::not")]
    pub enable_cmt: bool,
    /// True if memory bandwidth is monitored; in versions before 1.1.0.
    #[serde(rename = "enableMBM", skip_serializing_if = "std::ops::Not::not")]
    pub enable_mbm: bool,
}

/// Read and write, without `m`: containers need not create nodes.
const READ_WRITE: &str = "rw";

/// Mount options of driver files.
const READ_ONLY_OPTIONS: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Mount options of sockets and their folders.
const SOCKET_OPTIONS: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];

// === impl ContainerEdits ===

impl ContainerEdits {
    /// True without any edit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the edits of another device. Equal edits count once.
    pub fn merge(&mut self, other: Self) {
        fn add<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
            for edit in more {
                if !all.contains(&edit) {
                    all.push(edit);
                }
            }
        }
        add(&mut self.env, other.env);
        add(&mut self.device_nodes, other.device_nodes);
        add(&mut self.net_devices, other.net_devices);
        add(&mut self.mounts, other.mounts);
        add(&mut self.hooks, other.hooks);
        add(&mut self.additional_gids, other.additional_gids);
        self.intel_rdt = self.intel_rdt.take().or(other.intel_rdt);
    }
}

// === impl SpecNode ===

impl SpecNode {
    /// The host's node of the same path, for reading and writing.
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

// === impl SpecMount ===

impl SpecMount {
    /// A file that the container may only read.
    pub fn read_only(host_path: impl Into<PathBuf>, container_path: impl Into<PathBuf>) -> Self {
        Self::with(&READ_ONLY_OPTIONS, host_path.into(), container_path.into())
    }

    /// A file or folder of the host, including mounts below it.
    pub fn bind(
        host_path: impl Into<PathBuf>,
        container_path: impl Into<PathBuf>,
        writable: bool,
    ) -> Self {
        let access = if writable { "rw" } else { "ro" };
        Self::with(&["rbind", "nosuid", "nodev", access], host_path.into(), container_path.into())
    }

    /// A socket or a folder of sockets.
    pub fn socket(host_path: impl Into<PathBuf>, container_path: impl Into<PathBuf>) -> Self {
        Self::with(&SOCKET_OPTIONS, host_path.into(), container_path.into())
    }

    fn with(options: &[&str], host_path: PathBuf, container_path: PathBuf) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self { host_path, container_path, mount_type: None, options }
    }
}

// === impl Hook ===

impl Hook {
    /// Stages at which a hook may run (OCI runtime specification).
    pub const STAGES: &[&str] = &[
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "poststart",
        "poststop",
    ];
}
