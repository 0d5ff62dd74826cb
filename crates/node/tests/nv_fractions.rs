//! GPU fractions of KAI's scheduler, enforced at a container runtime that speaks NRI.

mod containerd;
mod runtime;

use std::{fs, future::ready, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::{Node as NodeObject, NodeCondition};
use serde_json::json;
use tracing::Level;
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{
    Disclosed, MemoryLimitPolicy, NvFractions, Policy, RequiredLimit, WatchdogAction,
    WatchdogPolicy,
};
use windlass_core::memory_limit::MemoryLimitRecord;
use windlass_machine::{
    MachineProfile,
    profile::Driver,
    state::{Model, Process},
};
use windlass_testkit::{LogCapture, Node, RunningAgent, until};

use self::runtime::{Adjusted, Runtime, container, ended_container, pod};
use crate::{agent::admin, watchdog::prepare_proc};

/// Type of the condition that KAI waits for.
const READY: &str = "gpu-fractioning.nvidia.com/Ready";

pub(crate) const HOOK: &str = "/opt/windlass/windlass-hook";

/// An agent that is a plugin of a runtime.
pub(crate) struct World {
    api: ApiServer,
    node: Node,
    agent: RunningAgent,
    /// UUIDs of the GPUs.
    gpus: Vec<String>,
}

fn by_hook(at_least: RequiredLimit) -> Policy {
    let memory_limits = MemoryLimitPolicy { hook: Some(HOOK.into()), at_least };
    let watchdog =
        WatchdogPolicy { action: WatchdogAction::Kill, interval: Duration::from_millis(10) };
    Policy { memory_limits, watchdog, ..Policy::default() }
}

/// Annotations of a fraction of this GPU for some containers.
fn fraction(gpu: &str, limits: &[(&str, &str)]) -> Vec<(String, String)> {
    let annotations = limits.iter().flat_map(|(container, limit)| {
        let key = |suffix: &str| format!("nvidia.com/container.{container}.{suffix}");
        [(key("gpu-memory.limit"), (*limit).to_owned()), (key("gpus.devices"), gpu.to_owned())]
    });
    annotations.collect()
}

// === impl World ===

impl World {
    /// An agent on a DGX H100 with a driver of this version. No runtime serves its socket yet.
    async fn new(driver: &str, policy: Policy) -> Self {
        Self::on("dgx-h100", driver, policy).await
    }

    /// An agent on a machine of this profile, with a driver of this version.
    async fn on(machine: &str, driver: &str, policy: Policy) -> Self {
        let api = ApiServer::start();
        let object = json!({"metadata": {"name": "n1"}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
        ]}});
        api.objects().put::<NodeObject>(&serde_json::from_value(object).expect("a Node"));
        let mut profile = MachineProfile::named(machine).expect("a shipped profile");
        profile.driver = Some(Driver { version: driver.to_owned(), cuda: "13.4".to_owned() });
        let mut node = Node::new(&profile, policy).with_cluster("n1", &api.kubeconfig());
        prepare_proc(&node);
        node.config.disclose.insert(Disclosed::Pods);
        node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        let socket = node.folder.join("nri.sock");
        node.config.nv_fractions = NvFractions { enabled: true, socket, ..NvFractions::default() };
        let agent = node.start_agent();
        let state = agent
            .until(|state| state.inventory.is_complete() && state.limit_support.driver.is_some())
            .await;
        let gpus = state.inventory.devices.iter().filter(|device| device.kind.is_gpu());
        let gpus = gpus.map(|device| device.id.to_string()).collect();
        Self { api, node, agent, gpus }
    }

    /// Socket of the node's runtime.
    fn socket(&self) -> PathBuf {
        self.node.config.nv_fractions.socket.clone()
    }

    fn conditions(&self) -> Vec<NodeCondition> {
        let node = self.api.objects().get::<NodeObject>("", "n1").expect("a Node");
        node.status.and_then(|status| status.conditions).unwrap_or_default()
    }

    /// Waits until the condition has this status and reason.
    async fn until_condition(&self, status: &str, reason: &str) -> NodeCondition {
        until("the condition", async || {
            let conditions = self.conditions();
            let condition = conditions.iter().find(|condition| condition.type_ == READY);
            let condition =
                condition.filter(|it| it.status == status && it.reason.as_deref() == Some(reason));
            condition.cloned().ok_or(conditions.clone())
        })
        .await
    }

    /// Path of the record of a container.
    fn record(&self, id: &str) -> PathBuf {
        self.node.config.places.state_dir.join(format!("memory-limits/fractions/{id}.json"))
    }

    /// Waits for a line of the metrics.
    async fn until_metric(&self, line: &str) {
        until(line, async || {
            let text = admin::get(&self.agent, "/metrics").await.body;
            let shares: Vec<_> =
                text.lines().filter(|line| line.contains("share_")).map(str::to_owned).collect();
            if text.contains(line) { Ok(()) } else { Err(shares) }
        })
        .await;
    }

    /// Line of the metrics with the limit of a pod on the first GPU.
    fn limit(&self, pod: &str, mib: u64) -> String {
        let gpu = &self.gpus[0];
        let labels = format!(r#"device="{gpu}",namespace="default",kind="pod",holder="{pod}""#);
        format!(
            r#"windlass_share_memory_limit_bytes{{{labels},enforcement="watched"}} {}"#,
            mib << 20
        )
    }
}

#[tokio::test]
async fn a_container_gets_its_gpu_amounts_and_hook_and_its_end_removes_the_record() {
    let world = World::new("615.10", by_hook(RequiredLimit::Driver)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let gpu = &world.gpus[1];
    let mut annotations = fraction("1", &[("main", "8Gi")]);
    annotations.push(("nvidia.com/container.main.gpu-memory.request".into(), "4Gi".into()));
    let owner = pod("a", "uid-a", annotations);
    let Adjusted { env, hooks } =
        runtime.create(&owner, &container("c0ffee", "main", "a")).await.expect("adjusted");
    let value = |name: &str| env.get(name).map(String::as_str);
    assert_eq!(value("NVIDIA_VISIBLE_DEVICES"), Some(&**gpu), "an index becomes a UUID");
    for (name, mib) in [("REQUEST", "4096"), ("LIMIT", "8192")] {
        assert_eq!(value(&format!("NVIDIA_GPU_MEMORY_{name}")), Some(mib));
        assert_eq!(value(&format!("NVIDIA_GPU_MEMORY_{name}S")), Some(mib));
    }
    let path = world.record("c0ffee");
    let arguments = ["windlass-hook", "memory-limit", "--record", path.to_str().expect("text")];
    let [hook] = &hooks[..] else { panic!("{hooks:?}") };
    assert_eq!(
        (&*hook.path, hook.args.iter().map(String::as_str).collect::<Vec<_>>()),
        (HOOK, arguments.to_vec())
    );
    let record = MemoryLimitRecord::parse(&fs::read(&path).expect("there")).expect("a record");
    let [limit] = record.gpus() else { panic!("{record:?}") };
    assert_eq!((&limit.uuid, limit.hard_mib), (gpu, 8192));

    let other = runtime.create(&owner, &container("beef", "sidecar", "a")).await;
    assert_eq!(other.expect("unchanged"), Adjusted::default());
    runtime.stop(&owner, &container("c0ffee", "main", "a")).await;
    assert!(!path.exists(), "the record is removed with its container");
    world.agent.stop().await;
}

#[tokio::test]
async fn a_container_that_cannot_be_limited_is_refused_with_the_reason() {
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let gpu = &world.gpus[0];
    for (gpu, limit, expected) in [
        (gpu.as_str(), "4GB", "\"4GB\" is no quantity of memory: write one like 4Gi"),
        (gpu, "1k", "1k is less than 1 MiB"),
        (gpu, "200Gi", "its limit of 204800 MiB is above the 81559 MiB of"),
        ("GPU-unknown", "1Gi", "this node has no GPU \"GPU-unknown\""),
        ("8", "1Gi", "this node has no GPU \"8\""),
        ("MIG-1", "1Gi", "MIG-1 is a MIG instance"),
        ("", "99999999999999999999999999999999999999999Gi", "is no quantity"),
    ] {
        let owner = pod("a", "uid-a", fraction(gpu, &[("main", limit)]));
        let refusal = runtime.create(&owner, &container("c0ffee", "main", "a")).await;
        let refusal = refusal.expect_err(limit);
        assert!(
            refusal.starts_with("windlass refuses container main of pod default/a: "),
            "{refusal}"
        );
        assert!(refusal.contains(expected), "{refusal}");
    }
    let mut annotations = fraction(gpu, &[("main", "1Gi")]);
    annotations.push(("windlass.dev/enforcement".into(), "mig".into()));
    let owner = pod("a", "uid-a", annotations);
    let refusal = runtime.create(&owner, &container("c0ffee", "main", "a")).await;
    let refusal = refusal.expect_err("the driver is weaker");
    assert!(refusal.contains("`mig` is required by windlass.dev/enforcement"), "{refusal}");
    let owner = pod("a", "uid-a", fraction(gpu, &[("main", "1Gi")]));
    let refusal = runtime.create(&owner, &container("../x", "main", "a")).await;
    assert!(refusal.expect_err("a path").contains("is not a container id"));
    world.agent.stop().await;
}

#[tokio::test]
async fn a_gpu_in_mig_mode_has_no_fractions() {
    let world = World::on("mig-pcie", "615.10", by_hook(RequiredLimit::None)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let owner = pod("a", "uid-a", fraction("0", &[("main", "1Gi")]));
    let refusal = runtime.create(&owner, &container("c0ffee", "main", "a")).await;
    let refusal = refusal.expect_err("it has no limits");
    assert!(refusal.ends_with("is in MIG mode, in which the driver limits no memory"), "{refusal}");
    world.agent.stop().await;
}

#[tokio::test]
async fn an_old_driver_sets_no_limit_and_containers_that_require_one_are_refused() {
    let world = World::new("570.10", by_hook(RequiredLimit::None)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let condition = world.until_condition("False", "DriverLimitsNoMemory").await;
    assert!(condition.message.is_some_and(|it| it.contains("615 or newer")));
    let mut annotations = fraction(&world.gpus[0], &[("main", "1Gi")]);
    let owner = pod("a", "uid-a", annotations.clone());
    let adjustment = runtime.create(&owner, &container("c0", "main", "a")).await.expect("watched");
    assert!(adjustment.hooks.is_empty() && !adjustment.env.is_empty(), "{adjustment:?}");
    world.until_metric(&world.limit("a", 1024)).await;
    annotations.push(("windlass.dev/enforcement".into(), "driver".into()));
    let owner = pod("b", "uid-b", annotations);
    let refusal = runtime.create(&owner, &container("c1", "main", "b")).await;
    let refusal = refusal.expect_err("the driver is too old");
    assert!(refusal.contains("`driver` is required by windlass.dev/enforcement"), "{refusal}");
    world.agent.stop().await;
}

#[tokio::test]
async fn init_containers_and_containers_of_a_pod_count_together_while_they_exist() {
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let limits = [("init", "1Gi"), ("a", "2Gi"), ("b", "4Gi")];
    let owner = pod("p", "uid-p", fraction(&world.gpus[0], &limits));
    runtime.create(&owner, &container("c0", "init", "p")).await.expect("adjusted");
    world.until_metric(&world.limit("p", 1024)).await;
    runtime.stop(&owner, &container("c0", "init", "p")).await;
    for (id, name) in [("c1", "a"), ("c2", "b")] {
        runtime.create(&owner, &container(id, name, "p")).await.expect("adjusted");
    }
    world.until_metric(&world.limit("p", 6144)).await;
    // The first creation of this container failed after the agent's answer.
    runtime.create(&owner, &container("c3", "b", "p")).await.expect("adjusted");
    assert!(!world.record("c2").exists());
    world.until_metric(&world.limit("p", 6144)).await;
    runtime.remove_sandbox(&owner).await;
    assert!(!world.record("c1").exists() && !world.record("c3").exists());
    world.agent.stop().await;
}

#[tokio::test]
async fn a_pod_above_its_fraction_is_a_violation() {
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    let mut runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let uid = format!("{:0>32}", "a");
    let owner = pod("a", &uid, fraction(&world.gpus[0], &[("main", "1Gi")]));
    runtime.create(&owner, &container("c0ffee", "main", "a")).await.expect("adjusted");
    let mut program = std::process::Command::new("sleep").arg("600").spawn().expect("a program");
    world
        .node
        .write(&format!("/proc/{}/cgroup", program.id()), &format!("0::/kubepods/pod{uid}/c0ffee"));
    let change = |machine: &mut Model| {
        let mut gpus = machine.gpus.iter_mut();
        let gpu = gpus.find(|gpu| gpu.uuid == world.gpus[0]).expect("it is there");
        gpu.live.processes = vec![Process {
            pid: program.id(),
            memory_mib: 4000,
            sm_percent: 0,
            gpu_instance: None,
        }];
    };
    world.node.machine.update(change).expect("changed");
    let exit_status =
        until("the watchdog ends it", || ready(program.try_wait().expect("a child").ok_or(())));
    assert!(!exit_status.await.success());
    world.until_metric(r#"windlass_share_memory_violations_total{action="kill"} 1"#).await;
    world.agent.stop().await;
}

#[tokio::test]
async fn the_agent_reconnects_to_a_restarted_runtime_and_learns_its_containers() {
    let log = LogCapture::start(Level::WARN);
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    let condition = world.until_condition("False", "NriNotConnected").await;
    let message = condition.message.expect("a message");
    assert!(message.contains("enable NRI in the container runtime"), "{message}");
    let runtime = Runtime::start(&world.socket()).synchronize(&[], &[]).await;
    let ready = world.until_condition("True", "MemoryLimited").await;
    assert!(ready.message.is_some_and(|it| it.contains("double 1.0")));
    drop(runtime);
    world.until_condition("False", "NriNotConnected").await;
    log.until(1, "no connection to NRI").await;

    let owner = pod("a", "uid-a", fraction(&world.gpus[0], &[("main", "3Gi")]));
    let containers = [container("c0", "main", "a"), ended_container("c1", "main", "a")];
    let runtime = Runtime::start(&world.socket()).synchronize(&[owner], &containers).await;
    world.until_condition("True", "MemoryLimited").await;
    world.until_metric(&world.limit("a", 3072)).await;
    let node_conditions = world.conditions();
    assert_eq!(
        node_conditions.len(),
        2,
        "the condition of the kubelet remains: {node_conditions:?}"
    );

    world.agent.stop().await;
    let api = &world.api;
    let node = api.objects().get::<NodeObject>("", "n1").expect("a Node");
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|it| it.type_ == READY).expect("written");
    assert_eq!((&*ready.status, ready.reason.as_deref()), ("Unknown", Some("AgentStopped")));
    drop(runtime);
}

#[tokio::test]
async fn the_agent_reconnects_to_a_runtime_that_violates_the_protocol() {
    let world = World::new("615.10", by_hook(RequiredLimit::None)).await;
    for bytes in [&[0, 0, 0, 1, 255, 255, 255, 255][..], &[1; 64]] {
        Runtime::start(&world.socket()).send_invalid(bytes).await;
    }
    let refusing = Runtime::start(&world.socket());
    refusing.refuse("plugins are not allowed").await;
    let message = until("the reason", async || {
        let conditions = world.conditions();
        let condition = conditions.iter().find(|it| it.type_ == READY);
        let message = condition.and_then(|it| it.message.clone());
        message.filter(|it| it.contains("plugins are not allowed")).ok_or(conditions)
    });
    message.await;
    drop(Runtime::start(&world.socket()).synchronize(&[], &[]).await);
    world.agent.stop().await;
}
