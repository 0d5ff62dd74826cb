//! The agent on a real Kubernetes node, with simulated GPUs.
//!
//! Runs when `WINDLASS_E2E_KUBECONFIG` names a cluster whose kubelet runs on this machine in
//! `/var/lib/kubelet`, with an image `docker.io/local/app:1` that prints its environment and `/dev`
//! and sleeps; needs root and `kubectl`. `WINDLASS_E2E_RESTART_KUBELET` names the command that
//! restarts the kubelet; without it that part is left out, and said so.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use windlass_kubelet_api::{
    podresources::{
        AllocatableResourcesRequest, ListPodResourcesRequest,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::SocketPath,
};

const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";
const RESTART: &str = "WINDLASS_E2E_RESTART_KUBELET";
const GPU: &str = "nvidia.com/gpu";
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// The kubelet tells the API server of its node every ten seconds.
const NODE_STATUS: Duration = Duration::from_secs(45);

/// How soon the kubelet itself must know of a fault.
const FAULT_IS_KNOWN: Duration = Duration::from_secs(1);

/// Pods that a test made, by name; deleted when dropped.
struct Pods(Vec<String>);

/// The agent; killed when dropped.
struct Agent(Child);

/// What each pod holds.
type Holdings = BTreeMap<String, Vec<String>>;

fn kubectl(arguments: &[&str]) -> String {
    let output = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(env::var_os(KUBECONFIG).expect("checked"))
        .args(arguments)
        .output()
        .expect("kubectl is on the PATH");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asks until the answer is right; the API server is not watched here.
async fn eventually<T: PartialEq + std::fmt::Debug>(
    limit: Duration,
    expected: T,
    mut ask: impl AsyncFnMut() -> T,
) -> Duration {
    let begun = Instant::now();
    loop {
        let answer = ask().await;
        if answer == expected {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < limit, "{answer:?} instead of {expected:?} after {limit:?}");
        // Twenty times a second stays below the kubelet's limit of a hundred questions.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A client of the kubelet's; `None` while it restarts.
async fn pod_resources() -> Option<PodResourcesListerClient<tonic::transport::Channel>> {
    let socket = SocketPath::new(POD_RESOURCES).expect("short");
    socket.dial().await.ok().map(PodResourcesListerClient::new)
}

/// Devices that the kubelet would hand out or has handed out.
async fn allocatable() -> Option<usize> {
    let request = AllocatableResourcesRequest {};
    let answer = pod_resources().await?.get_allocatable_resources(request).await.ok()?;
    let devices = answer.into_inner().devices;
    Some(devices.iter().filter(|device| device.resource_name == GPU).count())
}

async fn holdings() -> Option<Holdings> {
    let answer = pod_resources().await?.list(ListPodResourcesRequest {}).await.ok()?;
    let mut holdings = Holdings::new();
    for pod in answer.into_inner().pod_resources {
        let devices = pod.containers.into_iter().flat_map(|container| container.devices);
        let mut ids: Vec<_> = devices.flat_map(|device| device.device_ids).collect();
        ids.sort();
        if !ids.is_empty() {
            holdings.insert(pod.name, ids);
        }
    }
    Some(holdings)
}

fn node_status(field: &str) -> String {
    kubectl(&[
        "get",
        "nodes",
        "-o",
        &format!("jsonpath={{.items[0].status.{field}.nvidia\\.com/gpu}}"),
    ])
}

fn windlass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(arguments);
    command
}

fn fault(machine: &Path, fault: &str) {
    let done = windlass(&["machine", "fault", &machine.display().to_string(), fault]).output();
    assert!(done.expect("windlass runs").status.success(), "{fault}");
}

// === impl Agent ===

impl Agent {
    fn start(folder: &TempDir) -> Self {
        let path = |name: &str| folder.path().join(name).display().to_string();
        let host = path("machine/host");
        let log = fs::File::options().create(true).append(true).open(folder.path().join("log"));
        let child = windlass(&["node", "--host-root", &host, "--host-root-on-node", &host])
            .args(["--nvml-library", &path("machine/libnvidia-ml.so.1")])
            .args(["--config", &path("windlass.yaml")])
            .stderr(log.expect("a log"))
            .spawn();
        Self(child.expect("windlass runs"))
    }

    /// As the kernel's SIGKILL: nothing is cleaned up.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Pods ===

impl Pods {
    fn run(&mut self, name: &str, gpus: usize) {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
             automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
             containers:\n  - name: main\n    image: docker.io/local/app:1\n    \
             imagePullPolicy: Never\n    resources: {{limits: {{{GPU}: {gpus}}}}}\n"
        );
        let mut child = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(env::var_os(KUBECONFIG).expect("checked"))
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl is on the PATH");
        let mut input = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut input, manifest.as_bytes()).expect("written");
        drop(input);
        assert!(child.wait().expect("a child").success());
        self.0.push(name.to_owned());
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let names = self.0.iter().map(String::as_str);
        let words = ["delete", "pod", "--now", "--ignore-not-found"].into_iter().chain(names);
        kubectl(&words.collect::<Vec<_>>());
    }
}

fn prepare() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = folder.path().join("machine").display().to_string();
    assert!(windlass(&["machine", "create", &machine]).output().expect("runs").status.success());
    let config = "health: {quietPeriod: 20s, probeInterval: 1s}\n";
    fs::write(folder.path().join("windlass.yaml"), config).expect("written");
    folder
}

#[tokio::test]
async fn a_real_kubelet_runs_pods_through_restarts_crashes_and_faults() {
    if env::var_os(KUBECONFIG).is_none() {
        eprintln!("SKIPPED: set {KUBECONFIG} to run this on a real cluster");
        return;
    }
    let folder = prepare();
    let machine = folder.path().join("machine");
    let mut agent = Agent::start(&folder);
    eventually(NODE_STATUS, "8".to_owned(), async || node_status("capacity")).await;
    let mut pods = Pods(Vec::new());
    run_pods(&mut pods).await;
    let held = holdings().await;
    let count = held.iter().flat_map(Holdings::values).map(Vec::len).sum::<usize>();
    assert_eq!(count, 7, "{held:?}");

    if let Some(restart) = env::var_os(RESTART) {
        assert!(Command::new(restart).status().expect("the command runs").success());
        eventually(NODE_STATUS, Some(8), async || allocatable().await).await;
        eventually(NODE_STATUS, held.clone(), async || holdings().await).await;
    } else {
        eprintln!("LEFT OUT: set {RESTART} to restart the kubelet as well");
    }

    agent.kill();
    eventually(NODE_STATUS, Some(0), async || allocatable().await).await;
    agent = Agent::start(&folder);
    eventually(NODE_STATUS, Some(8), async || allocatable().await).await;
    assert_eq!(holdings().await, held, "after the agent's death");

    fault(&machine, "xid:79@7");
    let known = eventually(FAULT_IS_KNOWN, Some(7), async || allocatable().await).await;
    eprintln!("the kubelet knew of the fault after {known:?}");
    eventually(NODE_STATUS, "7".to_owned(), async || node_status("allocatable")).await;
    eventually(NODE_STATUS, "8".to_owned(), async || node_status("allocatable")).await;
    drop(pods);
    drop(agent);
    for document in ["windlass.dev-gpu.json", "windlass.dev-nic.json"] {
        // Written by the agent of this test; an agent in use leaves them for its containers.
        let _ = fs::remove_file(Path::new("/var/run/cdi").join(document));
    }
}

/// Pods of 1, 2 and 4 GPUs reach Running, and find what they asked for inside.
async fn run_pods(pods: &mut Pods) {
    for gpus in [1, 2, 4] {
        let name = format!("windlass-e2e-{gpus}");
        pods.run(&name, gpus);
        let phase = async || kubectl(&["get", "pod", &name, "-o", "jsonpath={.status.phase}"]);
        eventually(NODE_STATUS, "Running".to_owned(), phase).await;
        let inside = async || {
            let log = kubectl(&["logs", &name]);
            let ids = log.lines().find_map(|line| line.strip_prefix("WINDLASS_NVIDIA_COM_GPU="));
            let named = ids.map_or(0, |ids| ids.split(',').count());
            let nodes = log.lines().filter_map(|line| line.rsplit_once(" nvidia"));
            (named, nodes.filter(|(_, name)| name.parse::<u32>().is_ok()).count())
        };
        eventually(NODE_STATUS, (gpus, gpus), inside).await;
    }
}
