//! The GPUs of a node, as its agent publishes them on the Node.

use serde::{Deserialize, Serialize};

use super::UnreadableAnnotation;
use crate::device::DeviceId;

/// The GPUs of a node, in the order of their indices.
///
/// The document lists devices and no allocations, so it changes with the inventory alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDevices {
    /// The GPUs. A reader ignores fields that it does not know.
    pub devices: Vec<NodeDevice>,
    /// True if `nvidia.com/gpu` counts virtual GPUs, so that pods may have shares under this name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_gpus: bool,
    /// True if the machine is simulated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// A GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDevice {
    /// Device id, as in placements.
    pub id: DeviceId,
    /// Product name from the driver: `NVIDIA H100 80GB HBM3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Memory in MiB; zero where it is unknown.
    #[serde(default)]
    pub memory_mib: u32,
    /// Reason why the GPU takes no new pods; `None` if it takes pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// True if the obstacle is a failure of the GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Pods to which the GPU is restricted; `None` for all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_for: Option<PodKind>,
}

/// Kind of pods, by their request for GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodKind {
    /// Pods that request whole GPUs, `nvidia.com/gpu`.
    Whole,
    /// Pods that request shares of GPUs.
    Shares,
}

// === impl NodeDevices ===

impl NodeDevices {
    /// Key of the annotation on the Node.
    pub const ANNOTATION: &'static str = "windlass.dev/devices";

    /// Reads the annotation's value.
    ///
    /// # Errors
    ///
    /// The text does not parse.
    pub fn from_annotation(text: &str) -> Result<Self, UnreadableAnnotation> {
        let annotation = Self::ANNOTATION;
        serde_json::from_str(text).map_err(|source| UnreadableAnnotation { annotation, source })
    }

    /// The annotation's value. Equal devices give equal bytes.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(id: &str, obstacle: Option<&str>) -> NodeDevice {
        NodeDevice {
            id: id.parse().expect("an id"),
            model: "NVIDIA A10".to_owned(),
            memory_mib: 23_028,
            obstacle: obstacle.map(str::to_owned),
            failed: false,
            only_for: None,
        }
    }

    #[test]
    fn devices_are_read_as_they_were_written() {
        let devices = vec![gpu("GPU-a", None), gpu("GPU-b", Some("xid 79"))];
        let devices = NodeDevices { devices, ..NodeDevices::default() };
        let text = devices.to_annotation();
        assert_eq!(
            text,
            r#"{"devices":[{"id":"GPU-a","model":"NVIDIA A10","memoryMib":23028},{"id":"GPU-b","model":"NVIDIA A10","memoryMib":23028,"obstacle":"xid 79"}]}"#
        );
        assert_eq!(NodeDevices::from_annotation(&text).expect("readable"), devices);
        let virtual_gpus =
            NodeDevices { virtual_gpus: true, ..NodeDevices::default() }.to_annotation();
        assert_eq!(virtual_gpus, r#"{"devices":[],"virtualGpus":true}"#);
        assert!(NodeDevices::from_annotation(&virtual_gpus).expect("readable").virtual_gpus);
    }

    #[test]
    fn fields_of_a_newer_agent_are_ignored_and_damage_is_named() {
        let newer = r#"{"devices":[{"id":"GPU-a","island":3,"onlyFor":"shares"}],"format":2}"#;
        let devices = NodeDevices::from_annotation(newer).expect("readable").devices;
        assert_eq!((devices[0].id.as_str(), devices[0].memory_mib), ("GPU-a", 0));
        assert_eq!(devices[0].only_for, Some(PodKind::Shares));
        let error = NodeDevices::from_annotation("{\"devices\":7}").expect_err("damaged");
        assert_eq!(error.to_string(), "annotation windlass.dev/devices is unreadable");
        assert!(error.source.to_string().contains("column 12"), "{}", error.source);
    }
}
