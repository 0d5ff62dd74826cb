//! Test rig for claims: an agent on the cluster's node, with a simulated machine, and checks of its state.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use windlass_conformance::process::free_address;

use super::{
    PREPARE_LIMIT, RELEASE_LIMIT,
    owners::{Owners, api_owners, holders, node_owners},
};
use crate::cluster::{
    KUBECONFIG, NODE_STATUS_LIMIT, eventually, has_cluster,
    node::{Agent, Node},
    plugin_folder_lock,
    pods::{kubectl, try_kubectl},
};

/// Agent and simulated machine. Fields drop in this order: the agent ends before its folder is removed.
pub(super) struct Rig {
    pub(super) agent: Agent,
    pub(super) node: Node,
    /// Address of the agent's metrics.
    metrics_address: SocketAddr,
    _lock: File,
}

// === impl Rig ===

impl Rig {
    /// Starts an agent on a simulated machine, with `config` added to the settings that claims need. `None` without a
    /// cluster.
    pub(super) fn start(machine: &str, config: &str) -> Option<Self> {
        let kubeconfig = has_cluster().then(|| std::env::var(KUBECONFIG).expect("checked"))?;
        Some(Self::start_as(machine, config, &kubeconfig))
    }

    /// Starts an agent with another kubeconfig.
    pub(super) fn start_as(machine: &str, config: &str, kubeconfig: &str) -> Self {
        let lock = plugin_folder_lock();
        let metrics_address = free_address().expect("a free port");
        let base = format!(
            "health: {{quietPeriod: 2s, probeInterval: 1s}}\nlisten: {metrics_address}\n\
             cluster: {{kubeconfig: {kubeconfig}, nodeName: {}}}\n",
            node_name()
        );
        let node = Node::new(machine, &(base + config));
        Self { agent: node.start_agent(), node, metrics_address, _lock: lock }
    }

    /// Waits until this agent serves the kubelet and has published this number of devices. Fails if the agent left a
    /// device out, or the API server refused a slice or dropped a field. The agent's metrics are compared too, because
    /// slices of a previous agent may look the same.
    pub(super) async fn wait_for_published(&self, devices: usize) {
        let selector = "--field-selector=spec.driver=windlass.dev";
        let path = "jsonpath={.items[*].spec.devices[*].name}";
        let query = ["get", "resourceslices", selector, "-o", path];
        let registered = "windlass_dra_driver_state{state=\"registered\"} 1";
        let state = async || {
            let metrics = self.metrics().unwrap_or_default();
            let lines = metrics.lines().filter(|line| line.starts_with("windlass_dra_devices{"));
            let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
            let listed_count = kubectl(&query).split_whitespace().count();
            (metrics.contains(registered), counts.sum::<usize>(), listed_count)
        };
        eventually(NODE_STATUS_LIMIT, (true, devices, devices), state).await;
        let metrics = self.metrics().expect("the agent answered");
        for line in ["windlass_dra_publish_errors_total 0", "windlass_dra_devices_left_out 0"] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }
        assert!(!metrics.contains("windlass_dra_dropped_fields{"), "{metrics}");
    }

    pub(super) fn metrics(&self) -> io::Result<String> {
        let (mut stream, mut page) = (TcpStream::connect(self.metrics_address)?, String::new());
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n")?;
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Kills the agent with SIGKILL, and starts another.
    pub(super) fn replace_agent(&mut self) {
        self.agent.kill();
        self.agent = self.node.start_agent();
    }

    /// Waits until node and API server report the same owners, and returns them.
    pub(super) async fn owners(&self) -> Owners {
        let mut owners = Owners::new();
        eventually(NODE_STATUS_LIMIT, None, async || {
            let (node, api) = (node_owners(&self.node), api_owners());
            owners.clone_from(&node);
            (node != api).then_some((node, api))
        })
        .await;
        owners
    }

    /// Waits until no device has an owner: in the API server, on the node, in the agent's record, and in CDI documents.
    pub(super) async fn wait_for_no_owners(&self) {
        eventually(RELEASE_LIMIT, Owners::new(), async || api_owners()).await;
        eventually(RELEASE_LIMIT, Vec::new(), async || holders(&self.node)).await;
        assert!(!self.node.state("claims.json").contains("\"ref\""), "claims are in the record");
        let documents = fs::read_dir("/var/run/cdi").expect("a folder").flatten();
        let of_claims =
            documents.filter(|document| document.file_name().to_string_lossy().contains("-claim-"));
        assert_eq!(of_claims.count(), 0, "CDI documents of claims still exist");
    }
}

/// Waits until a pod of a namespace runs.
pub(super) async fn wait_for_running(namespace: &str, pod: &str) {
    let status = ["-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.phase}"];
    eventually(PREPARE_LIMIT, "Running".to_owned(), async || kubectl(&status)).await;
}

/// Annotates pods, so that the kubelet syncs them at once. Otherwise it retries a failed preparation after 60 to 90
/// seconds.
pub(super) fn trigger_sync(pods: &[&str]) {
    let annotation = format!("windlass-e2e/seen={:?}", std::time::Instant::now());
    let command = ["annotate", "--overwrite"];
    // Some pods may be gone.
    drop(try_kubectl(&[&command[..], &["pod"], pods, &[&annotation]].concat()));
}

/// Name of the cluster's only node.
pub(super) fn node_name() -> String {
    kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])
}
