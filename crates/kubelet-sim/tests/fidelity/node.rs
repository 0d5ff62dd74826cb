//! A script's view of a kubelet, embedded or real.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use windlass_kubelet_sim::Pod;

/// A node with a kubelet only.
pub(crate) trait Node {
    /// The kubelet's root: its sockets and checkpoints lie below.
    fn root(&self) -> &Path;

    /// Suffix of pod names on this node.
    fn suffix(&self) -> &'static str;

    /// Hands a pod to the kubelet and waits until its containers run, or one cannot be started.
    async fn run(&mut self, pod: &Pod) -> Outcome;

    /// Waits until the container that failed to start runs.
    async fn recovers(&mut self, pod: &str) -> Outcome;

    /// Ends a container and waits until it runs again.
    async fn restart_container(&mut self, pod: &str, container: &str);

    /// Deletes a pod and waits until its containers have ended, if there is a kubelet to end them.
    async fn delete(&mut self, pod: &str);

    /// Environment of a container's first start.
    async fn environment(&self, pod: &str, container: &str) -> BTreeMap<String, String>;

    /// `allocatedResourcesStatus` of a container, as `resource id health`, in order.
    async fn health(&self, pod: &str, container: &str) -> Vec<String>;

    /// Capacity and allocatable of the node, by resource.
    async fn counts(&mut self) -> BTreeMap<String, (u64, u64)>;

    /// Ends the kubelet's process, which leaves containers alone.
    async fn stop_kubelet(&mut self);

    /// Ends all running containers, while there is no kubelet.
    async fn end_containers(&mut self);

    /// Starts the next process, and returns the outcome of each pod.
    async fn start_kubelet(&mut self) -> BTreeMap<String, Outcome>;

    /// Folder of the plugins' sockets.
    fn plugin_dir(&self) -> PathBuf {
        self.root().join("device-plugins")
    }
}

/// Outcome of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    Rejected {
        reason: String,
        message: String,
    },
    /// A container fails to start.
    Waiting {
        container: String,
        reason: String,
        message: String,
    },
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
