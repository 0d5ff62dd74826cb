//! A real kubelet as a node: static pods, its own containerd, and no API server.
//!
//! The test needs root, `containerd`, `ctr`, `runc`, a static `/bin/busybox`, `unshare`, `setpriv`
//! and `ip`. The node runs in its own mount, network and process namespaces, so it does not affect a
//! cluster on this machine. Mounts, processes and containers end with those namespaces.

mod manifest;
mod namespace;
mod status;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use windlass_kubelet_sim::{Container, Pod};

pub(crate) use self::namespace::{KUBELET, RunMode, run_child, run_mode};
use super::{
    node::{Node, Outcome},
    observation,
    play::STEP_TIMEOUT,
};

/// The kubelet's default root folder.
const ROOT: &str = "/var/lib/kubelet";

/// Folder of the test's own files.
const DIR: &str = "/var/lib/fidelity";

/// Minimal configuration of the kubelet. All cgroups are below one that replaces `CGROUP`.
const CONFIG: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /CGROUP
enforceNodeAllocatable: []
evictionHard: {memory.available: "1Mi", nodefs.available: "0%", imagefs.available: "0%"}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: ""
staticPodPath: /var/lib/fidelity/pods
podLogsDir: /var/lib/fidelity/logs
address: 127.0.0.1
readOnlyPort: 10255
healthzPort: 0
"#;

/// A kubelet's process, and the pods on its node.
pub(crate) struct Real {
    /// `None` while the kubelet is stopped.
    process: Option<Child>,
    /// Pods by name.
    pods: BTreeMap<String, Pod>,
}

// === impl Real ===

impl Real {
    /// Starts a kubelet on a node without files of an earlier kubelet.
    pub(crate) async fn start(cgroup: &str) -> Self {
        let config = CONFIG.replace("CGROUP", cgroup);
        fs::write(format!("{DIR}/kubelet.yaml"), config).expect("written");
        // This value exists before the wait, so that a panic drops it and prints the kubelet's log.
        let node = Self { process: Some(spawn()), pods: BTreeMap::new() };
        tokio::time::timeout(STEP_TIMEOUT, wait_for_sockets())
            .await
            .expect("a kubelet that serves");
        node
    }

    /// Waits until the pod has an outcome.
    async fn outcome(&self, pod: &Pod) -> Outcome {
        loop {
            if let Some(outcome) = status::of(&pod.uid).await.and_then(|pod| pod.outcome()) {
                return outcome;
            }
            pause().await;
        }
    }

    fn pod(&self, name: &str) -> &Pod {
        self.pods.get(name).expect("an earlier step runs the pod")
    }
}

impl Node for Real {
    fn root(&self) -> &Path {
        Path::new(ROOT)
    }

    /// The kubelet adds the node's name to the names of static pods.
    fn pod_name_suffix(&self) -> &'static str {
        "-node"
    }

    async fn run(&mut self, pod: &Pod) -> Outcome {
        self.pods.insert(pod.name.clone(), pod.clone());
        let hidden_path = format!("{DIR}/pods/.{}", pod.name);
        fs::write(&hidden_path, manifest::of(pod).to_string()).expect("written");
        fs::rename(hidden_path, manifest_of(&pod.name)).expect("renamed");
        self.outcome(pod).await
    }

    async fn wait_for_recovery(&mut self, pod: &str) -> Outcome {
        loop {
            match self.outcome(self.pod(pod)).await {
                Outcome::Waiting { .. } => pause().await,
                outcome => return outcome,
            }
        }
    }

    async fn restart_container(&mut self, pod: &str, container: &str) {
        let uid = &self.pod(pod).uid;
        let end_file = format!("{DIR}/ends/{uid}.{container}");
        fs::write(&end_file, "").expect("written");
        while !status::of(uid).await.is_some_and(|pod| pod.is_restarted(container)) {
            pause().await;
        }
    }

    async fn delete(&mut self, pod: &str) {
        let pod = self.pods.remove(pod).expect("an earlier step runs the pod");
        fs::remove_file(manifest_of(&pod.name)).expect("the manifest exists");
        // The kubelet removes the pod from its list at once, and the pod's folder after the end of the
        // containers.
        while self.process.is_some()
            && (status::of(&pod.uid).await.is_some()
                || Path::new(ROOT).join("pods").join(&pod.uid).exists())
        {
            pause().await;
        }
    }

    async fn environment(&self, pod: &str, container: &str) -> BTreeMap<String, String> {
        let Pod { name, uid, namespace, .. } = self.pod(pod);
        let log = format!(
            "{DIR}/logs/{namespace}_{name}{}_{uid}/{container}/0.log",
            self.pod_name_suffix()
        );
        loop {
            let log = fs::read_to_string(&log).unwrap_or_default();
            // Each line of the log begins with a time, the stream, and a mark for partial lines.
            let lines = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
            let variables = lines.filter_map(|line| line.split_once('='));
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let variables = variables.collect::<BTreeMap<_, _>>();
            if variables.contains_key("END") {
                return variables;
            }
            pause().await;
        }
    }

    async fn health(&self, pod: &str, container: &str) -> Vec<String> {
        let status = status::of(&self.pod(pod).uid).await;
        status.map(|pod| pod.health(container)).unwrap_or_default()
    }

    /// Without an API server, the kubelet computes its node's status when a pod is added, and logs the
    /// counts. So this adds a pod.
    async fn counts(&mut self) -> BTreeMap<String, (u64, u64)> {
        let before = fs::read(log()).expect("a log").len();
        let probe = Pod::new("probe").container(Container::new("c"));
        self.run(&probe).await;
        self.delete("probe").await;
        let log = fs::read_to_string(log()).expect("a log");
        status::counts(&log[before..])
    }

    async fn stop_kubelet(&mut self) {
        let mut process = self.process.take().expect("the kubelet runs");
        process.kill().expect("the kubelet runs");
        process.wait().expect("the kubelet ends");
    }

    async fn end_containers(&mut self) {
        for task in tasks(&["-q"]).lines() {
            ctr(&["tasks", "kill", "-s", "SIGKILL", task]);
        }
        while tasks(&[]).contains("RUNNING") {
            pause().await;
        }
    }

    async fn start_kubelet(&mut self) -> BTreeMap<String, Outcome> {
        self.process = Some(spawn());
        wait_for_sockets().await;
        let mut outcomes = BTreeMap::new();
        for (name, pod) in &self.pods {
            let outcome = self.outcome(pod).await;
            // The kubelet lists a rejected pod until it has cleaned up the pod's former containers.
            while matches!(outcome, Outcome::Rejected { .. })
                && observation::is_listed(self, name).await
            {
                pause().await;
            }
            outcomes.insert(name.clone(), outcome);
        }
        outcomes
    }
}

impl Drop for Real {
    #[expect(clippy::print_stderr, reason = "the kubelet's log explains the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(log()).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(30).collect();
            eprintln!("the kubelet's last log lines, newest first:\n{}", lines.join("\n"));
        }
    }
}

fn spawn() -> Child {
    let log = fs::File::options().append(true).create(true).open(log()).expect("a log");
    let mut command = Command::new(std::env::var_os(KUBELET).expect("the run mode needs it"));
    command.args(["--config", &format!("{DIR}/kubelet.yaml")]);
    command.args(["--hostname-override=node", "--node-ip=127.0.0.1", "-v=4"]);
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    command.spawn().expect("a kubelet")
}

/// Waits until the kubelet listens on its registration and pod resources sockets.
async fn wait_for_sockets() {
    let sockets = ["device-plugins/kubelet.sock", "pod-resources/kubelet.sock"];
    for socket in sockets.map(|socket| Path::new(ROOT).join(socket)) {
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            pause().await;
        }
    }
}

/// Output of `ctr tasks ls`.
fn tasks(options: &[&str]) -> String {
    ctr(&[&["tasks", "ls"], options].concat())
}

fn ctr(arguments: &[&str]) -> String {
    let output = Command::new("ctr").args(["-n", "k8s.io"]).args(arguments).output();
    String::from_utf8(output.expect("ctr runs").stdout).expect("UTF-8 text")
}

fn log() -> String {
    format!("{DIR}/kubelet.log")
}

fn manifest_of(pod: &str) -> String {
    format!("{DIR}/pods/{pod}.json")
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
