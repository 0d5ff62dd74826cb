//! Replicas of AMD's and Intel's GPUs with a given memory: limits by the kernel's controller for device memory, and use
//! by the files that DRM drivers describe.

use std::{fs, path::PathBuf, time::Duration};

use windlass_core::{
    cdi::Spec, device::Device, enforcement::Enforcement, memory_limit::MemoryLimitRecord,
};
use windlass_kubelet_sim::{Kubelet, Pod};
use windlass_testkit::{Node, RunningAgent, pod_with, until_allocatable};

use crate::{
    devices::world::{policy, until_metric},
    kernel::{FLEX, HOOK, Kernel, MI300X, PTRACE, Vendor, record_of},
};

const SHARED: &str = "example.com/gpu.shared";

/// A node with the GPUs of a vendor. Each replica of the first GPU has 10 GiB.
struct World {
    vendor: Vendor,
    node: Node,
    kernel: Kernel,
    kubelet: Kubelet,
    agent: RunningAgent,
}

fn uid() -> String {
    "a".repeat(32)
}

// === impl World ===

impl World {
    /// A node whose kernel has these regions; without the controller for `None`.
    async fn new(vendor: Vendor, regions: Option<&str>, at_least: &str, action: &str) -> Self {
        Self::with_capabilities(PTRACE, vendor, regions, at_least, action).await
    }

    /// The same for an agent with these capabilities.
    async fn with_capabilities(
        capabilities: &str,
        vendor: Vendor,
        regions: Option<&str>,
        at_least: &str,
        action: &str,
    ) -> Self {
        let config = format!(
            "resources: [{{name: {SHARED}, devices: {{source: {}, index: [0]}}, sharing: {{method: timeSlicing, memory: 10Gi}}}}]\n\
             memoryLimits: {{hook: {HOOK}, atLeast: {at_least}}}\n\
             watchdog: {{action: {action}}}\n",
            vendor.source
        );
        let mut policy = policy(&config);
        // A shorter interval than a file may have.
        policy.watchdog.interval = Duration::from_millis(10);
        let mut node = Node::new(&vendor.machine(), policy);
        node.config.disclose.insert(windlass_config::Disclosed::Pods);
        node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        let kernel = Kernel::of(&node.machine, vendor, regions, capabilities);
        let (kubelet, agent) = (node.start_kubelet(), node.start_agent());
        let replicas = usize::try_from(vendor.memory_mib / (10 << 10)).expect("few");
        until_allocatable(&kubelet, SHARED, replicas).await;
        Self { vendor, node, kernel, kubelet, agent }
    }

    /// The same with a region of the first GPU.
    async fn with_regions(vendor: Vendor, at_least: &str, action: &str) -> Self {
        Self::new(vendor, Some(&vendor.capacity()), at_least, action).await
    }

    /// The first GPU as the agent sees it.
    fn gpu(&self) -> Device {
        self.vendor.gpu(&self.agent.state.borrow())
    }

    /// Starts a pod with a replica of the first GPU. Returns the CDI device names of its container.
    async fn start_pod(&self) -> Vec<String> {
        let pod = Pod { uid: uid(), ..pod_with("a", SHARED, 1) };
        self.kubelet.admit(pod).await.expect("admitted");
        let started = self.kubelet.start_container(&uid(), "main").await;
        started.expect("started").cdi_devices
    }

    /// Record of a device's hook in the document of GPUs.
    fn record(&self, qualified: &str) -> PathBuf {
        let source = self.vendor.source;
        let name = qualified.strip_prefix(&format!("windlass.dev/{source}=")).expect("its kind");
        let path = self.node.config.places.cdi_dir.join(format!("windlass.dev-{source}.json"));
        let document: Spec =
            serde_json::from_slice(&fs::read(path).expect("it is there")).expect("a document");
        let device = document.devices.into_iter().find(|device| device.name == name);
        let edits = device.expect("it is there").container_edits;
        assert_eq!(edits.hooks[0].args[4..], ["--replicas", "1"]);
        record_of(&edits)
    }

    /// Waits for a line of a metric that contains all of these texts.
    async fn until_measured(&self, metric: &str, parts: &[&str]) {
        let has = |lines: &[String]| {
            lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        until_metric(&self.agent, metric, has).await;
    }

    fn enforcement(&self) -> Option<Enforcement> {
        self.agent.state.borrow().device_offers()[self.gpu().id.as_str()].enforcement
    }
}

#[tokio::test]
async fn a_replica_of_each_vendors_gpu_is_limited_by_the_kernel_and_measured() {
    for vendor in [MI300X, FLEX] {
        let world = World::with_regions(vendor, "none", "kill").await;
        let gpu = world.gpu();
        assert_eq!(world.enforcement(), Some(Enforcement::Dmem), "{}", vendor.source);
        let weakest = world.agent.state.borrow().weakest_enforcement();
        assert_eq!(weakest, Some(Enforcement::Dmem));
        let names = world.start_pod().await;
        let [whole, limited] = &names[..] else { panic!("{names:?}") };
        let kind = format!("windlass.dev/{}", vendor.source);
        assert_eq!(whole, &format!("{kind}={}", gpu.id));
        assert_eq!(limited, &format!("{kind}={}-x1", gpu.id));
        let record = world.record(limited);
        let parsed = MemoryLimitRecord::parse(&fs::read(&record).expect("a record"));
        let parsed = parsed.expect("valid");
        assert_eq!(parsed.library(), None);
        assert_eq!(parsed.gpus()[0].region.as_ref().expect("a region").as_str(), vendor.region);
        let mut program = world.kernel.program(Some(&uid()));
        assert_eq!(world.kernel.limit(&uid(), &program, &record), Ok(10 << 30));
        let (uid, limit) = (uid(), (10_u64 << 30).to_string());
        let holder = format!(r#"holder="{uid}",enforcement="dmem"}}"#);
        world.until_measured("windlass_share_memory_limit_bytes", &[&holder, &limit]).await;
        // Two files of one client count once; a program of the host counts for no pod.
        let mut host = world.kernel.program(None);
        world.kernel.open_file(&program, 3, 1, 9000);
        world.kernel.open_file(&program, 4, 1, 9000);
        world.kernel.open_file(&program, 5, 2, 1000);
        world.kernel.open_file(&host, 3, 3, 16_000);
        let used = (10_000_u64 << 20).to_string();
        world.until_measured("windlass_share_memory_used_bytes", &[gpu.id.as_str(), &used]).await;
        world.until_measured("windlass_shared_gpu_measured", &[gpu.id.as_str(), "} 1"]).await;
        assert!(program.is_running());
        // Three measurements above the limit and its tolerance end the program.
        world.kernel.open_file(&program, 6, 4, 1000);
        program.until_ended().await;
        assert!(host.is_running());
        // The record belongs to the GPU, and remains for later containers.
        world.kubelet.delete_pod(&uid).await;
        let is_empty = |lines: &[String]| lines.is_empty();
        until_metric(&world.agent, "windlass_share_memory_limit_bytes", is_empty).await;
        assert!(record.exists());
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn without_a_limit_by_the_kernel_the_watchdog_enforces_or_the_pod_is_refused() {
    const HIDDEN: Option<&str> = None;
    for (regions, at_least, refusal) in [
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
        match (world.kubelet.admit(pod).await, refusal) {
            (Ok(_), None) => {
                let grant = world.kubelet.start_container(&uid(), "main").await.expect("started");
                assert_eq!(grant.cdi_devices.len(), 1, "no hook: {grant:?}");
            }
            (Err(rejection), Some(text)) => {
                assert!(rejection.message.contains(text), "{rejection}");
            }
            (admitted, _) => panic!("{regions:?} {at_least}: {admitted:?}"),
        }
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_without_access_to_open_files_watches_no_pod() {
    for (at_least, is_admitted) in [("none", true), ("watched", false)] {
        let world = World::with_capabilities("CapEff:\t20\n", FLEX, None, at_least, "kill").await;
        assert_eq!(world.enforcement(), Some(Enforcement::None));
        let pod = Pod { uid: uid(), ..pod_with("a", SHARED, 1) };
        assert_eq!(world.kubelet.admit(pod).await.is_ok(), is_admitted, "{at_least}");
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn a_pod_with_hidden_files_is_not_watched_and_its_gpu_is_still_measured() {
    let world = World::with_regions(FLEX, "none", "kill").await;
    world.start_pod().await;
    let gpu = world.gpu();
    let mut program = world.kernel.program(Some(&uid()));
    let limit = "windlass_share_memory_limit_bytes";
    world.until_measured(limit, &[gpu.id.as_str(), "enforcement=\"watched\""]).await;
    // A folder in place of a file is as unreadable as a file that the kernel hides.
    let file = world.kernel.path(&format!("/proc/{}/fdinfo/3", program.pid()));
    fs::create_dir_all(&file).expect("created");
    world.until_measured(limit, &[gpu.id.as_str(), "enforcement=\"none\""]).await;
    world.until_measured("windlass_shared_gpu_measured", &[gpu.id.as_str(), "} 1"]).await;
    fs::remove_dir(&file).expect("removed");
    world.until_measured(limit, &[gpu.id.as_str(), "enforcement=\"watched\""]).await;
    assert!(program.is_running());
    world.agent.stop().await;
}
