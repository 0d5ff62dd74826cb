//! Documents of the Container Device Interface: what a runtime must change in a container so that a
//! device works inside it.
//!
//! Format: CNCF CDI specification 0.5.0 (`hostPath` of device nodes came with it), which containerd
//! since 1.7 and CRI-O since 1.23 read from `/etc/cdi` and `/var/run/cdi`.

use std::{fmt, path::PathBuf};

use serde::Serialize;

/// The format's version that a document is written in: the lowest that has all it uses.
pub const VERSION: &str = "0.5.0";

/// The vendor half of every kind that Windlass writes.
pub const VENDOR: &str = "windlass.dev";

/// Vendor and class, `windlass.dev/gpu`: one document each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    class: &'static str,
}

/// One document: the devices of a kind, and what they all need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: &'static str,
    kind: String,
    /// The devices by name.
    pub devices: Vec<SpecDevice>,
    /// What a container gets once if it has any of the devices.
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// One device of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecDevice {
    /// Name within the kind.
    pub name: String,
    /// What a container gets with it.
    pub container_edits: ContainerEdits,
}

/// Changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// `NAME=value` pairs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
}

/// A device node in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Its path in the container.
    pub path: PathBuf,
    /// Its path on the host, where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// `rw`: a container reads and writes a device, and makes no new ones.
    pub permissions: &'static str,
}

// === impl Kind ===

impl Kind {
    /// The kind of that class.
    pub const fn new(class: &'static str) -> Self {
        Self { class }
    }

    /// The name by which a container asks for a device, `windlass.dev/gpu=GPU-0a1b`.
    pub fn qualify(self, device: impl fmt::Display) -> String {
        format!("{self}={device}")
    }

    /// The document's file name in a CDI directory.
    pub fn file_name(self) -> String {
        format!("{VENDOR}-{}.json", self.class)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VENDOR}/{}", self.class)
    }
}

// === impl Spec ===

impl Spec {
    /// A document of that kind.
    pub fn new(kind: Kind, devices: Vec<SpecDevice>, container_edits: ContainerEdits) -> Self {
        Self { cdi_version: VERSION, kind: kind.to_string(), devices, container_edits }
    }
}

// === impl ContainerEdits ===

impl ContainerEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.device_nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_the_fields_of_the_specification() {
        const GPU: Kind = Kind::new("gpu");
        let node = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: Some("/sim/dev/nvidia0".into()),
            permissions: "rw",
        };
        let edits = ContainerEdits { device_nodes: vec![node], ..ContainerEdits::default() };
        let device = SpecDevice { name: "GPU-0a".into(), container_edits: edits };
        let spec = Spec::new(GPU, vec![device], ContainerEdits::default());
        assert_eq!(
            serde_json::to_string(&spec).expect("plain"),
            r#"{"cdiVersion":"0.5.0","kind":"windlass.dev/gpu","devices":[{"name":"GPU-0a","#
                .to_owned()
                + r#""containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0","#
                + r#""hostPath":"/sim/dev/nvidia0","permissions":"rw"}]}}]}"#
        );
        assert_eq!(GPU.qualify("GPU-0a"), "windlass.dev/gpu=GPU-0a");
        assert_eq!(GPU.file_name(), "windlass.dev-gpu.json");
    }
}
