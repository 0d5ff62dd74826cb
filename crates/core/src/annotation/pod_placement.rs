//! GPUs that the cluster half chose for a pod. The Binding adds the annotation to the pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnreadableAnnotation;
use crate::device::DeviceId;

/// The GPUs of a pod. All of its containers share them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlacement {
    /// The GPUs, in the order of the node's list.
    pub devices: Vec<PlacedGpu>,
}

/// A GPU of a pod, and the amounts that the pod holds of it. Without amounts it holds the whole GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedGpu {
    /// The GPU's id on its node.
    pub id: DeviceId,
    /// Memory in MiB; `None` if the pod requests no amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Compute in thousandths of the GPU; `None` if the pod requests no amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_milli: Option<u16>,
}

// === impl PodPlacement ===

impl PodPlacement {
    /// Key of the annotation on the pod.
    pub const ANNOTATION: &'static str = "windlass.dev/placement";
    /// Key of the agent's annotation for a pod that got GPUs other than the chosen ones.
    pub const PLACED_ANNOTATION: &'static str = "windlass.dev/placed";

    /// Values of a pod's placement annotations, not parsed: the agent's correction, then the decision.
    pub fn annotation_values(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
        let keys = [Self::PLACED_ANNOTATION, Self::ANNOTATION].into_iter();
        keys.filter_map(|key| annotations.get(key)).map(String::as_str)
    }

    /// The first of these placements that parses.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Self::annotation_values(annotations).find_map(|text| Self::from_annotation(text).ok())
    }

    /// Reads the annotation's value.
    ///
    /// # Errors
    ///
    /// The text does not parse.
    pub fn from_annotation(text: &str) -> Result<Self, UnreadableAnnotation> {
        let annotation = Self::ANNOTATION;
        serde_json::from_str(text).map_err(|source| UnreadableAnnotation { annotation, source })
    }

    /// The annotation's value. Equal placements give equal bytes.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

// === impl PlacedGpu ===

impl PlacedGpu {
    /// A whole GPU.
    pub fn whole(id: DeviceId) -> Self {
        Self { id, memory_mib: None, compute_milli: None }
    }

    /// A share of a GPU. Zero requests no amount.
    pub fn share(id: DeviceId, memory_mib: u32, compute_milli: u16) -> Self {
        Self {
            id,
            memory_mib: Some(memory_mib).filter(|mib| *mib > 0),
            compute_milli: Some(compute_milli).filter(|milli| *milli > 0),
        }
    }

    /// True if the pod holds the whole GPU.
    pub fn is_whole(&self) -> bool {
        self.memory_mib.is_none() && self.compute_milli.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_gpus_and_shares_are_read_as_they_were_written() {
        let id = |text: &str| text.parse::<DeviceId>().expect("an id");
        let share = PlacedGpu { memory_mib: Some(8192), ..PlacedGpu::whole(id("GPU-a")) };
        let placement = PodPlacement { devices: vec![share, PlacedGpu::whole(id("GPU-b"))] };
        let text = placement.to_annotation();
        assert_eq!(text, r#"{"devices":[{"id":"GPU-a","memoryMib":8192},{"id":"GPU-b"}]}"#);
        assert_eq!(PodPlacement::from_annotation(&text).expect("readable"), placement);
        assert!(!placement.devices[0].is_whole() && placement.devices[1].is_whole());
    }

    #[test]
    fn a_document_without_devices_or_with_a_negative_amount_is_unreadable() {
        for bad in ["", "{}", r#"{"devices":[{"id":"GPU-a","memoryMib":-1}]}"#] {
            assert!(PodPlacement::from_annotation(bad).is_err(), "{bad}");
        }
    }
}
