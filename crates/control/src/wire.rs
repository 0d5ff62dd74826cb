//! Requests and answers of kube-scheduler's extender, version 1 (`k8s.io/kube-scheduler/extender/v1`).
//!
//! The Go types have no JSON names, so that fields are spelt as in Go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// Request of filter and prioritize.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterArgs {
    /// The pod to place.
    pub(crate) pod: Pod,
    /// The candidates; `None` from a scheduler that was told to send whole nodes.
    pub(crate) node_names: Option<Vec<String>>,
}

/// Answer of filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterResult {
    /// Candidates that can serve the pod.
    pub(crate) node_names: Vec<String>,
    /// The others, with the reason of each.
    pub(crate) failed_nodes: BTreeMap<String, String>,
    /// Those of them where the departure of other pods would not help.
    pub(crate) failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Reason why there is no answer; empty with one.
    pub(crate) error: String,
}

/// Score of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority {
    /// The node's name.
    pub(crate) host: String,
    /// The larger, the better.
    pub(crate) score: i64,
}

/// Request of preempt.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PreemptArgs {
    /// The pod to place.
    pub(crate) pod: Pod,
    /// Pods that kube-scheduler would evict, by node.
    #[serde(default)]
    pub(crate) node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Answer of preempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PreemptResult {
    /// Pods to evict, by node.
    pub(crate) node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Pods to evict from one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MetaVictims {
    /// The pods.
    #[serde(default)]
    pub(crate) pods: Vec<MetaPod>,
    /// Disruption budgets that their eviction violates.
    #[serde(default, rename = "NumPDBViolations")]
    pub(crate) num_pdb_violations: i64,
}

/// A pod by its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetaPod {
    /// The identity.
    #[serde(rename = "UID")]
    pub(crate) uid: String,
}

/// Request of bind.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BindArgs {
    /// The pod's name.
    pub(crate) pod_name: String,
    /// The pod's namespace.
    pub(crate) pod_namespace: String,
    /// The pod's identity.
    #[serde(rename = "PodUID")]
    pub(crate) pod_uid: String,
    /// The chosen node.
    pub(crate) node: String,
}

/// Answer of bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BindResult {
    /// Reason why the pod is not bound; empty when it is.
    pub(crate) error: String,
}

// === impl FilterResult ===

impl FilterResult {
    /// No answer, for a reason.
    pub(super) fn error(reason: &str) -> Self {
        Self { error: reason.to_owned(), ..Self::default() }
    }
}
