//! Labels of the node: their destination and content.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Labels of the node: their destination and content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelPolicy {
    /// Destination of the labels.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub output: LabelOutput,
    /// Adds the time of writing as a label, as gpu-feature-discovery does.
    pub timestamp: bool,
    /// A file with the name of the machine. Default: the product name of the DMI table.
    pub machine_type_file: Option<PathBuf>,
    /// Writes the node's GPUs as the annotation `windlass.dev/devices` of the Node object, for the cluster half.
    pub devices: bool,
}

/// Destination of the labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OutputKeys", into = "OutputKeys")]
pub enum LabelOutput {
    /// No labels are written.
    #[default]
    None,
    /// A file that node-feature-discovery reads.
    File(PathBuf),
    /// A `NodeFeature` object, which node-feature-discovery turns into labels.
    NodeFeature,
    /// The Node object itself.
    Node,
}

/// The keys of a destination.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct OutputKeys {
    /// Destination. Default: none, or `file` if `file` is present.
    to: Option<OutputKind>,
    /// With `to: file`, the path of the file. Default: a file that node-feature-discovery reads.
    file: Option<PathBuf>,
}

/// Kind of destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OutputKind {
    /// No labels are written.
    None,
    /// A file that node-feature-discovery reads.
    File,
    /// A `NodeFeature` object, which node-feature-discovery turns into labels.
    NodeFeature,
    /// The Node object itself.
    Node,
}

/// Default file, in the folder that node-feature-discovery reads by default, like that of gpu-feature-discovery.
const FEATURE_FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/windlass";

// === impl LabelPolicy ===

impl LabelPolicy {
    pub(crate) fn deserialize_all<'de, D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        let (policy, output) = Deserialize::deserialize(deserializer)?;
        Ok(Self { output, ..policy })
    }
}

// === impl LabelOutput ===

impl TryFrom<OutputKeys> for LabelOutput {
    type Error = &'static str;

    fn try_from(keys: OutputKeys) -> Result<Self, Self::Error> {
        Ok(match (keys.to, keys.file) {
            (None | Some(OutputKind::File), Some(path)) => Self::File(path),
            (Some(_), Some(_)) => {
                return Err("labels.file is for `to: file` only: change one, or leave file out");
            }
            (Some(OutputKind::File), None) => Self::File(FEATURE_FILE.into()),
            (Some(OutputKind::NodeFeature), None) => Self::NodeFeature,
            (Some(OutputKind::Node), None) => Self::Node,
            (None | Some(OutputKind::None), None) => Self::None,
        })
    }
}

impl From<LabelOutput> for OutputKeys {
    fn from(output: LabelOutput) -> Self {
        let (to, file) = match output {
            LabelOutput::None => (None, None),
            LabelOutput::File(path) => (Some(OutputKind::File), Some(path)),
            LabelOutput::NodeFeature => (Some(OutputKind::NodeFeature), None),
            LabelOutput::Node => (Some(OutputKind::Node), None),
        };
        Self { to, file }
    }
}
