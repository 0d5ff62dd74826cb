//! The extender with a real kube-scheduler, which binds each pod to the highest-ranked node. Every pod gets the GPUs
//! that the extender chose.
//!
//! Runs only if `WINDLASS_E2E_SCHEDULER` names a kube-scheduler. Most pods are bound to nodes without a kubelet: such
//! a node is only an object of the API server, and runs no container.

use std::{
    collections::BTreeMap,
    env, fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_conformance::process::free_address;

use crate::cluster::{
    KUBECONFIG, NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::allocatable,
    node::Node,
    plugin_folder_lock,
    pods::{Pods, apply, clean_up, kubectl},
};

/// Variable with the path of kube-scheduler.
pub(super) const SCHEDULER: &str = "WINDLASS_E2E_SCHEDULER";
/// Variable with the number of pods.
const PODS: &str = "WINDLASS_E2E_PODS";
const HOLLOW_NODES: usize = 40;
const GPUS: usize = 8;
const GPU_MIB: u64 = 23_028;
/// Deadline for the binding of all pods.
const BIND_LIMIT: Duration = Duration::from_secs(240);
const LABEL: &str = "windlass-e2e-hollow";
/// Label of a node's rack.
const RACK: &str = "windlass-e2e/rack";
const RACK_NODES: usize = 10;
pub(super) const MEMORY: &str = "windlass.dev/gpu-memory";

/// An extender, and a kube-scheduler that calls it. Drop kills both.
struct SchedulerRig {
    folder: TempDir,
    port: u16,
    extender: Child,
    scheduler: Child,
}

struct HollowNodes;

// === impl SchedulerRig ===

impl SchedulerRig {
    /// Starts both, unless there is no kube-scheduler.
    #[expect(clippy::print_stderr, reason = "a skipped test is reported")]
    fn start() -> Option<Self> {
        let Some(program) = env::var_os(SCHEDULER) else {
            eprintln!("SKIPPED: set {SCHEDULER} to a kube-scheduler to run this");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_address().expect("a free port").port();
        let config = folder.path().join("scheduler.yaml");
        let document = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": env::var(KUBECONFIG).expect("checked")},
            "leaderElection": {"leaderElect": false},
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": "windlass"}],
            "extenders": [{
                "urlPrefix": format!("http://127.0.0.1:{port}"), "filterVerb": "filter",
                "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "bindVerb": "bind",
                "weight": 1000, "nodeCacheCapable": true, "httpTimeout": "60s", "managedResources": [
                    {"name": "nvidia.com/gpu"}, {"name": MEMORY},
                    {"name": "windlass.dev/gpu-compute"},
                ],
            }],
        });
        fs::write(&config, document.to_string()).expect("written");
        let log = fs::File::create(folder.path().join("scheduler.log")).expect("a file");
        let scheduler = Command::new(program)
            .arg("--config")
            .arg(&config)
            .args(["--secure-port", "0"])
            .stderr(log)
            .spawn()
            .expect("kube-scheduler starts");
        let extender = start_extender(port);
        Some(Self { folder, port, extender, scheduler })
    }

    /// Kills the extender, and starts another at the same address.
    fn replace_extender(&mut self) {
        self.extender.kill().expect("the extender runs");
        self.extender.wait().expect("a child");
        self.extender = start_extender(self.port);
    }

    /// Page of the extender; `None` until it is served.
    fn page(&self, path: &str) -> Option<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let output = Command::new("curl").args(["-sf", &url]).output().expect("curl runs");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Value of the metric whose name and labels are `name`; zero if the page lacks it.
    fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics").expect("the extender serves");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let number = |value: &str| value.trim().trim_end_matches(".0").parse().expect("a number");
        line.map_or(0, number)
    }
}

impl Drop for SchedulerRig {
    #[expect(clippy::print_stderr, reason = "the scheduler's log explains a failed test")]
    fn drop(&mut self) {
        for child in [&mut self.extender, &mut self.scheduler] {
            drop(child.kill());
            drop(child.wait());
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("scheduler.log"));
            let log = log.unwrap_or_default();
            let last_lines: Vec<_> = log.lines().rev().take(10).collect();
            eprintln!("kube-scheduler: {last_lines:#?}");
        }
    }
}

fn start_extender(port: u16) -> Child {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(["cluster", "extend", "--namespace", "default", "--lease", "windlass-e2e"])
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--kubeconfig")
        .arg(env::var_os(KUBECONFIG).expect("checked"))
        .stderr(Stdio::null())
        .spawn()
        .expect("windlass starts")
}

// === impl HollowNodes ===

impl HollowNodes {
    fn create() -> Self {
        let nodes: Vec<_> = (0..HOLLOW_NODES).map(hollow_node).collect();
        apply(&json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string());
        Self
    }
}

impl Drop for HollowNodes {
    fn drop(&mut self) {
        clean_up(&["delete", "pods", "-l", LABEL, "--force", "--grace-period=0", "--wait=false"]);
        clean_up(&["delete", "nodes", "-l", LABEL]);
        clean_up(&["delete", "lease", "windlass-e2e", "--ignore-not-found"]);
    }
}

fn hollow_node(number: usize) -> Value {
    let model = ["NVIDIA A10", "NVIDIA L4"][number % 2];
    let gpu = |index: usize| {
        let id = format!("GPU-{number}-{index}");
        json!({"id": id, "model": model, "memoryMib": GPU_MIB})
    };
    let devices = json!({"devices": (0..GPUS).map(gpu).collect::<Vec<_>>()}).to_string();
    let resources = json!({
        "cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": GPUS.to_string(),
        MEMORY: (GPUS * 22).to_string(), "windlass.dev/gpu-compute": (GPUS * 100).to_string(),
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": format!("windlass-e2e-hollow-{number:02}"),
            "labels": {LABEL: "", RACK: format!("rack-{}", number / RACK_NODES)},
            "annotations": {"windlass.dev/devices": devices},
        },
        "status": {"allocatable": resources, "capacity": resources},
    })
}

/// Pod for hollow nodes, with limits that depend on its number. No kubelet reports the nodes' status, so the pod
/// tolerates the taints of the node controller.
fn pod(number: usize) -> Value {
    let limits = match number % 10 {
        0 => json!({"nvidia.com/gpu": "1"}),
        1 if number % 50 == 1 => json!({"nvidia.com/gpu": "2"}),
        2..5 => json!({MEMORY: (1 + number % 7).to_string()}),
        5..8 => json!({"windlass.dev/gpu-compute": "10"}),
        _ => json!({MEMORY: "2", "windlass.dev/gpu-compute": "20"}),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("windlass-e2e-hollow-{number}"), "labels": {LABEL: ""}},
        "spec": {
            "schedulerName": "windlass", "nodeSelector": {LABEL: ""},
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        },
    })
}

/// Pod of a gang, which takes a whole node.
fn gang_pod(gang: &str, number: usize, size: usize, within: &str) -> Value {
    let mut pod = pod(0);
    pod["metadata"] = json!({
        "name": format!("windlass-e2e-{gang}-{number}"),
        "labels": {LABEL: "", "windlass.dev/gang": gang},
        "annotations": {"windlass.dev/gang-size": size.to_string(),
                        "windlass.dev/gang-within": within},
    });
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "8"});
    pod
}

fn apply_all(pods: &[Value]) {
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
}

/// Nodes of the bound pods of a gang.
fn nodes_of(gang: &str) -> Vec<String> {
    let pods = hollow_pods();
    let gang_pods =
        pods.iter().filter(|pod| pod["metadata"]["labels"]["windlass.dev/gang"] == gang);
    gang_pods.filter_map(|pod| pod["spec"]["nodeName"].as_str()).map(str::to_owned).collect()
}

fn hollow_pods() -> Vec<Value> {
    let list: Value =
        serde_json::from_str(&kubectl(&["get", "pods", "-l", LABEL, "-o", "json"])).expect("JSON");
    list["items"].as_array().expect("a list").clone()
}

/// Allocated memory in MiB, and compute in thousandths, of each GPU. A whole GPU counts as all of its memory and 1000
/// thousandths.
fn allocations(pods: &[Value]) -> BTreeMap<String, (u64, u64)> {
    let mut allocated: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for pod in pods {
        let placement = &pod["metadata"]["annotations"]["windlass.dev/placement"];
        let placement: Value =
            serde_json::from_str(placement.as_str().expect("a placement")).expect("JSON");
        for device in placement["devices"].as_array().expect("devices") {
            let allocated =
                allocated.entry(device["id"].as_str().expect("an id").to_owned()).or_default();
            let is_whole = device["memoryMib"].is_null() && device["computeMilli"].is_null();
            let amount = |key: &str| device[key].as_u64().unwrap_or(0);
            allocated.0 += if is_whole { GPU_MIB } else { amount("memoryMib") };
            allocated.1 += if is_whole { 1000 } else { amount("computeMilli") };
        }
    }
    allocated
}

/// Pod that requests a share of GPU memory from the extender.
pub(super) fn pod_with_memory(pod: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}}}\nspec:\n  schedulerName: windlass\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - name: main\n    image: docker.io/local/app:1\n    imagePullPolicy: Never\n    \
         resources: {{limits: {{{MEMORY}: 30}}}}\n"
    )
}

/// Waits until a pod's container has the GPU that the extender chose.
pub(super) async fn check_chosen_gpu(pods: &Pods, pod: &str) {
    pods.wait_for_running(pod).await;
    let expected: Value =
        serde_json::from_str(&kubectl(&["get", "pod", pod, "-o", "json"])).expect("JSON");
    let expected = allocations(&[expected]).into_keys().next().expect("a GPU");
    let actual = async || {
        let log = kubectl(&["logs", pod]);
        let share =
            log.lines().find_map(|line| line.split_once("WINDLASS_SHARE=").map(|(_, value)| value));
        let share: Value = serde_json::from_str(share.unwrap_or("{}").trim()).expect("JSON");
        share["device"].as_str().unwrap_or_default().to_owned()
    };
    eventually(NODE_STATUS_LIMIT, expected, actual).await;
}

#[tokio::test]
async fn kube_scheduler_follows_every_choice_and_no_gpu_is_overcommitted() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let count = env::var(PODS).map_or(200, |text| text.parse().expect("a number of pods"));
    let hollow_nodes = HollowNodes::create();
    let Some(mut rig) = SchedulerRig::start() else { return };
    let is_bound = |pod: &&Value| pod["spec"]["nodeName"].is_string();
    let bound_count = async || hollow_pods().iter().filter(is_bound).count();
    let mut best_choices = 0;
    for numbers in [0..count / 2, count / 2..count] {
        let pods: Vec<_> = numbers.clone().map(pod).collect();
        apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
        eventually(BIND_LIMIT, numbers.end, bound_count).await;
        assert_eq!(rig.metric("windlass_cluster_bound_pods_total{was_best=\"false\"} "), 0);
        best_choices += rig.metric("windlass_cluster_bound_pods_total{was_best=\"true\"} ");
        rig.replace_extender();
        let is_ready = async || rig.page("/readyz").is_some();
        eventually(NODE_STATUS_LIMIT, true, is_ready).await;
        assert_eq!(rig.metric("windlass_cluster_conflicts "), 0);
    }
    assert_eq!(best_choices, u64::try_from(count).expect("a small number"), "each pod was ranked");
    for (gpu, (mib, milli)) in allocations(&hollow_pods()) {
        assert!(mib <= GPU_MIB && milli <= 1000, "{gpu}: {mib} MiB and {milli} thousandths");
    }
    check_event_of_a_pending_pod().await;
    drop(rig);
    drop(hollow_nodes);
}

/// A pod that asks for more GPUs than any node has gets an event that says so.
async fn check_event_of_a_pending_pod() {
    let mut pending = pod(0);
    let name = "windlass-e2e-pending";
    pending["metadata"]["name"] = name.into();
    let limits = &mut pending["spec"]["containers"][0]["resources"]["limits"];
    limits["nvidia.com/gpu"] = (GPUS + 1).to_string().into();
    apply(&pending.to_string());
    let selector = format!("reason=DevicesUnavailable,involvedObject.name={name}");
    let messages = async || {
        let path = "-o=jsonpath={.items[*].message}";
        kubectl(&["get", "events", "--field-selector", &selector, path])
    };
    let has_event = async || messages().await.starts_with("waits for 9 GPUs of one node: ");
    eventually(NODE_STATUS_LIMIT, true, has_event).await;
    let message = messages().await;
    assert!(message.contains(" (nodes: "), "{message}");
}

#[tokio::test]
async fn gangs_start_as_a_whole_one_after_the_other_and_within_a_rack() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let hollow_nodes = HollowNodes::create();
    let Some(rig) = SchedulerRig::start() else { return };
    eventually(NODE_STATUS_LIMIT, true, async || rig.page("/readyz").is_some()).await;
    // Two gangs that need more than half of the nodes each. Their pods are created in turn.
    let size = HOLLOW_NODES / 2 + 4;
    let gang_pods =
        |gang: &'static str| (0..size).map(move |number| gang_pod(gang, number, size, ""));
    let pods: Vec<_> = gang_pods("one")
        .zip(gang_pods("two"))
        .flat_map(|(first_pod, second_pod)| [first_pod, second_pod])
        .collect();
    apply_all(&pods);
    let bound_counts = async || (nodes_of("one").len(), nodes_of("two").len());
    let has_one = async || [(size, 0), (0, size)].contains(&bound_counts().await);
    eventually(BIND_LIMIT, true, has_one).await;
    let bound_gang = if bound_counts().await.0 == size { "one" } else { "two" };
    // A gang with a missing pod gets no node, although it would fit.
    apply_all(&[gang_pod("small", 0, 3, RACK), gang_pod("small", 1, 3, RACK)]);
    let refusals =
        async || rig.metric("windlass_cluster_refusals_total{reason=\"gang_incomplete\"} ");
    eventually(NODE_STATUS_LIMIT, true, async || refusals().await > 2).await;
    assert_eq!(nodes_of("small"), [""; 0]);
    apply_all(&[gang_pod("small", 2, 3, RACK)]);
    eventually(BIND_LIMIT, 3, async || nodes_of("small").len()).await;
    let nodes = nodes_of("small");
    let rack =
        |node: &String| node[node.len() - 2..].parse::<usize>().expect("two digits") / RACK_NODES;
    assert!(nodes.iter().all(|node| rack(node) == rack(&nodes[0])), "{nodes:?}");
    // The other gang starts once the first is deleted.
    let label = format!("windlass.dev/gang in ({bound_gang},small)");
    kubectl(&["delete", "pods", "-l", &label, "--force", "--grace-period=0", "--wait=false"]);
    let waiting_gang = if bound_gang == "one" { "two" } else { "one" };
    eventually(BIND_LIMIT, size, async || nodes_of(waiting_gang).len()).await;
    assert_eq!(rig.metric("windlass_cluster_conflicts "), 0);
    drop(rig);
    drop(hollow_nodes);
}

#[tokio::test]
async fn a_container_gets_the_gpu_that_the_extender_chose() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let Some(rig) = SchedulerRig::start() else { return };
    let name = kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let kubeconfig = env::var(KUBECONFIG).expect("checked");
    let node = Node::new(
        "dgx-h100",
        &format!(
            "cluster: {{kubeconfig: {kubeconfig}, nodeName: {name}}}\nlabels: {{devices: true}}\n\
             shares: {{memory: {MEMORY}, compute: windlass.dev/gpu-compute}}\n"
        ),
    );
    let agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(8 * 79), async || allocatable(MEMORY).await).await;
    eventually(NODE_STATUS_LIMIT, true, async || rig.page("/readyz").is_some()).await;
    eventually(NODE_STATUS_LIMIT, 8, async || rig.metric("windlass_cluster_gpus ")).await;
    let mut pods = Pods::new();
    for number in 0..4 {
        let pod = format!("windlass-e2e-decided-{number}");
        pods.apply(&pod, &pod_with_memory(&pod));
        check_chosen_gpu(&pods, &pod).await;
    }
    drop(pods);
    drop(agent);
}
