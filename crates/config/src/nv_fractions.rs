//! Enforcement of GPU fractions that KAI's scheduler writes as annotations.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Enforcement of GPU fractions that KAI's scheduler writes as annotations of pods, in place of `fractiond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NvFractions {
    /// True if the agent is a plugin of the container runtime (NRI), adjusts containers with fractions, and writes the
    /// node condition that KAI waits for.
    pub enabled: bool,
    /// Socket of the container runtime for NRI plugins.
    pub socket: PathBuf,
    /// Prefix of the annotations' keys, before the name of the container.
    pub annotation_prefix: String,
}

// === impl NvFractions ===

impl NvFractions {
    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if !self.socket.is_absolute() {
            errors.push("socket: write the whole path of the NRI socket".to_owned());
        }
        let is_domain =
            self.annotation_prefix.split_once('/').is_some_and(|(domain, _)| !domain.is_empty());
        if !is_domain {
            errors.push(
                "annotationPrefix: write a domain and a slash, as in nvidia.com/container."
                    .to_owned(),
            );
        }
        errors
    }
}

impl Default for NvFractions {
    fn default() -> Self {
        Self {
            enabled: false,
            // The default of containerd and CRI-O.
            socket: "/var/run/nri/nri.sock".into(),
            // The default of KAI's scheduler.
            annotation_prefix: "nvidia.com/container.".to_owned(),
        }
    }
}
