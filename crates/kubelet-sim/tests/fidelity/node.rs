//! Interface of the comparison to a node with a kubelet, embedded or real.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use windlass_kubelet_sim::Pod;

/// A node with a kubelet, without an API server.
pub(crate) trait Node {
    /// The kubelet's root folder.
    fn root(&self) -> &Path;

    /// Suffix that this kubelet adds to the names of pods.
    fn pod_name_suffix(&self) -> &'static str;

    /// Passes a pod to the kubelet. Waits until all its containers run, the pod is rejected, or a
    /// container fails to start.
    async fn run(&mut self, pod: &Pod) -> Outcome;

    /// Waits until the pod no longer has a container that fails to start.
    async fn wait_for_recovery(&mut self, pod: &str) -> Outcome;

    /// Ends a container and waits until it runs again.
    async fn restart_container(&mut self, pod: &str, container: &str);

    /// Deletes a pod. If the kubelet runs, waits until the pod's containers have ended.
    async fn delete(&mut self, pod: &str);

    /// Environment variables of a container's first start.
    async fn environment(&self, pod: &str, container: &str) -> BTreeMap<String, String>;

    /// `allocatedResourcesStatus` of a container, as sorted lines `resource id health`.
    async fn health(&self, pod: &str, container: &str) -> Vec<String>;

    /// `(capacity, allocatable)` of the node, by resource.
    async fn counts(&mut self) -> BTreeMap<String, (u64, u64)>;

    /// Ends the kubelet's process. Containers continue.
    async fn stop_kubelet(&mut self);

    /// Ends all running containers, while the kubelet is stopped.
    async fn end_containers(&mut self);

    /// Starts the kubelet again. Returns the outcome of each pod, by name.
    async fn start_kubelet(&mut self) -> BTreeMap<String, Outcome>;

    /// Folder of the plugins' sockets.
    fn plugin_dir(&self) -> PathBuf {
        self.root().join("device-plugins")
    }
}

/// Outcome of a pod's admission and start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All app containers run.
    Running,
    /// The kubelet rejected the pod.
    Rejected { reason: String, message: String },
    /// A container fails to start.
    Waiting { container: String, reason: String, message: String },
}

// === impl Outcome ===

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Rejected { reason, message } => write!(f, "rejected, {reason}: {message}"),
            Self::Waiting { container, reason, message } => {
                write!(f, "{container} waits, {reason}: {message}")
            }
        }
    }
}
