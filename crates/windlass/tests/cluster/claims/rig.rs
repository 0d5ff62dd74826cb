//! A node of the cluster whose devices are for claims, and what must be true of it whatever happened.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

use super::{
    LET_GO, PREPARED,
    owners::{Owners, anyone, by_the_api, by_the_node},
};
use crate::cluster::{
    KUBECONFIG, NODE_STATUS, alone, eventually, has_cluster,
    node::{Agent, Node},
    pods::{kubectl, try_kubectl},
};

/// Fields drop in this order: the agent ends before its folder.
pub(super) struct Rig {
    pub(super) agent: Agent,
    pub(super) node: Node,
    /// Where the agent's metrics are.
    listen: SocketAddr,
    _alone: File,
}

// === impl Rig ===

impl Rig {
    /// A simulated machine, whose configuration is that of claims and what is added; `None` without a cluster.
    pub(super) fn start(machine: &str, config: &str) -> Option<Self> {
        let kubeconfig = has_cluster().then(|| std::env::var(KUBECONFIG).expect("checked"))?;
        Some(Self::start_as(machine, config, &kubeconfig))
    }

    /// The same with another account.
    pub(super) fn start_as(machine: &str, config: &str, kubeconfig: &str) -> Self {
        let alone = alone();
        let listen = free_address();
        let places = format!(
            "health: {{quietPeriod: 2s, probeInterval: 1s}}\nlisten: {listen}\n\
             cluster: {{kubeconfig: {kubeconfig}, nodeName: {}}}\n",
            node_name()
        );
        let node = Node::new(machine, &(places + config));
        Self { agent: node.agent(), node, listen, _alone: alone }
    }

    /// Waits until this agent serves the kubelet and has published so many devices, and nothing was dropped or
    /// refused of them. Slices of an agent that was before it may look the same.
    pub(super) async fn published(&self, devices: usize) {
        let ours = "--field-selector=spec.driver=windlass.dev";
        let path = "jsonpath={.items[*].spec.devices[*].name}";
        let names = ["get", "resourceslices", ours, "-o", path];
        let registered = "windlass_dra_driver_state{state=\"registered\"} 1";
        let standing = async || {
            let metrics = self.metrics().unwrap_or_default();
            let lines = metrics.lines().filter(|line| line.starts_with("windlass_dra_devices{"));
            let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
            let listed = kubectl(&names).split_whitespace().count();
            (metrics.contains(registered), counts.sum::<usize>(), listed)
        };
        eventually(NODE_STATUS, (true, devices, devices), standing).await;
        let metrics = self.metrics().expect("the agent answered");
        for line in ["windlass_dra_publish_errors_total 0", "windlass_dra_devices_left_out 0"] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }
        assert!(!metrics.contains("windlass_dra_dropped_fields{"), "{metrics}");
    }

    pub(super) fn metrics(&self) -> io::Result<String> {
        let (mut stream, mut page) = (TcpStream::connect(self.listen)?, String::new());
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n")?;
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Has the agent die as by the kernel's SIGKILL, and another begin.
    pub(super) fn replace_agent(&mut self) {
        self.agent.kill();
        self.agent = self.node.agent();
    }

    /// Waits until node and API server agree on who has what, and gives it.
    pub(super) async fn owners(&self) -> Owners {
        let mut agreed = Owners::new();
        eventually(NODE_STATUS, None, async || {
            let (node, api) = (by_the_node(&self.node), by_the_api());
            agreed.clone_from(&node);
            (node != api).then_some((node, api))
        })
        .await;
        agreed
    }

    /// Waits until nobody has anything: by the API server, by the node, in the agent's record, on the disk.
    pub(super) async fn nothing_is_held(&self) {
        eventually(LET_GO, Owners::new(), async || by_the_api()).await;
        eventually(LET_GO, Vec::new(), async || anyone(&self.node)).await;
        assert!(!self.node.state("claims.json").contains("\"ref\""), "claims are in the record");
        let documents = fs::read_dir("/var/run/cdi").expect("a folder").flatten();
        let of_claims = documents.filter(|it| it.file_name().to_string_lossy().contains("-claim-"));
        assert_eq!(of_claims.count(), 0, "documents of claims are left");
    }
}

/// Waits until a pod of a namespace runs.
pub(super) async fn until_it_runs(namespace: &str, pod: &str) {
    let status = ["-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.phase}"];
    eventually(PREPARED, "Running".to_owned(), async || kubectl(&status)).await;
}

/// Has the kubelet look at pods anew, which it does when they change: to have a claim prepared that could not be
/// before, it would wait for 60 to 90 seconds.
pub(super) fn look_again(pods: &[&str]) {
    let mark = format!("windlass-e2e/seen={:?}", std::time::Instant::now());
    let how = ["annotate", "--overwrite"];
    // Some may have gone by now.
    drop(try_kubectl(&[&how[..], &["pod"], pods, &[&mark]].concat()));
}

/// The name of the cluster's one node.
pub(super) fn node_name() -> String {
    kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])
}

/// An address that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.local_addr().expect("an address")
}
