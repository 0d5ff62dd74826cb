//! Memory limits of shares by NVIDIA's driver: the agent's document and record, and the hook as a container runtime starts
//! it.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use windlass_config::{
    Disclosed, MemoryLimitPolicy, Policy, RequiredLimit, ShareResources, WatchdogAction,
    WatchdogPolicy,
};
use windlass_kubelet_sim::Pod;
use windlass_machine::{MachineProfile, profile::Driver};
use windlass_testkit::{Node, allocatable, pod_with, until, vanishes};

use crate::{
    shares::{World, placed},
    watchdog::prepare_proc,
};

const MEMORY: &str = "windlass.dev/gpu-memory";

const HOOK: &str = "/opt/windlass/windlass-hook";

/// First process of a container, which waits for its hooks.
struct Waiting(Child);

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

/// A node with a driver of this version.
async fn world(driver: &str, policy: Policy) -> World {
    let mut profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
    profile.driver = Some(Driver { version: driver.to_owned(), cuda: "13.4".to_owned() });
    let prepare = |node: &mut Node| {
        prepare_proc(node);
        node.config.disclose.insert(Disclosed::Pods);
        node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    };
    let world = Box::pin(World::prepared(&profile, policy, 8, prepare)).await;
    allocatable(&world.kubelet, MEMORY, 8 * 79).await;
    world
}

/// The hook's record, by the document of a share.
fn record(document: &Value) -> PathBuf {
    let hooks = document["devices"][0]["containerEdits"]["hooks"].as_array().expect("hooks");
    let ours: Vec<_> = hooks.iter().filter(|hook| hook["path"] == HOOK).collect();
    let [hook] = ours[..] else { panic!("{hooks:?}") };
    assert_eq!(hook["hookName"], "createRuntime");
    let arguments: Vec<_> =
        hook["args"].as_array().expect("arguments").iter().filter_map(Value::as_str).collect();
    let ["windlass-hook", "memory-limit", "--record", record] = arguments[..] else {
        panic!("{arguments:?}")
    };
    record.into()
}

// === impl Waiting ===

impl Waiting {
    fn start() -> Self {
        let program = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn();
        Self(program.expect("a program"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Cgroups ===

impl Cgroups<'_> {
    /// A container of the pod, before its start, and its control group.
    fn container(&self, pod: &str, id: &str) -> (Waiting, PathBuf) {
        let (container, group) = (Waiting::start(), format!("/kubepods/pod{pod}/{id}"));
        let node = &self.0.node;
        node.write(&format!("/proc/{}/cgroup", container.0.id()), &format!("0::{group}\n"));
        node.write("/proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.write("/proc/sys/kernel/random/boot_id", "6a1f0e3c-0000-4000-8000-000000000001\n");
        node.write(&format!("/sys/fs/cgroup{group}/cgroup.controllers"), "memory dmem\n");
        (container, node.host(&format!("/sys/fs/cgroup{group}")))
    }

    /// Runs the hook as the container runtime does.
    fn run_hook(&self, record: &Path, container: &Waiting, id: &str) -> Result<PathBuf, String> {
        let state = json!({"ociVersion": "1.2.0", "id": id, "status": "creating",
                           "pid": container.0.id(), "bundle": "/"});
        let state = Cursor::new(state.to_string());
        let limited = windlass_hook::limit(record, state, &self.0.node.host("/proc"));
        limited.map_err(|error| windlass_host::causes(&error))
    }
}

#[tokio::test]
async fn a_share_has_a_hook_that_limits_its_container_before_it_starts() {
    let policy = policy(by_hook(RequiredLimit::Driver), WatchdogAction::Observe);
    let world = world("615.10", policy).await;
    let gpu = world.gpus[0].clone();
    let uid = "a".repeat(32);
    let pod = Pod { uid: uid.clone(), ..pod_with("a", MEMORY, 8) };
    world.admit(pod, &placed(&gpu)).await;
    let record = record(&world.start_of(&uid, "main").await.remove(0));
    let cgroups = Cgroups(&world);
    let (container, group) = cgroups.container(&uid, "c0ffee");
    let note = cgroups.run_hook(&record, &container, "c0ffee").expect("limited");
    let machine = world.node.machine.model().expect("a machine");
    let gpu = machine.gpus.iter().find(|it| it.uuid == gpu.as_str()).expect("it is there");
    assert_eq!(gpu.memory_limits[group.to_str().expect("text")].hard, 8 << 30);
    assert!(record.exists() && note.exists());
    let limited = r#"holder="a",enforcement="driver"} 8589934592"#;
    until("the limit in the metrics", async || {
        let text = crate::agent::admin::get(&world.agent, "/metrics").await.body;
        if text.contains(limited) { Ok(()) } else { Err(text.contains("enforcement=")) }
    })
    .await;
    // With the pod its record and the hook's notes go.
    world.kubelet.delete(&uid).await;
    vanishes(&record).await;
    vanishes(&note).await;
    world.agent.stop().await;
}

#[tokio::test]
async fn a_container_whose_limit_the_driver_does_not_keep_is_refused() {
    let world =
        world("615.10", policy(by_hook(RequiredLimit::None), WatchdogAction::Observe)).await;
    let gpu = world.gpus[0].clone();
    let record = record(&world.run("a", 8, &placed(&gpu)).await);
    let cgroups = Cgroups(&world);
    let (container, _) = cgroups.container("a-uid", "c0ffee");
    let machine = world.node.machine.model().expect("a machine");
    let index = machine.gpus.iter().position(|it| it.uuid == gpu.as_str()).expect("it is there");
    world.node.inject(&format!("limit:ignored@{index}"));
    let refused = cgroups.run_hook(&record, &container, "c0ffee").expect_err("it differs");
    assert!(refused.contains("the driver reads back no limit"), "{refused}");
    world.agent.stop().await;
}

#[tokio::test]
async fn without_the_driver_a_container_starts_only_where_less_will_do() {
    for (at_least, action, starts) in [
        (RequiredLimit::None, WatchdogAction::Observe, true),
        (RequiredLimit::Watched, WatchdogAction::Observe, false),
        (RequiredLimit::Watched, WatchdogAction::Kill, true),
        (RequiredLimit::Driver, WatchdogAction::Kill, false),
    ] {
        let world = world("570.133.20", policy(by_hook(at_least), action)).await;
        world.admit(pod_with("a", MEMORY, 8), &placed(&world.gpus[0])).await;
        if starts {
            let document = world.start("a", "main").await.remove(0);
            let edits = document["devices"][0]["containerEdits"].to_string();
            assert!(!edits.contains(HOOK), "{at_least:?}: {edits}");
        } else {
            let refused = world.kubelet.start_container("a-uid", "main").await;
            let refused = refused.expect_err("not started").to_string();
            assert!(refused.contains("NVIDIA's driver limits no memory"), "{refused}");
        }
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn the_next_agent_keeps_the_records_of_its_shares_and_removes_others() {
    let world = world("615.10", policy(by_hook(RequiredLimit::Driver), WatchdogAction::Off)).await;
    let record = record(&world.run("a", 8, &placed(&world.gpus[0])).await);
    let left = record.with_file_name("0123456789abcdef.json");
    let leave = || {
        fs::copy(&record, &left).expect("copied");
    };
    let world = world.restart(leave).await;
    assert!(record.exists() && !left.exists());
    world.agent.stop().await;
}
