//! Memory limits of shares by NVIDIA's driver: the agent's document and record, and the hook as a container runtime
//! starts it.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use windlass_config::{
    Disclosed, MemoryLimitPolicy, Policy, RequiredLimit, Resources, ShareResources, WatchdogAction,
    WatchdogPolicy,
};
use windlass_core::{cdi::Spec, enforcement::Enforcement, memory_limit::MemoryLimitRecord};
use windlass_kubelet_sim::Pod;
use windlass_machine::{MachineProfile, profile::Driver};
use windlass_testkit::{GPU, Node, pod_with, until, until_allocatable, until_removed};

use crate::{
    agent::sharing::{SHARED, first_gpu_by_memory},
    shares::{World, placement_annotations},
    watchdog::prepare_proc,
};

const MEMORY: &str = "windlass.dev/gpu-memory";

const HOOK: &str = "/opt/windlass/windlass-hook";

/// First process of a container, which waits for its hooks.
struct FirstProcess(Child);

/// Processes and control groups of the simulated host.
struct Cgroups<'a>(&'a World);

fn policy(limits: MemoryLimitPolicy, action: WatchdogAction) -> Policy {
    let shares = ShareResources {
        memory: Some(MEMORY.parse().expect("a name")),
        ..ShareResources::default()
    };
    let watchdog = WatchdogPolicy { action, ..WatchdogPolicy::default() };
    Policy { shares, memory_limits: limits, watchdog, ..Policy::default() }
}

fn by_hook(at_least: RequiredLimit) -> MemoryLimitPolicy {
    MemoryLimitPolicy { hook: Some(HOOK.into()), at_least }
}

/// A node with a driver of this version, once it has its schedulable memory.
async fn world(driver: &str, policy: Policy) -> World {
    let world = world_with_gpus(driver, policy, 8).await;
    until_allocatable(&world.kubelet, MEMORY, 8 * 79).await;
    world
}

/// A node with a driver of this version, once it has this number of full GPUs.
async fn world_with_gpus(driver: &str, policy: Policy, gpus: usize) -> World {
    let mut profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
    profile.driver = Some(Driver { version: driver.to_owned(), cuda: "13.4".to_owned() });
    let prepare = |node: &mut Node| {
        prepare_proc(node);
        node.config.disclose.insert(Disclosed::Pods);
        node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    };
    Box::pin(World::prepared(&profile, policy, gpus, prepare)).await
}

/// Seven replicas of 10 GiB of the first GPU, and the other GPUs in full.
fn replicas(limits: MemoryLimitPolicy, action: WatchdogAction) -> Policy {
    let resources = first_gpu_by_memory(10);
    let watchdog = WatchdogPolicy { action, interval: Duration::from_millis(10) };
    Policy { resources, memory_limits: limits, watchdog, ..Policy::default() }
}

/// Arguments of the hook in a device of the document of GPUs, without program and command.
fn hook_arguments(world: &World, qualified: &str) -> Option<Vec<String>> {
    let name = qualified.strip_prefix("windlass.dev/gpu=")?;
    let path = world.node.config.places.cdi_dir.join("windlass.dev-gpu.json");
    let document: Spec = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let device = document.devices.into_iter().find(|device| device.name == name)?;
    let hooks = device.container_edits.hooks.into_iter();
    let hook = hooks.into_iter().find(|hook| *hook.path == *Path::new(HOOK))?;
    Some(hook.args[2..].to_vec())
}

/// The hook's record, by the document of a share.
fn record(document: &Value) -> PathBuf {
    let hooks = document["devices"][0]["containerEdits"]["hooks"].as_array().expect("hooks");
    let own_hooks: Vec<_> = hooks.iter().filter(|hook| hook["path"] == HOOK).collect();
    let [hook] = own_hooks[..] else { panic!("{hooks:?}") };
    assert_eq!(hook["hookName"], "createRuntime");
    let arguments: Vec<_> =
        hook["args"].as_array().expect("arguments").iter().filter_map(Value::as_str).collect();
    let ["windlass-hook", "memory-limit", "--record", record] = arguments[..] else {
        panic!("{arguments:?}")
    };
    record.into()
}

// === impl FirstProcess ===

impl FirstProcess {
    fn start() -> Self {
        let program = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn();
        Self(program.expect("a program"))
    }
}

impl Drop for FirstProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Cgroups ===

impl Cgroups<'_> {
    /// A container of the pod, before its start, and its control group.
    fn container(&self, pod: &str, id: &str) -> (FirstProcess, PathBuf) {
        let (container, group) = (FirstProcess::start(), format!("/kubepods/pod{pod}/{id}"));
        let node = &self.0.node;
        node.write(&format!("/proc/{}/cgroup", container.0.id()), &format!("0::{group}\n"));
        node.write("/proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.write("/proc/sys/kernel/random/boot_id", "6a1f0e3c-0000-4000-8000-000000000001\n");
        node.write(&format!("/sys/fs/cgroup{group}/cgroup.controllers"), "memory dmem\n");
        (container, node.host_path(&format!("/sys/fs/cgroup{group}")))
    }

    /// Runs the hook as the container runtime does.
    fn run_hook(
        &self,
        record: &Path,
        container: &FirstProcess,
        id: &str,
    ) -> Result<PathBuf, String> {
        self.run_hook_for(record, 1, container, id)
    }

    /// As [`Self::run_hook`], for a container with this number of replicas.
    fn run_hook_for(
        &self,
        record: &Path,
        replicas: u32,
        container: &FirstProcess,
        id: &str,
    ) -> Result<PathBuf, String> {
        let state = json!({"ociVersion": "1.2.0", "id": id, "status": "creating",
                           "pid": container.0.id(), "bundle": "/"});
        let state = Cursor::new(state.to_string());
        let result = windlass_hook::limit(record, replicas, state, &self.0.node.host_path("/proc"));
        result.map_err(|error| windlass_host::causes(&error))
    }
}

#[tokio::test]
async fn a_hook_limits_the_container_of_a_share_before_its_start() {
    let policy = policy(by_hook(RequiredLimit::Driver), WatchdogAction::Observe);
    let world = world("615.10", policy).await;
    let gpu = world.gpus[0].clone();
    let uid = "a".repeat(32);
    let pod = Pod { uid: uid.clone(), ..pod_with("a", MEMORY, 8) };
    world.admit(pod, &placement_annotations(&gpu)).await;
    let record = record(&world.start_by_uid(&uid, "main").await.remove(0));
    let cgroups = Cgroups(&world);
    let (container, group) = cgroups.container(&uid, "c0ffee");
    let note = cgroups.run_hook(&record, &container, "c0ffee").expect("limited");
    let machine = world.node.machine.model().expect("a machine");
    let gpu = machine.gpus.iter().find(|it| it.uuid == gpu.as_str()).expect("it is there");
    assert_eq!(gpu.memory_limits[group.to_str().expect("text")].hard, 8 << 30);
    assert!(record.exists() && note.exists());
    let metric_line = r#"holder="a",enforcement="driver"} 8589934592"#;
    until("the limit in the metrics", async || {
        let text = crate::agent::admin::get(&world.agent, "/metrics").await.body;
        if text.contains(metric_line) { Ok(()) } else { Err(text.contains("enforcement=")) }
    })
    .await;
    // The record and the hook's notes are removed with the pod.
    world.kubelet.delete_pod(&uid).await;
    until_removed(&record).await;
    until_removed(&note).await;
    world.agent.stop().await;
}

#[tokio::test]
async fn a_container_whose_limit_the_driver_does_not_apply_is_refused() {
    let world =
        world("615.10", policy(by_hook(RequiredLimit::None), WatchdogAction::Observe)).await;
    let gpu = world.gpus[0].clone();
    let record = record(&world.run("a", 8, &placement_annotations(&gpu)).await);
    let cgroups = Cgroups(&world);
    let (container, _) = cgroups.container("a-uid", "c0ffee");
    let machine = world.node.machine.model().expect("a machine");
    let index = machine.gpus.iter().position(|it| it.uuid == gpu.as_str()).expect("it is there");
    world.node.inject(&format!("limit:ignored@{index}"));
    let error = cgroups.run_hook(&record, &container, "c0ffee").expect_err("the limits differ");
    assert!(error.contains("the driver reads back no limit"), "{error}");
    world.agent.stop().await;
}

#[tokio::test]
async fn without_the_driver_a_container_starts_only_if_a_weaker_limit_is_allowed() {
    for (at_least, action, is_started) in [
        (RequiredLimit::None, WatchdogAction::Observe, true),
        (RequiredLimit::Watched, WatchdogAction::Observe, false),
        (RequiredLimit::Watched, WatchdogAction::Kill, true),
        (RequiredLimit::Driver, WatchdogAction::Kill, false),
    ] {
        let world = world("570.133.20", policy(by_hook(at_least), action)).await;
        world.admit(pod_with("a", MEMORY, 8), &placement_annotations(&world.gpus[0])).await;
        if is_started {
            let document = world.start("a", "main").await.remove(0);
            let edits = document["devices"][0]["containerEdits"].to_string();
            assert!(!edits.contains(HOOK), "{at_least:?}: {edits}");
        } else {
            let result = world.kubelet.start_container("a-uid", "main").await;
            let error = result.expect_err("not started").to_string();
            assert!(error.contains("NVIDIA's driver limits no memory"), "{error}");
        }
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn the_next_agent_retains_the_records_of_existing_shares_and_removes_others() {
    let world = world("615.10", policy(by_hook(RequiredLimit::Driver), WatchdogAction::Off)).await;
    let record = record(&world.run("a", 8, &placement_annotations(&world.gpus[0])).await);
    let orphan = record.with_file_name("0123456789abcdef.json");
    let write_orphan = || {
        fs::copy(&record, &orphan).expect("copied");
    };
    let world = world.restart(write_orphan).await;
    assert!(record.exists() && !orphan.exists());
    world.agent.stop().await;
}

#[tokio::test]
async fn replicas_with_configured_memory_are_limited_by_their_number() {
    let policy = replicas(by_hook(RequiredLimit::Driver), WatchdogAction::Observe);
    let world = world_with_gpus("615.10", policy, 7).await;
    until_allocatable(&world.kubelet, SHARED, 7).await;
    let gpu = crate::agent::world::gpu_id(&world.agent, 0);
    let state = world.agent.state.borrow().clone();
    assert_eq!(state.device_offers()[gpu.as_str()].enforcement, Some(Enforcement::Driver));
    assert_eq!(state.weakest_enforcement(), Some(Enforcement::Driver));
    let uid = "a".repeat(32);
    let pod = Pod { uid: uid.clone(), ..pod_with("a", SHARED, 2) };
    world.kubelet.admit(pod).await.expect("admitted");
    let grant = world.kubelet.start_container(&uid, "main").await.expect("started");
    let [full_gpu, limited_device] = grant.cdi_devices.as_slice() else { panic!("{grant:?}") };
    assert_eq!(full_gpu, &format!("windlass.dev/gpu={gpu}"));
    assert_eq!(limited_device, &format!("windlass.dev/gpu={gpu}-x2"));
    let arguments = hook_arguments(&world, limited_device).expect("a hook");
    let [option, record, replicas_option, count] = arguments.as_slice() else {
        panic!("{arguments:?}")
    };
    assert_eq!((&**option, &**replicas_option, &**count), ("--record", "--replicas", "2"));
    let cgroups = Cgroups(&world);
    let (container, group) = cgroups.container(&uid, "c0ffee");
    let record = Path::new(record);
    cgroups.run_hook_for(record, 2, &container, "c0ffee").expect("limited");
    let machine = world.node.machine.model().expect("a machine");
    let gpu_state = machine.gpus.iter().find(|it| it.uuid == gpu.as_str()).expect("it is there");
    assert_eq!(gpu_state.memory_limits[group.to_str().expect("text")].hard, 20 << 30);
    let metric_line = format!(r#"holder="{uid}",enforcement="driver"}} {}"#, 20_u64 << 30);
    until("the limit in the metrics", async || {
        let text = crate::agent::admin::get(&world.agent, "/metrics").await.body;
        if text.contains(&metric_line) { Ok(()) } else { Err(text.contains("enforcement=")) }
    })
    .await;
    world.agent.stop().await;
}

#[tokio::test]
async fn a_container_that_starts_again_keeps_its_limit_after_a_change_of_rules() {
    let policy = replicas(by_hook(RequiredLimit::Driver), WatchdogAction::Off);
    let mut world = world_with_gpus("615.10", policy, 7).await;
    until_allocatable(&world.kubelet, SHARED, 7).await;
    world.kubelet.admit(pod_with("a", SHARED, 1)).await.expect("admitted");
    let grant = world.kubelet.start_container("a-uid", "main").await.expect("started");
    let name = grant.cdi_devices[1].clone();
    let before = hook_arguments(&world, &name).expect("a hook");
    let limit = || MemoryLimitRecord::parse(&fs::read(&before[1]).ok()?).ok();
    let recorded = limit().expect("a record");
    // The next agents offer replicas of other memory, the full GPU, and no limits. The container still has its limit.
    for (resources, hook) in [
        (first_gpu_by_memory(20), true),
        (Resources::Default, true),
        (first_gpu_by_memory(10), false),
        (Resources::Default, false),
    ] {
        world.agent.stop().await;
        world.node.config.policy.resources = resources;
        world.node.config.policy.memory_limits =
            if hook { by_hook(RequiredLimit::Driver) } else { MemoryLimitPolicy::default() };
        world.agent = world.node.start_agent();
        until_allocatable(&world.kubelet, GPU, 7).await;
        assert_eq!(hook_arguments(&world, &name).as_ref(), Some(&before));
        assert_eq!(limit().as_ref(), Some(&recorded));
    }
    world.kubelet.delete_pod("a-uid").await;
    until_allocatable(&world.kubelet, GPU, 8).await;
    until_removed(Path::new(&before[1])).await;
    until("no hook in the document", async || hook_arguments(&world, &name).map_or(Ok(()), Err))
        .await;
    world.agent.stop().await;
}

#[tokio::test]
async fn replicas_that_the_driver_cannot_limit_are_refused_if_its_limit_is_required() {
    for (at_least, action, refusal) in [
        (RequiredLimit::None, WatchdogAction::Observe, None),
        (RequiredLimit::Watched, WatchdogAction::Kill, None),
        (RequiredLimit::Driver, WatchdogAction::Kill, Some("NVIDIA's driver limits no memory")),
    ] {
        let world = world_with_gpus("570.133.20", replicas(by_hook(at_least), action), 7).await;
        until_allocatable(&world.kubelet, SHARED, 7).await;
        let admitted = world.kubelet.admit(pod_with("a", SHARED, 1)).await;
        match (admitted, refusal) {
            (Ok(_), None) => {}
            (Err(rejection), Some(text)) => {
                assert!(rejection.message.contains(text), "{rejection}");
            }
            (admitted, _) => panic!("{at_least:?}: {admitted:?}"),
        }
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn a_pod_may_require_a_stronger_limit_than_the_configuration() {
    let limits = by_hook(RequiredLimit::None);
    let world = world("570.133.20", policy(limits, WatchdogAction::Kill)).await;
    for (name, enforcement, refusal) in [
        ("a", "watched", None),
        ("b", "driver", Some("`driver` is required by windlass.dev/enforcement")),
        (
            "c",
            "hard",
            Some("\"hard\" is not an enforcement: write none, watched, dmem, mps, driver or mig"),
        ),
    ] {
        let mut annotations = placement_annotations(&world.gpus[0]);
        annotations["windlass.dev/enforcement"] = enforcement.into();
        world.admit(pod_with(name, MEMORY, 8), &annotations).await;
        match refusal {
            None => drop(world.start(name, "main").await),
            Some(text) => {
                let result = world.kubelet.start_container(&format!("{name}-uid"), "main").await;
                let error = result.expect_err("not started").to_string();
                assert!(error.contains(text), "{error}");
            }
        }
    }
    world.agent.stop().await;
}
