//! The file's keys for labels: where the node's labels are written.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LabelOutput, LabelPolicy, Remark};

/// Where the node's labels are written, and what goes into them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct LabelsEntry {
    /// Where to; left out, nowhere, or to `file` if that is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<OutputEntry>,
    /// With `to: file`, the file; left out, one that node-feature-discovery reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Whether the time of writing is a label too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timestamp: bool,
    /// A file that names the machine; left out, the DMI table's product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_type_file: Option<PathBuf>,
}

/// Where labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OutputEntry {
    /// Nowhere.
    None,
    /// A file that node-feature-discovery reads.
    File,
    /// A `NodeFeature` object, which node-feature-discovery turns into labels.
    NodeFeature,
    /// The Node object itself.
    Node,
}

/// Where node-feature-discovery looks for files (its default, and gpu-feature-discovery's).
const FEATURE_FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/windlass";

// === impl LabelsEntry ===

impl LabelsEntry {
    pub(super) fn into_policy(self, line: u64, wrong: &mut Vec<Remark>) -> LabelPolicy {
        if self.file.is_some() && self.to.is_some_and(|to| to != OutputEntry::File) {
            let problem = "labels.file is for `to: file` only: change one, or leave file out";
            wrong.push(Remark::new(line, problem));
        }
        let output = match (self.to, self.file) {
            (None | Some(OutputEntry::File), Some(path)) => LabelOutput::File(path),
            (Some(OutputEntry::File), None) => LabelOutput::File(FEATURE_FILE.into()),
            (Some(OutputEntry::NodeFeature), _) => LabelOutput::NodeFeature,
            (Some(OutputEntry::Node), _) => LabelOutput::Node,
            (None | Some(OutputEntry::None), _) => LabelOutput::None,
        };
        let Self { timestamp, machine_type_file, .. } = self;
        LabelPolicy { output, timestamp, machine_type_file }
    }

    pub(super) fn of(policy: &LabelPolicy) -> Option<Self> {
        let LabelPolicy { output, timestamp, machine_type_file } = policy.clone();
        let (to, file) = match output {
            LabelOutput::None => (None, None),
            LabelOutput::File(path) => (Some(OutputEntry::File), Some(path)),
            LabelOutput::NodeFeature => (Some(OutputEntry::NodeFeature), None),
            LabelOutput::Node => (Some(OutputEntry::Node), None),
        };
        (*policy != LabelPolicy::default()).then_some(Self {
            to,
            file,
            timestamp,
            machine_type_file,
        })
    }
}
