//! Container Device Interface (CDI) documents: the edits that make a device work inside a container.
//!
//! Format: CNCF CDI specification 1.1.0. containerd since 1.7 and CRI-O since 1.23 read it from `/etc/cdi`
//! and `/var/run/cdi`, each up to the version it was built with. So a document declares the lowest version
//! that it needs.

mod check;
mod edits;
mod version;

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::device::SourceName;
pub use check::{SpecError, check};
pub use edits::{ContainerEdits, Hook, IntelRdt, NetDevice, SpecMount, SpecNode};

/// Vendor half of every kind that Windlass writes.
pub const VENDOR: &str = "windlass.dev";

/// Vendor and class, `windlass.dev/gpu`. Each kind has its own document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    class: Cow<'static, str>,
}

/// One document: the devices of a kind, and the edits common to all.
///
/// Unknown fields are refused, as runtimes refuse them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the format.
    pub cdi_version: String,
    /// Vendor and class.
    pub kind: String,
    /// Facts for readers of the document; containers never see them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Devices of this kind.
    pub devices: Vec<SpecDevice>,
    /// Edits applied once to a container that has any of the devices.
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// One device of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecDevice {
    /// Name within the kind.
    pub name: String,
    /// Facts about the device; containers never see them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits for a container that has this device.
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

// === impl Kind ===

impl Kind {
    /// A kind of [`VENDOR`] and this class.
    pub const fn new(class: &'static str) -> Self {
        Self { class: Cow::Borrowed(class) }
    }

    /// The kind of a source's devices.
    pub fn of_source(source: &SourceName) -> Self {
        Self { class: Cow::Owned(source.as_str().to_owned()) }
    }

    /// Fully qualified CDI device name, `windlass.dev/gpu=GPU-0a1b`.
    pub fn qualify(&self, device: impl fmt::Display) -> String {
        format!("{self}={device}")
    }

    /// The document's file name in a CDI directory.
    pub fn file_name(&self) -> String {
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
    /// A document in the lowest version that supports its content.
    pub fn new(kind: &Kind, devices: Vec<SpecDevice>, container_edits: ContainerEdits) -> Self {
        let mut spec = Self {
            cdi_version: String::new(),
            kind: kind.to_string(),
            annotations: BTreeMap::new(),
            devices,
            container_edits,
        };
        version::min_version(&spec).0.clone_into(&mut spec.cdi_version);
        spec
    }
}

// === impl SpecDevice ===

impl SpecDevice {
    /// A device without annotations.
    pub fn new(name: impl Into<String>, container_edits: ContainerEdits) -> Self {
        Self { name: name.into(), annotations: BTreeMap::new(), container_edits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_the_fields_of_the_specification() {
        const GPU: Kind = Kind::new("gpu");
        let node = SpecNode {
            host_path: Some("/sim/dev/nvidia0".into()),
            ..SpecNode::new("/dev/nvidia0")
        };
        let edits = ContainerEdits { device_nodes: vec![node], ..ContainerEdits::default() };
        let spec =
            Spec::new(&GPU, vec![SpecDevice::new("GPU-0a", edits)], ContainerEdits::default());
        let text = serde_json::to_string(&spec).expect("plain");
        assert_eq!(
            text,
            r#"{"cdiVersion":"0.5.0","kind":"windlass.dev/gpu","devices":[{"name":"GPU-0a","#
                .to_owned()
                + r#""containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0","#
                + r#""hostPath":"/sim/dev/nvidia0","permissions":"rw"}]}}]}"#
        );
        assert_eq!(serde_json::from_str::<Spec>(&text).expect("reads what it writes"), spec);
        assert_eq!(GPU.qualify("GPU-0a"), "windlass.dev/gpu=GPU-0a");
        assert_eq!(GPU.file_name(), "windlass.dev-gpu.json");
    }

    #[test]
    fn a_field_outside_the_specification_is_refused_as_by_runtimes() {
        let text = r#"{"cdiVersion":"0.5.0","kind":"v.com/c","devices":[],"extra":1}"#;
        let error = serde_json::from_str::<Spec>(text).expect_err("unknown").to_string();
        assert!(error.contains("unknown field `extra`"), "{error}");
    }
}
