//! The manifests as pods: the agent and both replicas of the scheduler, from images of `deploy/image`, with crashes.
//!
//! Runs only if `WINDLASS_E2E_SCHEDULER` names the program of a kube-scheduler, and `WINDLASS_E2E_IMPORT` a program
//! that imports an image from a tar into the node's container runtime. Pods have to reach the API server. The runtime
//! keeps the images.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use crate::cluster::{
    NODE_STATUS_LIMIT, eventually,
    extender::{MEMORY, SCHEDULER, check_chosen_gpu, pod_with_memory},
    has_cluster,
    images::{IMPORT, import},
    kubelet::allocatable,
    node::Node,
    plugin_folder_lock,
    pods::{Manifests, Pods, kubectl, try_kubectl},
};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
const NAMESPACE: &str = "windlass-system";
const SCHEDULER_SELECTOR: &str = "app=windlass-scheduler";
const CLAIM: &str = "\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: windlass-e2e-claim}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: windlass-nvidia-gpu}}]}}
";
/// Pod for the scheduler of claims.
const CLAIMANT: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: windlass-e2e-claim}
spec:
  schedulerName: windlass-claims
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: docker.io/local/app:1
      imagePullPolicy: Never
      resources: {claims: [{name: gpu}]}
  resourceClaims: [{name: gpu, resourceClaimName: windlass-e2e-claim}]
";
/// Configuration with shares and claims. Each option of the overlay configures only one of the two.
const CONFIGURATION: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: windlass, namespace: windlass-system}
data:
  config.yaml: |
    labels: {devices: true}
    shares: {memory: windlass.dev/gpu-memory, compute: windlass.dev/gpu-compute}
    dra: {offer: beside}
";
/// Image of the program under test, which has every feature.
const IMAGE: &str = "windlass-laboratory";
/// Deadline of a replacement of replicas: the Lease of a dead replica lasts 15 s, and new replicas have to start.
const REPLACE_LIMIT: Duration = Duration::from_secs(120);

/// Prints the logs of the namespace when dropped in a failed test.
struct LogsOnFailure;

// === impl LogsOnFailure ===

impl Drop for LogsOnFailure {
    #[expect(clippy::print_stderr, reason = "the logs explain a failed test")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let pods = try_kubectl(&["-n", NAMESPACE, "get", "pods", "-o", "name"]);
        for pod in pods.unwrap_or_default().lines() {
            let arguments =
                ["-n", NAMESPACE, "logs", "--all-containers", "--tail=20", "--prefix", pod];
            let (Ok(log) | Err(log)) = try_kubectl(&arguments);
            eprintln!("{log}");
        }
        let (Ok(events) | Err(events)) = try_kubectl(&["-n", NAMESPACE, "events"]);
        eprintln!("{events}");
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn programs() -> Option<[PathBuf; 2]> {
    let programs = [SCHEDULER, IMPORT].map(|name| env::var_os(name).map(PathBuf::from));
    let [Some(scheduler), Some(importer)] = programs else {
        eprintln!("SKIPPED: set {SCHEDULER} and {IMPORT} to run the manifests as pods");
        return None;
    };
    Some([scheduler, importer])
}

/// Objects of a folder below `deploy`, with options, a patch, and the image under test.
fn objects(folder: &str, options: &[&str], patch: &str, node: &Node) -> Vec<Value> {
    let overlay = PathBuf::from(node.path(&folder.replace('/', "-")));
    fs::create_dir_all(&overlay).expect("created");
    // A kustomization must name others by relative paths.
    let to_root: PathBuf = overlay.components().skip(1).map(|_| "..").collect();
    let deploy = Path::new(DEPLOY).canonicalize().expect("an existing path");
    let deploy = to_root.join(deploy.strip_prefix("/").expect("absolute"));
    let options: Vec<_> =
        options.iter().map(|option| deploy.join("options").join(option)).collect();
    let images = ["windlass", "windlass-cluster"];
    let images = images.map(|name| json!({"name": name, "newName": IMAGE}));
    let kustomization = json!({
        "resources": [deploy.join(folder)], "components": options, "images": images,
        "patches": if patch.is_empty() { json!([]) } else { json!([{"patch": patch}]) },
    });
    fs::write(overlay.join("kustomization.yaml"), kustomization.to_string()).expect("written");
    let manifests = kubectl(&["kustomize", overlay.to_str().expect("text")]);
    let parse = |text: &str| serde_saphyr::from_str(text).expect("YAML");
    manifests.split("\n---\n").map(parse).collect()
}

/// Points an agent's mounts at a simulated machine.
fn simulate(daemon_set: &mut Value, node: &Node) {
    let (machine, host) = (node.path("machine"), node.path("machine/host"));
    // Every real /dev has these folders, on which the runtime mounts file systems.
    for folder in ["pts", "shm"] {
        fs::create_dir_all(format!("{host}/dev/{folder}")).expect("created");
    }
    let pod = &mut daemon_set["spec"]["template"]["spec"];
    for volume in pod["volumes"].as_array_mut().expect("volumes") {
        let Some(path) = volume["hostPath"]["path"].as_str() else { continue };
        let target = match path {
            "/var/lib/windlass" => node.path("state"),
            path if path.starts_with("/var/") => continue,
            path => format!("{host}{path}"),
        };
        if !Path::new(&target).exists() && volume["hostPath"]["type"] != "File" {
            fs::create_dir_all(&target).expect("created");
        } else if !Path::new(&target).exists() {
            fs::create_dir_all(Path::new(&target).parent().expect("a folder")).expect("created");
            fs::write(&target, "simulated\n").expect("written");
        }
        volume["hostPath"]["path"] = target.into();
    }
    let volumes = pod["volumes"].as_array_mut().expect("volumes");
    volumes.push(json!({"name": "machine", "hostPath": {"path": machine}}));
    let container = &mut pod["containers"][0];
    let mounts = container["volumeMounts"].as_array_mut().expect("mounts");
    mounts.push(json!({"name": "machine", "mountPath": machine}));
    let variables = container["env"].as_array_mut().expect("variables");
    variables.push(json!({"name": "WINDLASS_HOST_ROOT_ON_NODE", "value": host}));
    let library = node.path("machine/libnvidia-ml.so.1");
    variables.push(json!({"name": "WINDLASS_NVML_LIBRARY", "value": library}));
}

/// Creates objects with one command, in this order.
fn apply_objects(objects: &[Value]) -> Manifests {
    Manifests::apply(&objects.iter().map(|object| format!("{object}\n")).collect::<Vec<_>>())
}

/// Pods of the namespace that match a selector.
fn list_pods(selector: &[&str]) -> Vec<Value> {
    let list = kubectl(&[&["-n", NAMESPACE, "get", "pods", "-o", "json"], selector].concat());
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list["items"].as_array().expect("a list").clone()
}

fn replicas() -> Vec<Value> {
    list_pods(&["-l", SCHEDULER_SELECTOR])
}

fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// True for a replica that is ready and not being deleted.
fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let is_ready_condition =
        |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions.is_some_and(|conditions| conditions.iter().any(is_ready_condition))
}

/// Number of GPUs in the metrics of a replica.
fn gpus(replica: &str) -> Option<String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{replica}:9403/proxy/metrics");
    let page = try_kubectl(&["get", "--raw", &path]).ok()?;
    page.lines().find_map(|line| line.strip_prefix("windlass_cluster_gpus ").map(str::to_owned))
}

/// Waits until both replicas are ready and count the GPUs of the node. Returns the names of the replicas.
async fn wait_for_replicas() -> Vec<String> {
    eventually(REPLACE_LIMIT, 2, async || replicas().into_iter().filter(is_ready).count()).await;
    let names: Vec<_> = replicas().iter().filter(|pod| is_ready(pod)).map(name).collect();
    for replica in &names {
        eventually(NODE_STATUS_LIMIT, Some("8.0".to_owned()), async || gpus(replica)).await;
    }
    names
}

/// Kills the processes of a replica, so that it cannot release its Leases.
fn crash(replica: &str) {
    let field = "jsonpath={.metadata.uid}";
    let uid = kubectl(&["-n", NAMESPACE, "get", "pod", replica, "-o", field]);
    let names = [uid.clone(), uid.replace('-', "_")];
    let processes = fs::read_dir("/proc").expect("mounted").map(|entry| entry.expect("readable"));
    let is_of_replica = |process: &fs::DirEntry| {
        // A process may have ended.
        let file = |name: &str| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        let is_program = ["windlass", "kube-scheduler"].contains(&file("comm").trim());
        is_program && names.iter().any(|name| file("cgroup").contains(name.as_str()))
    };
    let ids = processes.filter(is_of_replica).map(|process| process.file_name());
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids.len(), 3, "one process for each container: {ids:?}");
    assert!(Command::new("kill").arg("-KILL").args(ids).status().expect("kill runs").success());
}

/// Deletes pods as if their node were gone.
fn delete(names: &[String]) {
    let mut arguments = vec!["-n", NAMESPACE, "delete", "pod", "--grace-period=0", "--force"];
    arguments.extend(names.iter().map(String::as_str));
    kubectl(&arguments);
}

/// The replica whose kube-scheduler is elected.
fn elected_replica() -> String {
    let field = "jsonpath={.spec.holderIdentity}";
    let holder = kubectl(&["-n", NAMESPACE, "get", "lease", "windlass-scheduler", "-o", field]);
    holder.split('_').next().unwrap_or_default().to_owned()
}

/// Checks that no container of the namespace has restarted, and that no log has a refused request.
fn check_no_refusals() {
    for pod in list_pods(&[]).iter().filter(|pod| is_ready(pod)) {
        let states = pod["status"]["containerStatuses"].as_array().expect("containers");
        for state in states {
            assert_eq!(state["restartCount"], 0, "a probe ended {state}");
            let container = state["name"].as_str().expect("a name");
            let log = kubectl(&["-n", NAMESPACE, "logs", &name(pod), "-c", container]);
            let refused_line = log.lines().find(|line| line.to_lowercase().contains("forbidden"));
            assert_eq!(refused_line, None, "{container}");
        }
    }
}

#[tokio::test]
async fn pods_get_their_gpus_while_replicas_of_the_manifests_crash() {
    if !has_cluster() {
        return;
    }
    let Some([scheduler, importer]) = programs() else { return };
    let _lock = plugin_folder_lock();
    let node = Node::new("dgx-h100", "");
    let scheduler_objects = objects("scheduler", &[], "", &node);
    let mut agents = objects("overlays/cluster", &["claims"], CONFIGURATION, &node);
    let deployment =
        scheduler_objects.iter().find(|object| object["kind"] == "Deployment").expect("the object");
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    let image = containers[1]["image"].as_str().expect("an image");
    import(&scheduler, Some(image), &importer);
    import(Path::new(env!("CARGO_BIN_EXE_windlass")), None, &importer);
    let daemon_set =
        agents.iter_mut().find(|object| object["kind"] == "DaemonSet").expect("the object");
    simulate(daemon_set, &node);
    // Objects are dropped in the reverse order, so the namespace is deleted last.
    let agents = apply_objects(&agents);
    let scheduler_objects = apply_objects(&scheduler_objects);
    let _logs = LogsOnFailure;
    eventually(NODE_STATUS_LIMIT, Some(8 * 79), async || allocatable(MEMORY).await).await;

    let replicas = wait_for_replicas().await;
    let claims = Manifests::apply(&[CLAIM.to_owned()]);
    let mut pods = Pods::new();
    pods.apply("windlass-e2e-first", &pod_with_memory("windlass-e2e-first"));
    check_chosen_gpu(&pods, "windlass-e2e-first").await;
    pods.apply("windlass-e2e-claim", CLAIMANT);
    pods.wait_for_running("windlass-e2e-claim").await;
    let elected_replica = elected_replica();
    assert!(replicas.contains(&elected_replica), "{elected_replica} of {replicas:?}");

    crash(&elected_replica);
    pods.apply("windlass-e2e-second", &pod_with_memory("windlass-e2e-second"));
    eventually(REPLACE_LIMIT, true, async || is_bound("windlass-e2e-second")).await;
    check_chosen_gpu(&pods, "windlass-e2e-second").await;

    delete(&wait_for_replicas().await);
    pods.apply("windlass-e2e-third", &pod_with_memory("windlass-e2e-third"));
    eventually(REPLACE_LIMIT, true, async || is_bound("windlass-e2e-third")).await;
    check_chosen_gpu(&pods, "windlass-e2e-third").await;

    wait_for_replicas().await;
    check_no_refusals();
    drop(pods);
    drop(claims);
    drop(scheduler_objects);
    drop(agents);
}

fn is_bound(pod: &str) -> bool {
    !kubectl(&["get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"]).is_empty()
}
