//! Wire types of kube-scheduler's extender API, version 1 (`k8s.io/kube-scheduler/extender/v1`).
//!
//! The Go types have no JSON tags, so field names are spelled as in Go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// Request of filter and prioritize.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterArgs {
    /// The pod to place.
    pub(crate) pod: Pod,
    /// The candidates; `None` from a kube-scheduler without `nodeCacheCapable`, which sends whole Nodes.
    pub(crate) node_names: Option<Vec<String>>,
}

/// Answer of filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterResult {
    /// Candidates that can serve the pod.
    pub(crate) node_names: Vec<String>,
    /// Failed nodes on which preemption may help, each with its reason.
    pub(crate) failed_nodes: BTreeMap<String, String>,
    /// Failed nodes on which preemption would not help, each with its reason.
    pub(crate) failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Error of the whole request; empty on success.
    pub(crate) error: String,
}

/// Score of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority {
    /// The node's name.
    pub(crate) host: String,
    /// Score; larger is better.
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
    /// Number of `PodDisruptionBudget` violations by their eviction.
    #[serde(default, rename = "NumPDBViolations")]
    pub(crate) num_pdb_violations: i64,
}

/// A pod by its UID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetaPod {
    /// The pod's UID.
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
    /// The pod's UID.
    #[serde(rename = "PodUID")]
    pub(crate) pod_uid: String,
    /// The chosen node.
    pub(crate) node: String,
}

/// Answer of bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BindResult {
    /// Reason why the pod is not bound; empty on success.
    pub(crate) error: String,
}

// === impl FilterResult ===

impl FilterResult {
    /// A result with an error and no nodes.
    pub(super) fn error(reason: &str) -> Self {
        Self { error: reason.to_owned(), ..Self::default() }
    }
}
