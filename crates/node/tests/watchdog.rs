//! The watchdog over shared GPUs: real processes in simulated control groups, whose memory a simulated driver lists.

use std::{fs, time::Duration};

use k8s_openapi::api::{core::v1::Pod as PodObject, events::v1::Event};
use serde_json::json;
use windlass_cluster_sim::api::{Effect, Fault, Refusal};
use windlass_config::{Disclosed, Policy, ShareResources, WatchdogAction, WatchdogPolicy};
use windlass_core::device::DeviceId;
use windlass_kubelet_sim::Pod;
use windlass_machine::{
    MachineProfile,
    state::{Model, Process},
};
use windlass_testkit::{Node, Permission, pod_with, until, until_allocatable};

use crate::{
    agent::{
        sharing::{SHARED, first_gpu_by_memory},
        world::gpu_id,
    },
    kernel::{CONTAINER, Program},
    shares::World,
};

const MEMORY: &str = "windlass.dev/gpu-memory";
const COMPUTE: &str = "windlass.dev/gpu-compute";

/// A node with a watchdog, and pods on its first GPU.
pub(crate) struct WatchedNode {
    pub(crate) world: World,
    pub(crate) gpu: DeviceId,
}

pub(crate) fn policy(action: WatchdogAction) -> Policy {
    let shares = ShareResources {
        memory: Some(MEMORY.parse().expect("a name")),
        compute: Some(COMPUTE.parse().expect("a name")),
        ..ShareResources::default()
    };
    // A shorter interval than a file may have.
    let watchdog = WatchdogPolicy { action, interval: Duration::from_millis(10) };
    Policy { shares, watchdog, ..Policy::default() }
}

/// UID of a pod whose name is a hexadecimal digit.
pub(crate) fn uid(pod: &str) -> String {
    format!("{pod:0>32}")
}

fn prepare(node: &mut Node) {
    node.config.disclose.insert(Disclosed::Pods);
    node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    prepare_proc(node);
}

/// Shows the agent itself in the host's `/proc`: it is in the host's PID namespace.
pub(crate) fn prepare_proc(node: &Node) {
    let stat = fs::read_to_string("/proc/self/stat").expect("it is there");
    node.write(&format!("/proc/{}/stat", std::process::id()), &stat);
}

// === impl WatchedNode ===

impl WatchedNode {
    /// A node with two pods of 8 GiB each.
    async fn new(action: WatchdogAction) -> Self {
        let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        let world = Box::pin(World::prepared(&profile, policy(action), 8, prepare)).await;
        until_allocatable(&world.kubelet, MEMORY, 8 * 79).await;
        let gpu = world.gpus[0].clone();
        let watched = Self { world, gpu };
        for name in ["a", "b"] {
            Box::pin(watched.run(name)).await;
        }
        watched
    }

    /// A node with pods that have these numbers of replicas of the first GPU. The policy makes `count` replicas of it.
    pub(crate) async fn sharing(policy: Policy, count: usize, pods: &[(&str, u64)]) -> Self {
        let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        let world = Box::pin(World::prepared(&profile, policy, 7, prepare)).await;
        until_allocatable(&world.kubelet, SHARED, count).await;
        let gpu = gpu_id(&world.agent, 0).parse().expect("an id");
        let watched = Self { world, gpu };
        for (name, replicas) in pods {
            let pod = Pod { uid: uid(name), ..pod_with(name, SHARED, *replicas) };
            watched.world.admit(pod, &json!({})).await;
            watched.world.kubelet.start_container(&uid(name), "main").await.expect("started");
            watched.report_started(name);
        }
        watched
    }

    /// Runs a pod with 8 GiB and a quarter of the first GPU.
    async fn run(&self, name: &str) {
        let mut pod = Pod { uid: uid(name), ..pod_with(name, MEMORY, 8) };
        pod.containers[0].limits.insert(COMPUTE.to_owned(), 25);
        let part = json!({"id": self.gpu, "memoryMib": 8192, "computeMilli": 250});
        let placement = json!({"devices": [part]}).to_string();
        self.world.admit(pod, &json!({"windlass.dev/placement": placement})).await;
        until("the container starts", async || {
            self.world.kubelet.start_container(&uid(name), "main").await
        })
        .await;
        self.report_started(name);
    }

    /// Has the kubelet report that the pod's container has started.
    fn report_started(&self, name: &str) {
        let id = format!("containerd://{CONTAINER}");
        let status = json!([{"name": "main", "containerID": id, "image": "i", "imageID": "",
                             "ready": true, "restartCount": 0}]);
        let mut pod = self.pod(name).expect("it is bound");
        pod.status.get_or_insert_default().container_statuses =
            serde_json::from_value(status).expect("statuses");
        self.world.api.objects().put(&pod);
    }

    pub(crate) fn pod(&self, name: &str) -> Option<PodObject> {
        self.world.api.objects().get::<PodObject>("default", name)
    }

    /// Starts a program in a container of the pod, or of the host.
    pub(crate) fn program(&self, pod: Option<&str>) -> Program {
        let program = Program::start();
        let group = match pod {
            Some(pod) => format!("0::/kubepods/pod{}/{CONTAINER}", uid(pod)),
            None => "0::/system.slice/ssh.service".to_owned(),
        };
        self.world.node.write(&format!("/proc/{}/cgroup", program.pid()), &group);
        program
    }

    /// Makes the programs use these numbers of MiB of the first GPU.
    pub(crate) fn set_use(&self, programs: &[(&Program, u64)]) {
        let idle: Vec<_> = programs.iter().map(|(program, mib)| (*program, *mib, 0)).collect();
        self.set_use_and_time(&idle);
    }

    /// Makes the programs use these numbers of MiB of the first GPU, and these percentages of its time.
    fn set_use_and_time(&self, programs: &[(&Program, u64, u32)]) {
        let process = |(program, memory_mib, sm_percent): &(&Program, u64, u32)| Process {
            pid: program.pid(),
            memory_mib: *memory_mib,
            gpu_instance: None,
            sm_percent: *sm_percent,
        };
        let processes = programs.iter().map(process).collect();
        let change = |machine: &mut Model| {
            let mut gpus = machine.gpus.iter_mut();
            let gpu = gpus.find(|gpu| gpu.uuid == self.gpu.as_str()).expect("it is there");
            gpu.live.processes = processes;
        };
        self.world.node.machine.update(change).expect("changed");
    }

    fn events(&self) -> Vec<Event> {
        self.world.api.objects().list::<Event>()
    }

    /// Waits for the event of a pod.
    pub(crate) async fn event_of(&self, pod: &str) -> (String, String) {
        until("an event of the pod", async || {
            let events = self.events();
            let is_of_pod =
                |it: &&Event| it.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(pod);
            let event = events.iter().find(is_of_pod).ok_or(events.len())?;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            Ok::<_, usize>((text(&event.action), text(&event.note)))
        })
        .await
    }

    /// Waits for a line of the metrics.
    async fn until_metric(&self, line: &str) {
        until(line, async || {
            let text = self.metrics().await;
            let shares = text.lines().filter(|line| line.contains("share"));
            let shares: Vec<_> = shares.map(ToOwned::to_owned).collect();
            if text.contains(line) { Ok(()) } else { Err(shares) }
        })
        .await;
    }

    async fn metrics(&self) -> String {
        crate::agent::admin::get(&self.world.agent, "/metrics").await.body
    }
}

#[tokio::test]
async fn use_is_measured_outside_of_containers() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let (first, second) = (watched.program(Some("a")), watched.program(Some("a")));
    let (other, host) = (watched.program(Some("b")), watched.program(None));
    let unknown_program = watched.program(Some("f"));
    watched.set_use(&[
        (&first, 3000),
        (&second, 5000),
        (&other, 1),
        (&host, 20_000),
        (&unknown_program, 9000),
    ]);
    let gpu = &watched.gpu;
    let line_of_a = format!(
        r#"windlass_share_memory_used_bytes{{device="{gpu}",namespace="default",pod="a",container="main"}} {}"#,
        8000_u64 << 20
    );
    let limit = format!(r#"windlass_share_memory_limit_bytes{{device="{gpu}",namespace="default""#);
    for line in [
        line_of_a,
        format!(r#"pod="b",container="main"}} {}"#, 1 << 20),
        format!(r#"{limit},kind="pod",holder="a",enforcement="watched"}} {}"#, 8192_u64 << 20),
        format!(r#"windlass_shared_gpu_measured{{device="{gpu}"}} 1"#),
        r#"windlass_share_memory_violations_total{action="kill"} 0"#.to_owned(),
    ] {
        watched.until_metric(&line).await;
    }
    let text = watched.metrics().await;
    let used = text.lines().filter(|line| line.starts_with("windlass_share_memory_used"));
    assert_eq!(used.count(), 2, "others have no limit");
    // Another pod exceeds its share only now, after enough measurements of all processes to show a wrong violation.
    let (mut host, mut unknown_program) = (host, unknown_program);
    watched.set_use(&[
        (&first, 3000),
        (&second, 5000),
        (&other, 9000),
        (&host, 20_000),
        (&unknown_program, 9000),
    ]);
    watched.event_of("b").await;
    assert_eq!(watched.events().len(), 1);
    assert!(host.is_running() && unknown_program.is_running());
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn memory_without_a_process_is_reported_and_counts_for_no_pod() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let mut program = watched.program(Some("a"));
    watched.set_use(&[(&program, 5000)]);
    let gpu = &watched.gpu;
    let uncounted = |mib: u64| {
        format!(r#"windlass_shared_gpu_uncounted_bytes{{device="{gpu}"}} {}"#, mib << 20)
    };
    watched.until_metric(&uncounted(0)).await;
    let machine = watched.world.node.machine.model().expect("a machine");
    let index = machine.gpus.iter().position(|it| it.uuid == gpu.as_str()).expect("it is there");
    watched.world.node.inject(&format!("memory:14000@{index}"));
    watched.until_metric(&uncounted(14_000)).await;
    watched.until_metric(r#"windlass_share_memory_violations_total{action="kill"} 0"#).await;
    assert!(program.is_running());
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn a_hanging_driver_leaves_the_gpu_unmeasured() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let gpu = &watched.gpu;
    let metric_line =
        |value: u32| format!(r#"windlass_shared_gpu_measured{{device="{gpu}"}} {value}"#);
    watched.until_metric(&metric_line(1)).await;
    let machine = watched.world.node.machine.model().expect("a machine");
    let index = machine.gpus.iter().position(|it| it.uuid == gpu.as_str()).expect("it is there");
    watched.world.node.inject(&format!("hang@{index}"));
    watched.until_metric(&metric_line(0)).await;
    watched.until_metric(r#"holder="a",enforcement="none"}"#).await;
    watched.world.node.inject(&format!("recover@{index}"));
    watched.until_metric(&metric_line(1)).await;
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn processes_above_the_share_are_ended_and_no_others() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let (mut first, mut second) = (watched.program(Some("a")), watched.program(Some("a")));
    let (mut other, mut host) = (watched.program(Some("b")), watched.program(None));
    watched.set_use(&[(&first, 5000), (&second, 5000), (&other, 8192), (&host, 50_000)]);
    let (action, note) = watched.event_of("a").await;
    let note_of_a = format!(
        "10000 MiB of {} in use, its share is 8192 MiB: its 2 processes on the GPU were ended",
        watched.gpu
    );
    assert_eq!((action.as_str(), note), ("Kill", note_of_a));
    assert!(!first.wait().success());
    assert!(!second.wait().success());
    assert!(other.is_running() && host.is_running());
    watched.set_use(&[(&other, 8192), (&host, 50_000)]);
    watched.until_metric(r#"windlass_share_memory_violations_total{action="kill"} 1"#).await;
    assert_eq!(watched.events().len(), 1);
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn a_pod_above_its_share_is_evicted_unless_a_budget_forbids_it() {
    let watched = WatchedNode::new(WatchdogAction::Evict).await;
    let (mut greedy, mut other) = (watched.program(Some("a")), watched.program(Some("b")));
    watched.set_use(&[(&greedy, 9000), (&other, 8000)]);
    let (action, note) = watched.event_of("a").await;
    assert_eq!(action, "Evict");
    assert!(note.ends_with("the pod is evicted"), "{note}");
    assert!(watched.pod("a").is_none() && watched.pod("b").is_some());
    assert!(greedy.is_running() && other.is_running(), "the kubelet ends them");
    let budget = "Cannot evict pod as it would violate the pod's disruption budget.";
    let refusal = Refusal::new(429, "TooManyRequests", budget);
    watched
        .world
        .api
        .inject(Fault::at("/api/v1/namespaces/default/pods/b/eviction", Effect::Refuse(refusal)));
    watched.set_use(&[(&other, 9000)]);
    let (_, note) = watched.event_of("b").await;
    assert!(note.contains("it was not evicted") && note.contains(budget), "{note}");
    assert!(watched.pod("b").is_some());
    let mut permissions = Permission::shipped();
    permissions.extend(Permission::of_manifest("options/watchdog/rights.yaml"));
    watched.world.assert_within(&permissions);
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn a_pod_far_above_its_share_of_a_busy_gpus_time_has_an_event_and_keeps_running() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let (mut excessive, mut modest) = (watched.program(Some("a")), watched.program(Some("b")));
    watched.set_use_and_time(&[(&excessive, 8000, 70), (&modest, 8000, 30)]);
    let (action, note) = watched.event_of("a").await;
    assert_eq!(action, "Observe");
    assert!(note.contains("its share is 25 %"), "{note}");
    for line in [
        r#"pod="a",container="main"} 0.7"#,
        r#"kind="pod",holder="b"} 0.25"#,
        "windlass_share_compute_excesses_total 1",
        r#"windlass_share_memory_violations_total{action="kill"} 0"#,
    ] {
        watched.until_metric(line).await;
    }
    assert!(excessive.is_running() && modest.is_running());
    assert_eq!(watched.events().len(), 1);
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn with_the_action_observe_a_violation_is_reported_once() {
    let watched = WatchedNode::new(WatchdogAction::Observe).await;
    let mut greedy = watched.program(Some("a"));
    watched.set_use(&[(&greedy, 9000)]);
    let (action, note) = watched.event_of("a").await;
    assert_eq!(action, "Observe");
    assert!(note.ends_with("the pod keeps running"), "{note}");
    // The program ends, and starts again.
    watched.set_use(&[]);
    until("no use", async || {
        let text = watched.metrics().await;
        if text.contains("share_memory_used_bytes{") { Err(()) } else { Ok(()) }
    })
    .await;
    watched.set_use(&[(&greedy, 9000)]);
    watched.until_metric(r#"windlass_share_memory_violations_total{action="observe"} 2"#).await;
    assert!(greedy.is_running());
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn hidden_processes_are_reported_and_count_for_no_pod() {
    let watched = WatchedNode::new(WatchdogAction::Kill).await;
    let mut greedy = watched.program(Some("a"));
    let stat_path = watched.world.node.host_path(&format!("/proc/{}/stat", std::process::id()));
    fs::remove_file(stat_path).expect("it was there");
    watched.set_use(&[(&greedy, 20_000)]);
    let gpu = &watched.gpu;
    let metric_line =
        |value: u32| format!(r#"windlass_shared_gpu_measured{{device="{gpu}"}} {value}"#);
    watched.until_metric(&metric_line(0)).await;
    assert!(greedy.is_running() && watched.events().is_empty());
    // Once the program is visible again, it is ended.
    prepare_proc(&watched.world.node);
    watched.until_metric(&metric_line(1)).await;
    watched.event_of("a").await;
    assert!(!greedy.wait().success());
    watched.world.agent.stop().await;
}

#[tokio::test]
async fn replicas_with_configured_memory_are_watched_by_the_kubelets_checkpoint() {
    let policy = Policy { resources: first_gpu_by_memory(10), ..policy(WatchdogAction::Kill) };
    let watched = Box::pin(WatchedNode::sharing(policy, 7, &[("a", 2), ("b", 1)])).await;
    let (mut modest, mut greedy) = (watched.program(Some("a")), watched.program(Some("b")));
    let unknown_program = watched.program(Some("f"));
    // 20 GiB are within two replicas, and 11 GiB exceed one.
    watched.set_use(&[(&modest, 20_000), (&greedy, 11_000), (&unknown_program, 30_000)]);
    let (action, note) = watched.event_of("b").await;
    assert_eq!(action, "Kill");
    assert!(note.contains("11000 MiB of") && note.contains("its share is 10240 MiB"), "{note}");
    assert!(!greedy.wait().success());
    assert!(modest.is_running());
    let limit = r#"namespace="default",kind="pod",holder="a""#;
    watched.until_metric(limit).await;
    watched.world.agent.stop().await;
}
