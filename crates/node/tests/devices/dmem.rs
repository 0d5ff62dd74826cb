//! Replicas of AMD's and Intel's GPUs with a given memory: limits by the kernel's controller for device memory, and use by
//! the files that DRM drivers describe.

use std::{
    cell::RefCell,
    fs,
    io::Cursor,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::json;
use windlass_core::{
    cdi::Spec, device::Device, enforcement::Enforcement, memory_limit::MemoryLimitRecord,
};
use windlass_kubelet_sim::{Kubelet, Pod};
use windlass_machine::MachineProfile;
use windlass_testkit::{Node, Running, allocatable, pod_with, until};

use crate::{
    devices::world::{measured_until, policy},
    watchdog::prepare_proc,
};

const HOOK: &str = "/opt/windlass/windlass-hook";

const SHARED: &str = "example.com/gpu.shared";

/// Id of the container at the runtime.
const CONTAINER: &str = "c0ffee";

const MI300X: Shared = Shared {
    profile: "mi300x",
    source: "amd",
    region: "drm/0000:05:00.0/vram",
    memory: "drm-resident-vram",
    // 196592 MiB have room for 19 times 10 GiB.
    replicas: 19,
};
const FLEX: Shared = Shared {
    profile: "flex-170",
    source: "intel",
    region: "drm/0000:3a:00.0/vram0",
    memory: "drm-total-vram0",
    // 16384 MiB have room for one.
    replicas: 1,
};

/// First GPU of a vendor's, of which each replica has 10 GiB.
#[derive(Clone, Copy)]
struct Shared {
    profile: &'static str,
    source: &'static str,
    region: &'static str,
    /// Key of a client's memory.
    memory: &'static str,
    replicas: usize,
}

/// A node with such GPUs.
struct World {
    shared: Shared,
    node: Node,
    kubelet: Kubelet,
    agent: Running,
}

/// A program, in a container or of the host.
struct Program(Child);

fn uid() -> String {
    "a".repeat(32)
}

// === impl Program ===

impl Program {
    fn start() -> Self {
        let child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn();
        Self(child.expect("a program"))
    }

    fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl World ===

impl World {
    /// A node whose kernel has these regions; without the controller for `None`.
    async fn new(shared: Shared, regions: Option<&str>, at_least: &str, action: &str) -> Self {
        const PTRACE: &str = "CapEff:\t0000000000080000\n";
        Self::of_agent(PTRACE, shared, regions, at_least, action).await
    }

    /// The same for an agent with these capabilities.
    async fn of_agent(
        capabilities: &str,
        shared: Shared,
        regions: Option<&str>,
        at_least: &str,
        action: &str,
    ) -> Self {
        let config = format!(
            "resources: [{{name: {SHARED}, devices: {{source: {}, index: [0]}}, sharing: {{method: timeSlicing, memory: 10Gi}}}}]\n\
             memoryLimits: {{hook: {HOOK}, atLeast: {at_least}}}\n\
             watchdog: {{action: {action}}}\n",
            shared.source
        );
        let mut policy = policy(&config);
        // A shorter interval than a file may have.
        policy.watchdog.interval = Duration::from_millis(10);
        let profile = MachineProfile::named(shared.profile).expect("a shipped profile");
        let mut node = Node::new(&profile, policy);
        node.config.disclose.insert(windlass_config::Disclosed::Pods);
        node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        prepare_proc(&node);
        node.write(&format!("/proc/{}/status", std::process::id()), capabilities);
        let controllers = if regions.is_some() { "memory dmem\n" } else { "memory\n" };
        for cgroup in ["", "/kubepods", &format!("/kubepods/pod{}", uid())] {
            let folder = format!("/sys/fs/cgroup{cgroup}");
            node.write(&format!("{folder}/cgroup.controllers"), controllers);
            node.write(&format!("{folder}/cgroup.subtree_control"), "memory\n");
        }
        if let Some(regions) = regions {
            node.write("/sys/fs/cgroup/dmem.capacity", regions);
        }
        let (kubelet, agent) = (node.kubelet(), node.agent());
        allocatable(&kubelet, SHARED, shared.replicas).await;
        Self { shared, node, kubelet, agent }
    }

    /// The same with a region of each GPU.
    async fn with_regions(shared: Shared, at_least: &str, action: &str) -> Self {
        let capacity = format!("{} 17179869184\n", shared.region);
        Self::new(shared, Some(&capacity), at_least, action).await
    }

    /// The first GPU as the agent sees it.
    fn gpu(&self) -> Device {
        let state = self.agent.state.borrow().clone();
        let address = self.shared.region.split('/').nth(1).expect("an address");
        let gpus = state.inventory.devices.iter();
        let mut at = gpus.filter(|gpu| gpu.place.pci.is_some_and(|it| it.to_string() == address));
        at.next().expect("it is there").clone()
    }

    /// A replica of the first GPU.
    async fn pod(&self) -> Vec<String> {
        let pod = Pod { uid: uid(), ..pod_with("a", SHARED, 1) };
        self.kubelet.admit(pod).await.expect("admitted");
        let started = self.kubelet.start_container(&uid(), "main").await;
        started.expect("started").cdi_devices
    }

    /// Record of the hook of a device in the document of GPUs.
    fn record(&self, qualified: &str) -> PathBuf {
        let source = self.shared.source;
        let name = qualified.strip_prefix(&format!("windlass.dev/{source}=")).expect("its kind");
        let path = self.node.config.places.cdi_dir.join(format!("windlass.dev-{source}.json"));
        let document: Spec =
            serde_json::from_slice(&fs::read(path).expect("it is there")).expect("a document");
        let device = document.devices.into_iter().find(|device| device.name == name);
        let hooks = device.expect("it is there").container_edits.hooks;
        let [hook] = &hooks[..] else { panic!("{hooks:?}") };
        assert_eq!(
            (hook.hook_name.as_str(), hook.path.as_path()),
            ("createRuntime", Path::new(HOOK))
        );
        let [_, _, option, record, with, count] = &hook.args[..] else { panic!("{hook:?}") };
        assert_eq!((&**option, &**with, &**count), ("--record", "--replicas", "1"));
        record.into()
    }

    /// Starts a program of the pod, or of the host.
    fn program(&self, container: Option<&str>) -> Program {
        let program = Program::start();
        let group = match container {
            Some(id) => format!("/kubepods/pod{}/{id}", uid()),
            None => "/system.slice/gdm.service".to_owned(),
        };
        self.node.write(&format!("/proc/{}/cgroup", program.0.id()), &format!("0::{group}\n"));
        program
    }

    /// Has a program open a file of the first GPU, as a client with so many MiB.
    fn opens(&self, program: &Program, file: u32, client: u64, mib: u64) {
        let address = self.shared.region.split('/').nth(1).expect("an address");
        let text = format!(
            "pos:\t0\nflags:\t02100002\ndrm-driver:\tx\ndrm-client-id:\t{client}\ndrm-pdev:\t{address}\n\
             {}:\t{} KiB\n",
            self.shared.memory,
            mib << 10
        );
        self.node.write(&format!("/proc/{}/fdinfo/{file}", program.0.id()), &text);
    }

    /// Runs the hook as the container runtime does.
    fn run_hook(&self, record: &Path, container: &Program) -> Result<PathBuf, String> {
        let node = &self.node;
        node.write("/proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.write("/proc/sys/kernel/random/boot_id", "6a1f0e3c-0000-4000-8000-000000000001\n");
        let own = format!("/sys/fs/cgroup/kubepods/pod{}/{CONTAINER}", uid());
        node.write(&format!("{own}/cgroup.controllers"), "memory dmem\n");
        node.write(&format!("{own}/dmem.max"), &format!("{} max\n", self.shared.region));
        let state = json!({"ociVersion": "1.2.0", "id": CONTAINER, "status": "creating",
                           "pid": container.0.id(), "bundle": "/"});
        let limited =
            windlass_hook::limit(record, 1, Cursor::new(state.to_string()), &node.host("/proc"));
        let max = fs::read_to_string(node.host(&format!("{own}/dmem.max"))).expect("it is there");
        assert!(limited.is_err() || max == format!("{} {}\n", self.shared.region, 10_u64 << 30));
        limited.map_err(|error| windlass_host::causes(&error))
    }

    /// Waits for a line of a metric that contains all of these.
    async fn measured(&self, metric: &str, parts: &[&str]) {
        let has = |lines: &[String]| {
            lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        measured_until(&self.agent, metric, has).await;
    }

    fn enforcement(&self) -> Option<Enforcement> {
        self.agent.state.borrow().offerings()[self.gpu().id.as_str()].enforcement
    }
}

#[tokio::test]
async fn a_replica_of_each_vendors_gpu_is_limited_by_the_kernel_and_measured() {
    for shared in [MI300X, FLEX] {
        let world = World::with_regions(shared, "none", "kill").await;
        let gpu = world.gpu();
        assert_eq!(world.enforcement(), Some(Enforcement::Dmem), "{}", shared.source);
        let weakest = world.agent.state.borrow().weakest_enforcement();
        assert_eq!(weakest, Some(Enforcement::Dmem));
        let names = world.pod().await;
        let [whole, limited] = &names[..] else { panic!("{names:?}") };
        let kind = format!("windlass.dev/{}", shared.source);
        assert_eq!(whole, &format!("{kind}={}", gpu.id));
        assert_eq!(limited, &format!("{kind}={}-x1", gpu.id));
        let record = world.record(limited);
        let parsed = MemoryLimitRecord::parse(&fs::read(&record).expect("a record"));
        let parsed = parsed.expect("good");
        assert_eq!(parsed.library(), None);
        assert_eq!(parsed.gpus()[0].region.as_ref().expect("a region").as_str(), shared.region);
        let mut program = world.program(Some(CONTAINER));
        world.run_hook(&record, &program).expect("limited");
        let (uid, limit) = (uid(), (10_u64 << 30).to_string());
        let holder = format!(r#"holder="{uid}",enforcement="dmem"}}"#);
        world.measured("windlass_share_memory_limit_bytes", &[&holder, &limit]).await;
        // Two files of one client count once; a program of the host counts for nobody.
        let mut host = world.program(None);
        world.opens(&program, 3, 1, 9000);
        world.opens(&program, 4, 1, 9000);
        world.opens(&program, 5, 2, 1000);
        world.opens(&host, 3, 3, 16_000);
        let used = (10_000_u64 << 20).to_string();
        world.measured("windlass_share_memory_used_bytes", &[gpu.id.as_str(), &used]).await;
        world.measured("windlass_shared_gpu_measured", &[gpu.id.as_str(), "} 1"]).await;
        assert!(program.runs());
        // Three looks above the limit, and its tolerance, end the program.
        world.opens(&program, 6, 4, 1000);
        let program = RefCell::new(program);
        until("the program ends", async || {
            if program.borrow_mut().runs() { Err("it runs") } else { Ok(()) }
        })
        .await;
        assert!(host.runs());
        // The record is the GPU's, and stays for later containers.
        world.kubelet.delete(&uid).await;
        let is_gone = |lines: &[String]| lines.is_empty();
        measured_until(&world.agent, "windlass_share_memory_limit_bytes", is_gone).await;
        assert!(record.exists());
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn a_kernel_that_cannot_limit_leaves_the_watchdog_or_refuses() {
    const HIDDEN: Option<&str> = None;
    for (regions, at_least, refused) in [
        (HIDDEN, "watched", None),
        (HIDDEN, "dmem", Some("the kernel limits no device memory: it has to be 6.14 or newer")),
        (Some("drm/0000:ff:00.0/vram 1\n"), "none", None),
        (Some("drm/0000:ff:00.0/vram 1\n"), "dmem", Some("has no region of 0000:3a:00.0")),
        (
            Some("drm/0000:3a:00.0/vram0 1\ndrm/0000:3a:00.0/vram1 1\n"),
            "dmem",
            Some("the memory of 0000:3a:00.0 has several regions"),
        ),
        (
            Some("drm/0000:3a:00.0/vram0 1\n"),
            "driver",
            Some("the kernel's controller dmem limits it, and no driver does"),
        ),
    ] {
        let world = World::new(FLEX, regions, at_least, "kill").await;
        let expected = if at_least == "driver" { Enforcement::Dmem } else { Enforcement::Watched };
        assert_eq!(world.enforcement(), Some(expected), "{regions:?}");
        let pod = Pod { uid: uid(), ..pod_with("a", SHARED, 1) };
        match (world.kubelet.admit(pod).await, refused) {
            (Ok(_), None) => {
                let grant = world.kubelet.start_container(&uid(), "main").await.expect("started");
                assert_eq!(grant.cdi_devices.len(), 1, "no hook: {grant:?}");
            }
            (Err(rejection), Some(why)) => assert!(rejection.message.contains(why), "{rejection}"),
            (admitted, _) => panic!("{regions:?} {at_least}: {admitted:?}"),
        }
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_that_may_not_see_open_files_watches_nobody() {
    for (at_least, starts) in [("none", true), ("watched", false)] {
        let world = World::of_agent("CapEff:\t20\n", FLEX, None, at_least, "kill").await;
        assert_eq!(world.enforcement(), Some(Enforcement::None));
        let pod = Pod { uid: uid(), ..pod_with("a", SHARED, 1) };
        assert_eq!(world.kubelet.admit(pod).await.is_ok(), starts, "{at_least}");
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn a_pod_with_hidden_files_is_watched_no_more_and_its_gpu_is_measured_all_the_same() {
    let world = World::with_regions(FLEX, "none", "kill").await;
    world.pod().await;
    let gpu = world.gpu();
    let mut program = world.program(Some(CONTAINER));
    let limit = "windlass_share_memory_limit_bytes";
    world.measured(limit, &[gpu.id.as_str(), "enforcement=\"watched\""]).await;
    // A folder in the place of a file is as unreadable as a file that the kernel hides.
    let file = world.node.host(&format!("/proc/{}/fdinfo/3", program.0.id()));
    fs::create_dir_all(&file).expect("made");
    world.measured(limit, &[gpu.id.as_str(), "enforcement=\"none\""]).await;
    world.measured("windlass_shared_gpu_measured", &[gpu.id.as_str(), "} 1"]).await;
    fs::remove_dir(&file).expect("removed");
    world.measured(limit, &[gpu.id.as_str(), "enforcement=\"watched\""]).await;
    assert!(program.runs());
    world.agent.stop().await;
}
