//! Memory of shares on a real kubelet: the hook in a real container runtime, and the watchdog with real processes in
//! the kubelet's control groups.

use std::{fs, path::Path};

use windlass_machine::state::Process;

use crate::cluster::{
    NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::allocatable,
    node::{Agent, Node},
    plugin_folder_lock,
    pods::{Pods, kubectl},
    shares::{ALL_GPUS_GIB, MEMORY, bind, config, pod},
};

/// UID of a pod at the API server, and at the kubelet.
fn uid(pod: &str) -> String {
    kubectl(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])
}

/// Messages of the events of this pod's UID: a pod of an earlier test may have had its name.
fn events(pod: &str) -> String {
    let selector = format!("involvedObject.uid={}", uid(pod));
    let path = "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}";
    kubectl(&["get", "events", "--field-selector", &selector, "-o", path])
}

fn restarts(pod: &str) -> String {
    kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"])
}

/// Processes of a pod's container on this machine, by their control group.
fn processes(pod: &str) -> Vec<u32> {
    let path = "jsonpath={.status.containerStatuses[0].containerID}";
    let id = kubectl(&["get", "pod", pod, "-o", path]);
    let id = id.strip_prefix("containerd://").expect("the container has started");
    let names = fs::read_dir("/proc").expect("a mounted /proc").flatten();
    let pids = names.filter_map(|name| name.file_name().to_str()?.parse::<u32>().ok());
    let cgroup = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    pids.filter(|pid| cgroup(pid).contains(id)).collect()
}

/// Mount point of cgroup v2 on this machine, if it has one.
fn cgroups() -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").expect("a mounted /proc");
    let mut mount_fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    mount_fields
        .find_map(|fields| (fields.get(2) == Some(&"cgroup2")).then(|| fields[1].to_owned()))
}

/// Copies a file of a process to the `/proc` of the simulated machine, which the agent reads.
fn copy_proc_file(node: &Node, pid: u32, file: &str) {
    let content = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("the process runs");
    let folder = node.path(&format!("machine/host/proc/{pid}"));
    fs::create_dir_all(&folder).expect("created");
    fs::write(Path::new(&folder).join(file), content).expect("written");
}

/// A GPU of the machine, and its index.
fn gpu(node: &Node) -> (usize, String) {
    let model = node.machine().model().expect("a machine");
    (5, model.gpus[5].uuid.clone())
}

async fn start_agent(node: &Node) -> Agent {
    let agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(ALL_GPUS_GIB), async || allocatable(MEMORY).await).await;
    agent
}

#[tokio::test]
async fn the_watchdog_ends_only_the_processes_of_a_pod_above_its_share() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let node = Node::new("dgx-h100", &format!("{}watchdog: {{action: kill}}\n", config()));
    let agent = start_agent(&node).await;
    copy_proc_file(&node, agent.pid(), "stat");
    let (index, gpu) = gpu(&node);
    let (greedy, modest) = ("windlass-e2e-greedy", "windlass-e2e-modest");
    let mut pods = Pods::new();
    let mut gpu_processes = Vec::new();
    for (name, memory_mib) in [(greedy, 20_000), (modest, 8000)] {
        pods.apply(name, &pod(name, 8));
        bind(name, 8, &gpu);
        pods.wait_for_running(name).await;
        let pids = processes(name);
        let memory_mib = memory_mib / pids.len() as u64;
        for pid in pids {
            copy_proc_file(&node, pid, "cgroup");
            gpu_processes.push(Process { pid, memory_mib, gpu_instance: None, sm_percent: 0 });
        }
    }
    assert!(gpu_processes.len() >= 2, "{gpu_processes:?}");
    node.machine()
        .update(|model| model.gpus[index].live.processes = gpu_processes)
        .expect("changed");
    eventually(NODE_STATUS_LIMIT, "1".to_owned(), async || restarts(greedy)).await;
    let path = "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}";
    assert_eq!(kubectl(&["get", "pod", greedy, "-o", path]), "137", "SIGKILL");
    let is_reported = async || events(greedy).contains("GpuMemoryExceeded: ");
    eventually(NODE_STATUS_LIMIT, true, is_reported).await;
    assert_eq!(restarts(modest), "0");
    assert!(!events(modest).contains("GpuMemoryExceeded"), "{}", events(modest));
    drop(pods);
    drop(agent);
}

/// Node whose driver limits memory by the built hook. The flag is true if this machine has cgroup v2.
fn node_with_hook(config: &str) -> (Node, bool) {
    let hook = Path::new(env!("CARGO_BIN_EXE_windlass")).with_file_name("windlass-hook");
    assert!(hook.exists(), "run cargo build --package windlass-hook first");
    let limits = format!("memoryLimits: {{hook: {}, atLeast: driver}}\n", hook.display());
    let node = Node::with_driver("615.10", &format!("{config}{limits}"));
    let cgroups = cgroups();
    if let Some(cgroups) = &cgroups {
        // The agent's machine is simulated, but the control groups are those of this machine.
        fs::create_dir_all(node.path("machine/host/sys/fs")).expect("created");
        let link = node.path("machine/host/sys/fs/cgroup");
        std::os::unix::fs::symlink(cgroups, link).expect("linked");
    }
    (node, cgroups.is_some())
}

/// Limits of a pod's control groups on a GPU, in bytes.
fn limits(node: &Node, index: usize, pod: &str) -> Vec<u64> {
    let limits = node.machine().model().expect("a machine").gpus[index].memory_limits.clone();
    let uid = uid(pod);
    let is_of_pod = |group: &str| group.contains(&uid) || group.contains(&uid.replace('-', "_"));
    limits.into_iter().filter(|(group, _)| is_of_pod(group)).map(|(_, limit)| limit.hard).collect()
}

#[tokio::test]
async fn the_runtime_starts_the_hook_before_the_container() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let (node, has_cgroups) = node_with_hook(&config());
    let agent = start_agent(&node).await;
    let (index, gpu) = gpu(&node);
    let name = "windlass-e2e-limited";
    let mut pods = Pods::new();
    pods.apply(name, &pod(name, 8));
    bind(name, 8, &gpu);
    if has_cgroups {
        pods.wait_for_running(name).await;
        assert_eq!(limits(&node, index, name), [8 << 30]);
    } else {
        // The agent does not see the node's control groups. The hook does, and refuses the container.
        let is_refused = async || {
            let events = events(name);
            events.contains("windlass-hook: ") && events.contains("the node has no cgroup v2")
        };
        eventually(NODE_STATUS_LIMIT, true, is_refused).await;
        let path = "jsonpath={.status.containerStatuses[0].started}";
        assert_eq!(kubectl(&["get", "pod", name, "-o", path]), "false");
    }
    drop(pods);
    drop(agent);
}

#[tokio::test]
async fn the_number_of_a_containers_replicas_decides_its_limit() {
    const TEN_GIB: &str = "example.com/gpu-10gib";
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let rules = "resources:\n- name: example.com/gpu-10gib\n  devices: {kind: gpu, index: [5]}\n  \
                 sharing: {method: timeSlicing, memory: 10Gi}\n\
                 health: {quietPeriod: 2s, probeInterval: 1s}\n";
    let (node, has_cgroups) = node_with_hook(rules);
    if !has_cgroups {
        println!("SKIPPED: this machine has no cgroup v2");
        return;
    }
    let agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(7), async || allocatable(TEN_GIB).await).await;
    let (index, _) = gpu(&node);
    let mut pods = Pods::new();
    for (name, replicas) in [("windlass-e2e-one", 1), ("windlass-e2e-three", 3)] {
        pods.run(name, TEN_GIB, replicas).await;
        assert_eq!(limits(&node, index, name), [replicas as u64 * (10 << 30)]);
    }
    drop(pods);
    drop(agent);
}
