//! Shares of AMD's and Intel's GPUs for claims: limited by the kernel's controller for device memory, and measured by
//! the files that DRM drivers describe.

use std::{fs, time::Duration};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{Device, ResourceClaim, ResourceSlice},
};
use serde_json::{Value, json};
use windlass_cluster_sim::api::{Effect, Fault};
use windlass_config::{
    Disclosed, MemoryLimitPolicy, RequiredLimit, Selector, ShareLimits, ShareMethod, ShareSettings,
    WatchdogAction, WatchdogPolicy,
};
use windlass_core::{
    cdi::{ContainerEdits, Spec},
    device::{DeviceId, DeviceKind},
    enforcement::Enforcement,
    memory_limit::MemoryLimitRecord,
};
use windlass_dra::ClaimFile;
use windlass_node::{PodHoldings, PodShare};
use windlass_resources::NodeState;
use windlass_testkit::{RunningAgent, until};

use crate::{
    devices::world::until_metric,
    dra::shares::{Holder, Shares},
    kernel::{FLEX, HOOK, Kernel, MI300X, PTRACE, Vendor, record_of},
    steps::{MAX_RECORDINGS, Recorder},
};

/// A node with the GPUs of a vendor. Claims share the first GPU.
struct World {
    vendor: Vendor,
    shares: Shares,
    kernel: Kernel,
}

const SLICES: ShareSettings =
    ShareSettings { method: ShareMethod::TimeSlicing, limits: ShareLimits::Enforced };
const BY_KERNEL: ShareSettings = ShareSettings { method: ShareMethod::Dmem, ..SLICES };
const TRUSTED: ShareSettings = ShareSettings { limits: ShareLimits::Advisory, ..SLICES };

// === impl World ===

impl World {
    fn new(vendor: Vendor, manner: ShareSettings, regions: Option<&str>) -> Self {
        let source = Some(vendor.source.parse().expect("a source"));
        let gpus = Selector { source, ..Selector::all(DeviceKind::Gpu) };
        let mut shares = Shares::of(&vendor.machine(), gpus, manner);
        let config = &mut shares.world.config;
        config.policy.memory_limits =
            MemoryLimitPolicy { hook: Some(HOOK.into()), at_least: RequiredLimit::None };
        let interval = Duration::from_millis(10);
        config.policy.watchdog = WatchdogPolicy { action: WatchdogAction::Kill, interval };
        config.disclose.insert(Disclosed::Pods);
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        let kernel = Kernel::of(&shares.world.machine, vendor, regions, PTRACE);
        Self { vendor, shares, kernel }
    }

    /// Name of the capacity.
    fn memory(&self) -> &'static str {
        if self.vendor.source == "amd" { "amd.com/memory" } else { "gpu.intel.com/memory" }
    }

    fn amounts(&self, amount: &str) -> Value {
        json!({(self.memory()): amount})
    }

    /// The GPU in the node's slices.
    fn published(&self) -> Device {
        let slices: Vec<ResourceSlice> = self.shares.cluster.objects().list();
        let mut devices = slices.into_iter().flat_map(|it| it.spec.devices.unwrap_or_default());
        devices.next().expect("published")
    }

    fn gpu(&self, state: &NodeState) -> DeviceId {
        self.vendor.gpu(state).id
    }

    /// Runs the hook of a container with these edits. Returns the limit in bytes.
    fn run_hook(&self, holder: &Holder, edits: &ContainerEdits) -> Result<u64, String> {
        let pod = self.pod(holder);
        self.kernel.limit(&pod, &self.kernel.program(Some(&pod)), &record_of(edits))
    }

    /// The runtime may start a container from the document while there is no agent: by its limit, or not at all.
    fn check_document(&self, holder: &Holder) {
        let Some(document) = self.shares.world.document(&holder.uid) else { return };
        let spec: Spec = serde_json::from_value(document).expect("a document");
        match self.run_hook(holder, &spec.devices[0].container_edits) {
            Ok(bytes) => assert_eq!(bytes, 10 << 30),
            Err(error) => assert!(error.contains("No such file"), "{error}"),
        }
    }

    /// Waits until no file and no entry of released claims remains.
    async fn until_released(&self, agent: &RunningAgent, step: &str) {
        let places = &self.shares.world.config.places;
        let folder = places.state_dir.join("memory-limits/claims");
        until(step, async || {
            let limits = fs::read_dir(&folder).map_or(0, Iterator::count);
            let documents = fs::read_dir(&places.cdi_dir).expect("a folder").flatten();
            let is_claims = |name: &str| name.starts_with("windlass.dev-claim-");
            let names = documents.filter_map(|file| file.file_name().into_string().ok());
            let documents = names.filter(|name| is_claims(name)).count();
            let state = agent.state.borrow().clone();
            let obstacle = state.device_offers()[self.gpu(&state).as_str()].obstacle.clone();
            let claims = ClaimFile::new(places).read().ok().flatten().unwrap_or_default();
            let remaining = (limits, documents, obstacle, claims.len());
            if remaining == (0, 0, None, 0) { Ok(()) } else { Err(remaining) }
        })
        .await;
    }

    /// UID of the pod of a claim.
    fn pod(&self, holder: &Holder) -> String {
        let pod: Pod = self.shares.cluster.objects().get("ns", &holder.pod).expect("it is bound");
        pod.metadata.uid.expect("a UID")
    }

    /// Message of the condition `MemoryExceeded`.
    fn exceeded(&self, holder: &Holder) -> Option<String> {
        let claim: ResourceClaim = self.shares.cluster.objects().get("ns", &holder.claim)?;
        let devices = claim.status?.devices?;
        let mut conditions = devices.into_iter().filter_map(|device| device.conditions).flatten();
        conditions.find(|it| it.type_ == "MemoryExceeded").map(|it| it.message)
    }

    /// The share as `windlass explain --pod` shows it.
    fn explain(&self, agent: &RunningAgent, holder: &Holder) -> PodShare {
        let pod = PodHoldings {
            namespace: "ns".to_owned(),
            name: holder.pod.clone(),
            claims: [holder.claim.clone()].into(),
            ..PodHoldings::default()
        };
        let state = agent.state.borrow().clone();
        let shares = windlass_node::shares_of(&self.shares.world.config.places, &state, &pod);
        let [share] = shares.try_into().expect("one");
        share
    }
}

/// Waits for a line of a metric that contains all of these texts.
async fn until_measured(agent: &RunningAgent, metric: &str, parts: &[&str]) {
    let has =
        |lines: &[String]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    until_metric(agent, metric, has).await;
}

#[tokio::test]
async fn a_claims_share_of_each_vendors_gpu_is_limited_by_the_kernel_and_measured() {
    for vendor in [MI300X, FLEX] {
        let world = World::new(vendor, BY_KERNEL, Some(&vendor.capacity()));
        let (agent, mut kubelet) = world.shares.start_ready().await;
        let gpu = vendor.gpu(&agent.state.borrow());
        let published = world.published();
        assert_eq!(published.name, gpu.id.as_str().to_lowercase());
        assert_eq!(published.allow_multiple_allocations, Some(true));
        let enforcement = &published.attributes.as_ref().expect("some")["windlass.dev/enforcement"];
        assert_eq!(enforcement.string.as_deref(), Some("dmem"));
        let holder = world.shares.schedule("part", &world.amounts("10Gi")).expect("free");
        let edits = world.shares.start(&mut kubelet, &holder).await;
        let record = record_of(&edits);
        let parsed =
            MemoryLimitRecord::parse(&fs::read(&record).expect("a record")).expect("valid");
        assert_eq!((parsed.library(), parsed.gpus()[0].hard_mib), (None, 10 << 10));
        let excess = format!("{}Mi", vendor.memory_mib - (10 << 10) + 1);
        world.shares.schedule("more", &world.amounts(&excess)).map(drop).expect_err("too much");

        let pod = world.pod(&holder);
        let mut program = world.kernel.program(Some(&pod));
        assert_eq!(world.kernel.limit(&pod, &program, &record), Ok(10 << 30));
        let (claim, limit) = (holder.claim.as_str(), (10_u64 << 30).to_string());
        let limit_label = format!(r#"holder="{claim}",enforcement="dmem"}}"#);
        until_measured(&agent, "windlass_share_memory_limit_bytes", &[&limit_label, &limit]).await;
        let holder_label = format!(r#"namespace="ns",claim="{claim}"}} 1"#);
        until_measured(&agent, "windlass_device_holder", &[gpu.id.as_str(), &holder_label]).await;
        assert_eq!(world.explain(&agent, &holder).enforcement, Enforcement::Dmem);
        // Neither a program of the host nor one of a pod without the claim counts.
        let (host, other) =
            (world.kernel.program(None), world.kernel.program(Some(&"b".repeat(32))));
        world.kernel.open_file(&program, 3, 1, 10_000);
        world.kernel.open_file(&host, 3, 2, 16_000);
        world.kernel.open_file(&other, 3, 3, 16_000);
        let used = (10_000_u64 << 20).to_string();
        until_measured(&agent, "windlass_share_memory_used_bytes", &[gpu.id.as_str(), &used]).await;
        assert!(program.is_running() && world.exceeded(&holder).is_none());
        world.kernel.open_file(&program, 4, 4, 1000);
        let message = until("the condition", async || world.exceeded(&holder).ok_or("none")).await;
        assert_eq!(message, "11000 MiB in use, but the share is 10240 MiB");
        program.until_ended().await;
        world.shares.end(&mut kubelet, holder).await;
        assert!(!record.exists());
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_pod_that_uses_no_memory_of_its_claim_remains_known_while_other_claims_change() {
    let world = World::new(MI300X, BY_KERNEL, Some(&MI300X.capacity()));
    let (agent, mut kubelet) = world.shares.start_ready().await;
    let holder = world.shares.schedule("part", &world.amounts("10Gi")).expect("free");
    world.shares.start(&mut kubelet, &holder).await;
    let mut program = world.kernel.program(Some(&world.pod(&holder)));
    let used = "windlass_share_memory_used_bytes";
    world.kernel.open_file(&program, 3, 1, 5);
    until_measured(&agent, used, &[&holder.pod, &(5 << 20).to_string()]).await;
    world.kernel.close_file(&program, 3);
    until_metric(&agent, used, <[String]>::is_empty).await;

    // The API server no longer names any pods.
    let api = world.shares.cluster.server();
    api.inject(Fault::at("/api/v1/pods", Effect::CloseConnection));
    let other = world.shares.schedule("other", &world.amounts("1Gi")).expect("free");
    world.shares.start(&mut kubelet, &other).await;
    let limits = "windlass_share_memory_limit_bytes";
    until_measured(&agent, limits, &[&other.claim]).await;
    world.kernel.open_file(&program, 3, 2, 7);
    until_measured(&agent, used, &[&holder.pod, &(7 << 20).to_string()]).await;
    assert!(program.is_running());
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_is_not_watched_while_a_pod_with_unknown_claims_may_use_it() {
    let world = World::new(FLEX, TRUSTED, None);
    let (agent, mut kubelet) = world.shares.start_ready().await;
    let holder = world.shares.schedule("part", &world.amounts("8Gi")).expect("free");
    world.shares.start(&mut kubelet, &holder).await;
    let _program = world.kernel.program(Some(&world.pod(&holder)));
    let limits = "windlass_share_memory_limit_bytes";
    let holder_label_of =
        |enforcement: &str| format!(r#"holder="{}",enforcement="{enforcement}"}}"#, holder.claim);
    until_measured(&agent, limits, &[&holder_label_of("watched")]).await;
    let unknown_program = world.kernel.program(Some(&"b".repeat(32)));
    until_measured(&agent, limits, &[&holder_label_of("none")]).await;
    world.kernel.remove_program(&unknown_program);
    drop(unknown_program);
    until_measured(&agent, limits, &[&holder_label_of("watched")]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_the_kernel_cannot_limit_starts_only_if_a_weaker_limit_is_allowed() {
    let compute = json!({"gpu.intel.com/memory": "8Gi", "windlass.dev/compute": "25"});
    let memory = json!({"gpu.intel.com/memory": "8Gi"});
    for (manner, regions, amounts, refusal) in [
        (TRUSTED, None, &memory, None),
        (SLICES, None, &memory, Some("no method enforces 8Gi of gpu.intel.com/memory")),
        (BY_KERNEL, None, &memory, Some("no method enforces 8Gi of gpu.intel.com/memory")),
        (
            ShareSettings { limits: ShareLimits::Advisory, ..BY_KERNEL },
            None,
            &memory,
            Some("`dmem` is required by the method of `sharing` or `dra.shares`"),
        ),
        (SLICES, Some(FLEX.capacity()), &memory, None),
        (
            SLICES,
            Some(FLEX.capacity()),
            &compute,
            Some("no method enforces 25 of windlass.dev/compute"),
        ),
    ] {
        let world = World::new(FLEX, manner, regions.as_deref());
        let (agent, mut kubelet) = world.shares.start_ready().await;
        let Holder { claim, uid, .. } = &world.shares.schedule("part", amounts).expect("free");
        let answer = kubelet.prepare_all(&[(claim, uid)]).await.claims[uid].clone();
        match refusal {
            None => assert_eq!(answer.error, ""),
            Some(text) => assert!(answer.error.contains(text), "{answer:?}"),
        }
        let state_dir = &world.shares.world.config.places.state_dir;
        let record = state_dir.join(format!("memory-limits/claims/{uid}.json"));
        assert_eq!(record.exists(), refusal.is_none() && regions.is_some());
        agent.stop().await;
    }
}

#[tokio::test]
async fn after_a_kill_between_any_two_steps_a_claim_keeps_its_limit_and_can_be_released() {
    let world = World::new(MI300X, BY_KERNEL, Some(&MI300X.capacity()));
    let (agent, mut kubelet) = world.shares.start_ready().await;
    let places = &world.shares.world.config.places;
    let holder = world.shares.schedule("part", &world.amounts("10Gi")).expect("free");
    let (mut preparation, mut release) = (Err("none".to_owned()), Err("none".to_owned()));
    for _ in 0..MAX_RECORDINGS {
        let recorder = Recorder::start(places);
        world.shares.start(&mut kubelet, &holder).await;
        preparation = preparation.or_else(|_| recorder.stop());
        let recorder = Recorder::start(places);
        kubelet.unprepare_claim((&holder.claim, &holder.uid)).await.expect("released");
        world.until_released(&agent, "the claim is released").await;
        release = release.or_else(|_| recorder.stop());
        if preparation.is_ok() && release.is_ok() {
            break;
        }
    }
    let (preparation, release) = (preparation.expect("recorded"), release.expect("recorded"));
    agent.kill().await;
    for (steps, is_prepared) in [(&preparation, true), (&preparation, false), (&release, false)] {
        let names = steps.names();
        assert!(steps.len() >= 4, "two records, a limit and a document: {names:?}");
        for done in 0..=steps.len() {
            let step = format!("{is_prepared} after {done} of {names:?}");
            steps.restore(done);
            world.check_document(&holder);
            // These are sockets of the killed agent.
            for socket in [world.shares.world.registration(), world.shares.world.endpoint()] {
                let _ = fs::remove_file(socket);
            }
            let (agent, mut kubelet) = world.shares.start_ready().await;
            agent.until(|state| !state.claimable.is_empty()).await;
            if is_prepared {
                let edits = world.shares.start(&mut kubelet, &holder).await;
                assert_eq!(world.run_hook(&holder, &edits), Ok(10 << 30), "{step}");
                let state = agent.state.borrow().clone();
                assert!(
                    state.device_offers()[world.gpu(&state).as_str()].obstacle.is_some(),
                    "{step}"
                );
            }
            let released = kubelet.unprepare_claim((&holder.claim, &holder.uid)).await;
            released.unwrap_or_else(|error| panic!("{step}: {error}"));
            world.until_released(&agent, &step).await;
            agent.kill().await;
        }
    }
}
