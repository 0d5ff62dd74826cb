//! What a script needs of a kubelet, embedded or real.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use windlass_kubelet_sim::Pod;

/// A node with a kubelet and nothing else on it.
pub(crate) trait Node {
    /// The kubelet's root: its sockets and checkpoints lie below.
    fn root(&self) -> &Path;

    /// What comes after a pod's name on this node.
    fn suffix(&self) -> &'static str;

    /// Hands a pod to the kubelet and waits until its containers run, or one cannot be started.
    async fn run(&mut self, pod: &Pod) -> Outcome;

    /// Waits until the container that could not be started runs.
    async fn recovers(&mut self, pod: &str) -> Outcome;

    /// Ends a container and waits until it runs again.
    async fn restart_container(&mut self, pod: &str, container: &str);

    /// Takes a pod away and waits until its containers have ended, if there is a kubelet to end them.
    async fn delete(&mut self, pod: &str);

    /// What a container found in its environment when it started first.
    async fn environment(&self, pod: &str, container: &str) -> BTreeMap<String, String>;

    /// `allocatedResourcesStatus` of a container, as `resource id health`, in order.
    async fn health(&self, pod: &str, container: &str) -> Vec<String>;

    /// Capacity and allocatable of the node, by resource.
    async fn counts(&mut self) -> BTreeMap<String, (u64, u64)>;

    /// Ends the kubelet's process, which leaves containers alone.
    async fn stop_kubelet(&mut self);

    /// Ends whatever the runtime runs, while there is no kubelet.
    async fn end_containers(&mut self);

    /// Begins the next process, and says what became of the pods.
    async fn start_kubelet(&mut self) -> BTreeMap<String, Outcome>;

    /// Where plugins bind their sockets.
    fn plugin_dir(&self) -> PathBuf {
        self.root().join("device-plugins")
    }
}

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    Rejected {
        reason: String,
        message: String,
    },
    /// A container cannot be started.
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
