//! Settings of an embedded kubelet: folders, release, topology, time limits.

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

/// Settings of a [`Kubelet`](crate::Kubelet). [`Config::new`] has the real kubelet's values; tests
/// shorten the time limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's root. Its folders `device-plugins`, `pod-resources`, `plugins_registry` and
    /// `plugins` hold the sockets.
    pub dir: PathBuf,
    /// Release to follow where releases differ.
    pub release: Release,
    /// Files that a start deletes in the plugin folder.
    pub cleanup: Cleanup,
    /// Use of topology hints.
    pub topology: TopologyPolicy,
    /// Scope of a merged hint: each container or the whole pod.
    pub topology_scope: TopologyScope,
    /// NUMA nodes of the machine. Hints ignore a plugin's other nodes.
    pub numa_nodes: Vec<i64>,
    /// Limit of dialling a registering plugin's socket (`dial` in devicemanager: 10 s).
    pub dial_timeout: Duration,
    /// Time that a stopped plugin's resource stays (`endpointStopGracePeriod`: 5 min).
    pub grace_period: Duration,
    /// Deadline of `PreStartContainer` (`KubeletPreStartContainerRPCTimeoutInSecs`: 30 s).
    pub pre_start_timeout: Duration,
    /// Calls per second on the pod resources socket (`podresources.DefaultQPS`: 100).
    pub pod_resources_qps: u32,
    /// Concurrent calls on the pod resources socket (`podresources.DefaultBurstTokens`: 10).
    pub pod_resources_burst: u32,
    /// Time limits of the DRA manager.
    pub dra: DraLimits,
}

/// Kubelet releases that treat plugins differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Plugins are keyed by resource. The end of any stream of a resource disconnects the plugin
    /// that registered last, even if another plugin's stream ended.
    #[default]
    UpTo1_36,
    /// Plugins are keyed by resource and socket (Kubernetes pull request 135437, merged). The end
    /// of a stream concerns its own plugin.
    ///
    /// Three details are deduced, not read in that release. The newest of two sockets gets the
    /// calls. Only the end of its stream makes devices unhealthy. A second registration from the
    /// same socket replaces the first one, as up to 1.36. Proposed changes would refuse such a
    /// registration while the first stream lives; this variant does not follow them.
    From1_37,
}

/// Files that a starting kubelet deletes in the plugin folder (`CleanupPluginDirectory` in
/// pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go). Folders stay in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleanup {
    /// Sockets: 1.31.0, and from 1.33 on (Kubernetes pull requests 123819, 130187).
    #[default]
    Sockets,
    /// All files but the kubelet's own checkpoint: 1.20 to 1.30 (97576), and 1.31.1 to 1.32 (126976).
    AllFiles,
}

// === impl Config ===

impl Config {
    /// The real kubelet's settings, below another root.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            release: Release::default(),
            cleanup: Cleanup::default(),
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

    /// Folder of the registration sockets of DRA drivers.
    pub fn registry_dir(&self) -> PathBuf {
        self.dir.join(REGISTRY_DIR)
    }

    /// Folder with one subfolder for each DRA driver.
    pub fn drivers_dir(&self) -> PathBuf {
        self.dir.join(PLUGINS_DIR)
    }

    /// Path of the pod resources socket.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.dir.join(podresources::DIR).join(podresources::SOCKET)
    }
}
