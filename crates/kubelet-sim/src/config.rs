//! Configuration of an embedded kubelet: folders, release, topology, time limits.

use std::{path::PathBuf, time::Duration};

use windlass_kubelet_api::{
    deviceplugin::{KUBELET_SOCKET, PLUGIN_DIR},
    dra::PLUGINS_DIR,
    pluginregistration::REGISTRY_DIR,
    podresources,
};

use crate::{
    dra::DraLimits,
    topology::{TopologyPolicy, TopologyScope},
};

/// Configuration of a [`Kubelet`](crate::Kubelet). [`Config::new`] has the real kubelet's values;
/// tests shorten the time limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's root folder. Its subfolders `device-plugins`, `pod-resources`,
    /// `plugins_registry` and `plugins` contain the sockets.
    pub dir: PathBuf,
    /// Release to follow where the behaviour of releases differs.
    pub release: Release,
    /// Files that a start deletes in the plugin folder.
    pub plugin_dir_cleanup: PluginDirCleanup,
    /// Topology manager policy.
    pub topology: TopologyPolicy,
    /// Topology manager scope: align each container, or the whole pod.
    pub topology_scope: TopologyScope,
    /// NUMA nodes of the machine. Topology hints ignore any other node that a plugin lists.
    pub numa_nodes: Vec<i64>,
    /// Deadline to connect to a registering plugin's socket (`dial` in devicemanager: 10 s).
    pub dial_timeout: Duration,
    /// Time between the loss of a plugin and the removal of its devices from the node's status
    /// (`endpointStopGracePeriod`: 5 min).
    pub grace_period: Duration,
    /// Deadline of `PreStartContainer` (`KubeletPreStartContainerRPCTimeoutInSecs`: 30 s).
    pub pre_start_timeout: Duration,
    /// Rate limit of calls per second on the pod resources socket (`podresources.DefaultQPS`: 100).
    pub pod_resources_qps: u32,
    /// Burst of that rate limit: calls that may follow each other at once
    /// (`podresources.DefaultBurstTokens`: 10).
    pub pod_resources_burst: u32,
    /// Time limits of the DRA manager.
    pub dra: DraLimits,
}

/// Kubelet releases that differ in their treatment of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The kubelet keys plugins by resource. At the end of any `ListAndWatch` stream of a resource,
    /// it disconnects the plugin that registered last, even if another plugin's stream ended.
    #[default]
    UpTo1_36,
    /// The kubelet keys plugins by resource and socket (Kubernetes pull request 135437, merged). The
    /// end of a stream disconnects only its own plugin.
    ///
    /// Three details are deduced from the pull request, not read in the release:
    ///
    /// - Of two sockets for a resource, the newest gets the calls.
    /// - Only the end of the newest socket's stream makes devices unhealthy.
    /// - A second registration from the same socket replaces the first one, as up to 1.36. Proposed
    ///   changes would refuse it while the first stream is open; this variant does not follow them.
    From1_37,
}

/// Files that a starting kubelet deletes in the plugin folder (`CleanupPluginDirectory` in
/// `pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go`). Subfolders stay in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginDirCleanup {
    /// Sockets only: 1.31.0, and from 1.33 on (Kubernetes pull requests 123819, 130187).
    #[default]
    Sockets,
    /// All files except the kubelet's own checkpoint: 1.20 to 1.30 (pull request 97576), and 1.31.1 to
    /// 1.32 (pull request 126976).
    AllFiles,
}

// === impl Config ===

impl Config {
    /// The real kubelet's defaults, with `dir` as the root folder and one NUMA node.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            release: Release::default(),
            plugin_dir_cleanup: PluginDirCleanup::default(),
            topology: TopologyPolicy::default(),
            topology_scope: TopologyScope::default(),
            numa_nodes: vec![0],
            dial_timeout: Duration::from_secs(10),
            grace_period: Duration::from_secs(5 * 60),
            pre_start_timeout: Duration::from_secs(30),
            pod_resources_qps: 100,
            pod_resources_burst: 10,
            dra: DraLimits::default(),
        }
    }

    /// Folder of plugin sockets, the registration socket and the checkpoint.
    pub fn plugin_dir(&self) -> PathBuf {
        self.dir.join(PLUGIN_DIR)
    }

    /// Path of the registration socket.
    pub fn registration_socket(&self) -> PathBuf {
        self.plugin_dir().join(KUBELET_SOCKET)
    }

    /// Folder of the DRA drivers' registration sockets.
    pub fn registry_dir(&self) -> PathBuf {
        self.dir.join(REGISTRY_DIR)
    }

    /// Folder with one subfolder for each DRA driver.
    pub fn drivers_dir(&self) -> PathBuf {
        self.dir.join(PLUGINS_DIR)
    }

    /// Path of the pod resources socket.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.dir.join(podresources::SOCKET_DIR).join(podresources::SOCKET_NAME)
    }
}
