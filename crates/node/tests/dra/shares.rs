//! Shares of a GPU by amounts: allocated by the scheduler, enforced by an MPS daemon.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use windlass_cluster_sim::{
    api::Objects,
    cluster::{Cluster, ScheduledPod, SchedulingError},
};
use windlass_config::{
    MemoryLimitPolicy, MpsSettings, PerContainer, RequiredLimit, ResourceRule, Resources, Selector,
    ShareLimits, ShareMethod, ShareRule, ShareSettings, Shared, Sharing, SharingMethod,
    WatchdogAction, WatchdogPolicy,
};
use windlass_core::{
    cdi::{ContainerEdits, Spec, SpecDevice},
    device::{Device, DeviceId, DeviceKind},
    memory_limit::MemoryLimitRecord,
};
use windlass_machine::{
    MachineProfile,
    profile::Driver,
    state::{Model, Process},
};
use windlass_resources::NodeState;
use windlass_testkit::{
    RunningAgent, claim_template, device_class, pod_of_claim, until, until_removed,
};

use crate::dra::{
    kubelet::Kubelet,
    restarts::write_prepared_checkpoint,
    world::{World, policy_for_both_apis, records},
};

/// A node in a cluster, with one GPU that claims share.
pub(super) struct Shares {
    pub(super) cluster: Cluster,
    pub(super) world: World,
}

/// A pod that has a share.
pub(super) struct Holder {
    pub(super) pod: String,
    pub(super) claim: String,
    pub(super) uid: String,
    share: Option<String>,
}

// === impl Shares ===

impl Shares {
    fn new(manner: ShareSettings) -> Self {
        let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        Self::on(&profile, manner)
    }

    fn on(profile: &MachineProfile, manner: ShareSettings) -> Self {
        Self::of(profile, Selector::all(DeviceKind::Gpu), manner)
    }

    /// A node whose claims share the first of these GPUs.
    pub(super) fn of(profile: &MachineProfile, gpus: Selector, manner: ShareSettings) -> Self {
        let cluster = Cluster::start();
        cluster.add_node("n1");
        cluster.objects().put(&device_class("gpu", "device.driver == 'windlass.dev'"));
        let mut world = World::on(profile, policy_for_both_apis());
        let kubeconfig = world.config.cluster.kubeconfig.clone().expect("it has one");
        fs::write(kubeconfig, cluster.server().kubeconfig()).expect("written");
        let first = Selector { index: [0].into(), ..gpus };
        let dra = &mut world.config.policy.dra;
        dra.devices = vec![first.clone()];
        dra.shares = vec![ShareRule { devices: first, manner }];
        world.config.mps = MpsSettings {
            answer_deadline: Duration::from_secs(2),
            question_interval: Duration::from_millis(50),
            retry_min: Duration::from_millis(10),
            retry_max: Duration::from_millis(200),
            stop_grace: Duration::from_secs(1),
            ..MpsSettings::default()
        };
        Self { cluster, world }
    }

    pub(super) async fn start_ready(&self) -> (RunningAgent, Kubelet) {
        let (agent, kubelet) = self.world.start_ready().await;
        let is_published = |slices: &[ResourceSlice]| {
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
            devices.filter(|it| it.taints.is_none()).any(|it| it.capacity.is_some())
        };
        let objects = self.cluster.objects();
        let published = objects.wait_until(Duration::from_secs(20), |objects| {
            is_published(&objects.list()).then_some(())
        });
        published.await.expect("published");
        (agent, kubelet)
    }

    /// Schedules a pod whose claim requests these amounts.
    pub(super) fn schedule(&self, name: &str, amounts: &Value) -> Result<Holder, SchedulingError> {
        let scheduled = self.schedule_requests(name, &[("gpu", amounts)])?;
        Ok(Holder::of(name, &scheduled))
    }

    /// The same for a claim with several requests.
    fn schedule_requests(
        &self,
        name: &str,
        requests: &[(&str, &Value)],
    ) -> Result<ScheduledPod, SchedulingError> {
        let request = |(request, amounts): &(&str, &Value)| {
            let exactly = json!({"deviceClassName": "gpu", "capacity": {"requests": amounts}});
            json!({"name": request, "exactly": exactly})
        };
        let requests: Value = requests.iter().map(request).collect();
        self.cluster.objects().put(&claim_template("ns", name, &json!({"requests": requests})));
        let by_name = ("resourceClaimTemplateName", name);
        self.cluster.schedule(&pod_of_claim(("ns", name), &["main"], by_name))
    }

    /// Has a pod's claim prepared. Returns the edits of its container in addition to the device.
    pub(super) async fn start(&self, kubelet: &mut Kubelet, holder: &Holder) -> ContainerEdits {
        let Holder { claim, uid, .. } = holder;
        let answer = kubelet.prepare_all(&[(claim, uid)]).await.claims[uid].clone();
        let [device] = answer.devices.as_slice() else { panic!("{answer:?}") };
        assert_eq!(device.share_id, holder.share);
        assert!(device.cdi_device_ids.contains(&format!("windlass.dev/claim={uid}-0")));
        let document = self.world.document(uid).expect("it has one");
        let spec: Spec = serde_json::from_value(document).expect("a document");
        spec.devices[0].container_edits.clone()
    }

    pub(super) async fn end(&self, kubelet: &mut Kubelet, holder: Holder) {
        kubelet.unprepare_claim((&holder.claim, &holder.uid)).await.expect("released");
        self.cluster.delete_pod("ns", &holder.pod).expect("it is there");
    }

    fn daemons(&self) -> PathBuf {
        self.world.machine.host_root().join("run/windlass/mps")
    }

    /// Starts an agent, and waits for a few scans of the node.
    async fn start_and_scan(&self) -> RunningAgent {
        let agent = RunningAgent::start(&self.world.config).expect("it starts");
        agent.until(|state| state.inventory.is_complete()).await;
        agent.until_reconciled(3).await;
        agent
    }

    async fn end_daemons(&self) {
        let results =
            windlass_lifecycle::mps::stop_all(&self.world.config.places, &self.world.config.mps)
                .await;
        assert!(results.values().all(Result::is_ok), "{results:?}");
    }

    fn folder(&self) -> PathBuf {
        self.folder_of_first().expect("it has a GPU of NVIDIA's")
    }

    fn folder_of_first(&self) -> Option<PathBuf> {
        let model = self.world.machine.model().expect("written");
        Some(self.daemons().join(&model.gpus.first()?.uuid))
    }

    fn daemon(&self) -> Option<Pid> {
        let record = fs::read_to_string(self.folder_of_first()?.join("daemon")).ok()?;
        Pid::from_raw(record.split_once(' ')?.0.parse().ok()?)
    }
}

impl Drop for Shares {
    /// Ends the daemons: they outlive the agent, but must not outlive the test.
    fn drop(&mut self) {
        if let Some(pid) = self.daemon() {
            // It may have ended by itself.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

// === impl Holder ===

impl Holder {
    fn of(pod: &str, scheduled: &ScheduledPod) -> Self {
        let claim = &scheduled.claims[0];
        let status = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let devices = status.and_then(|allocation| allocation.devices.as_ref());
        let results = devices.and_then(|devices| devices.results.as_ref()).expect("allocated");
        Self {
            pod: pod.to_owned(),
            claim: claim.metadata.name.clone().expect("a name"),
            uid: claim.metadata.uid.clone().expect("a UID"),
            share: results[0].share_id.clone(),
        }
    }
}

const MPS: ShareSettings =
    ShareSettings { method: ShareMethod::Mps, limits: ShareLimits::Enforced };

const SLICES: ShareSettings =
    ShareSettings { method: ShareMethod::TimeSlicing, limits: ShareLimits::Enforced };

/// Time slices without a limit.
const TRUSTED: ShareSettings = ShareSettings { limits: ShareLimits::Advisory, ..SLICES };

fn memory(amount: &str) -> Value {
    json!({"gpu.nvidia.com/memory": amount})
}

const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Node on which a pod has 20 GiB of the shared GPU.
async fn start_with_part() -> (Shares, RunningAgent, Kubelet, Holder) {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let part = shares.schedule("part", &memory("20Gi")).expect("free");
    shares.start(&mut kubelet, &part).await;
    (shares, agent, kubelet, part)
}

#[tokio::test]
async fn claims_share_a_gpu_until_it_is_full_and_the_daemon_ends_with_the_last() {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let mut holders = Vec::new();
    for name in ["a", "b", "c"] {
        let holder = shares.schedule(name, &memory("20Gi")).expect("there is room");
        let edits = shares.start(&mut kubelet, &holder).await;
        assert!(edits.env.contains(&format!("{LIMIT}=0=20480M")), "{edits:?}");
        assert!(
            !edits.env.iter().any(|it| it.contains("THREAD")),
            "no limit of threads was requested"
        );
        let pipe = edits.env.iter().find_map(|it| it.strip_prefix("CUDA_MPS_PIPE_DIRECTORY="));
        let pipe = Path::new(pipe.expect("a client has it"));
        let mount = edits.mounts.iter().find(|mount| mount.container_path == pipe);
        assert!(mount.expect("mounted").host_path.join("control").exists(), "the daemon serves");
        holders.push(holder);
    }
    let ids: BTreeSet<_> = holders.iter().map(|it| it.share.clone()).collect();
    assert_eq!(ids.len(), 3, "each has a separate share");
    let large = json!({"gpu.nvidia.com/memory": "30Gi", "windlass.dev/compute": "40"});
    let refusal = shares.schedule("d", &large).err();
    assert!(matches!(refusal, Some(SchedulingError::NoNode { .. })), "{refusal:?}");
    let daemon = shares.daemon().expect("it runs");

    shares.end(&mut kubelet, holders.remove(0)).await;
    let holder = shares.schedule("d", &large).expect("there is room now");
    let edits = shares.start(&mut kubelet, &holder).await;
    for expected in [format!("{LIMIT}=0=30720M"), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40".to_owned()]
    {
        assert!(edits.env.contains(&expected), "{expected}: {edits:?}");
    }
    assert_eq!(shares.daemon(), Some(daemon), "one daemon serves all");
    holders.push(holder);
    for holder in holders {
        shares.end(&mut kubelet, holder).await;
    }
    until_removed(&shares.folder()).await;
    agent.stop().await;
}

#[tokio::test]
async fn one_claim_may_have_two_shares_of_a_gpu_each_with_a_separate_limit() {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let requests = [("small", &memory("10Gi")), ("large", &memory("20Gi"))];
    let scheduled = shares.schedule_requests("both", &requests).expect("there is room");
    let Holder { claim, uid, .. } = Holder::of("both", &scheduled);
    let devices = kubelet.prepare_claim((&claim, &uid)).await.expect("prepared");
    let [small, large] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!([&small.request_names[0], &large.request_names[0]], ["small", "large"]);
    assert_eq!(small.device_name, large.device_name);
    assert!(small.share_id.is_some() && small.share_id != large.share_id, "{devices:?}");
    let document = shares.world.document(&uid).expect("it has one");
    let spec: Spec = serde_json::from_value(document).expect("a document");
    for (device, limit) in [(small, "10240M"), (large, "20480M")] {
        let is_own = |it: &&SpecDevice| {
            device.cdi_device_ids.contains(&format!("windlass.dev/claim={}", it.name))
        };
        let edits = &spec.devices.iter().find(is_own).expect("its own").container_edits;
        assert!(edits.env.contains(&format!("{LIMIT}=0={limit}")), "{edits:?}");
    }
    let share_ids = |objects: &Objects| {
        let claim: ResourceClaim = objects.get("ns", &claim)?;
        let devices = claim.status?.devices?;
        Some(devices.into_iter().map(|it| it.share_id).collect::<BTreeSet<_>>())
    };
    let written = shares.cluster.objects().wait_until(Duration::from_secs(20), share_ids).await;
    let ids = [small, large].map(|device| device.share_id.clone());
    assert_eq!(written.expect("the status is written"), ids.into());
    kubelet.unprepare_claim((&claim, &uid)).await.expect("released");
    until_removed(&shares.folder()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_without_amounts_gets_the_full_gpu_and_no_daemon() {
    let (shares, agent, mut kubelet, part) = start_with_part().await;
    shares.schedule("whole", &json!({})).map(drop).expect_err("not all of it is free");
    shares.end(&mut kubelet, part).await;
    let whole = shares.schedule("whole", &json!({})).expect("free");
    // The daemon of the share may not have ended yet.
    let edits = shares.start(&mut kubelet, &whole).await;
    assert!(!shares.folder().exists(), "no daemon excludes its programs");
    assert!(!edits.env.iter().any(|it| it.contains("MPS")) && edits.mounts.is_empty());
    shares.schedule("more", &memory("20Gi")).map(drop).expect_err("the GPU is full");
    shares.end(&mut kubelet, whole).await;
    agent.stop().await;
}

#[tokio::test]
async fn shares_and_their_daemon_outlive_the_agent() {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let first = shares.schedule("first", &memory("20Gi")).expect("free");
    let edits = shares.start(&mut kubelet, &first).await;
    let daemon = shares.daemon().expect("it runs");
    agent.kill().await;
    let (agent, mut kubelet) = shares.start_ready().await;
    assert_eq!(shares.start(&mut kubelet, &first).await, edits);
    let second = shares.schedule("second", &memory("40Gi")).expect("free");
    shares.start(&mut kubelet, &second).await;
    assert_eq!(shares.daemon(), Some(daemon), "programs use it");
    agent.stop().await;

    let (agent, mut kubelet) = shares.start_ready().await;
    shares.end(&mut kubelet, first).await;
    assert_eq!(shares.daemon(), Some(daemon));
    shares.end(&mut kubelet, second).await;
    until_removed(&shares.folder()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_waits_until_a_killed_daemon_serves_again() {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let first = shares.schedule("first", &memory("20Gi")).expect("free");
    shares.start(&mut kubelet, &first).await;
    let daemon = shares.daemon().expect("it runs");
    kill_process(daemon, Signal::KILL).expect("it runs");
    let second = shares.schedule("second", &memory("20Gi")).expect("free");
    // Each of the kubelet's attempts may fail because the daemon has failed.
    until("it serves again", async || {
        let answer = kubelet.clone().prepare_claim((&second.claim, &second.uid)).await;
        answer.and_then(|_| {
            if shares.daemon() == Some(daemon) { Err("the old one".to_owned()) } else { Ok(()) }
        })
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn amounts_that_are_not_enforced_are_refused_unless_limits_are_advisory() {
    let shares = Shares::new(SLICES);
    let (agent, mut kubelet) = shares.start_ready().await;
    let holder = shares.schedule("part", &memory("20Gi")).expect("the scheduler only sums amounts");
    let (claim, uid) = (holder.claim.as_str(), holder.uid.as_str());
    let error = kubelet.prepare_all(&[(claim, uid)]).await.claims[uid].error.clone();
    assert!(error.contains("no method enforces 20Gi of gpu.nvidia.com/memory"), "{error}");
    assert!(error.contains("limits: advisory"), "{error}");

    let mut policy = shares.world.config.policy.clone();
    policy.dra.shares[0].manner.limits = ShareLimits::Advisory;
    agent.set_policy(policy.clone());
    agent.until(|state| *state.policy == policy).await;
    let edits = shares.start(&mut kubelet, &holder).await;
    assert!(edits.mounts.is_empty() && !shares.folder().exists(), "there is no daemon");
    agent.stop().await;
}

const HOOK: &str = "/opt/windlass/windlass-hook";

/// Records of the memory limits of claims.
fn limits(shares: &Shares, uid: &str) -> PathBuf {
    let folder = shares.world.config.places.state_dir.join("memory-limits/claims");
    folder.join(format!("{uid}.json"))
}

/// A GPU that claims share in this manner, with a hook, under this version of the driver.
fn with_hook(driver: &str, at_least: RequiredLimit, manner: ShareSettings) -> Shares {
    let mut profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
    profile.driver = Some(Driver { version: driver.to_owned(), cuda: "13.4".to_owned() });
    let mut shares = Shares::on(&profile, manner);
    shares.world.config.policy.memory_limits =
        MemoryLimitPolicy { hook: Some(HOOK.into()), at_least };
    shares
}

#[tokio::test]
async fn the_driver_limits_the_memory_of_a_claims_containers_by_a_hook() {
    let mut shares = with_hook("615.10", RequiredLimit::Driver, SLICES);
    shares.world.config.kubelet_limits.check_interval = Duration::from_millis(50);
    let (agent, mut kubelet) = shares.start_ready().await;
    let gpu = crate::dra::world::gpus(&agent.state.borrow())[0].id.clone();
    let holder = shares.schedule("part", &memory("20Gi")).expect("free");
    let edits = shares.start(&mut kubelet, &holder).await;
    let path = limits(&shares, &holder.uid);
    let [hook] = edits.hooks.as_slice() else { panic!("{edits:?}") };
    assert_eq!((&*hook.hook_name, &*hook.path), ("createRuntime", Path::new(HOOK)));
    assert_eq!(hook.args.last().map(String::as_str), path.to_str());
    let record = || MemoryLimitRecord::parse(&fs::read(&path).ok()?).ok();
    let parsed = record().expect("a record");
    let [limit] = parsed.gpus() else { panic!("{parsed:?}") };
    assert_eq!((limit.uuid.as_str(), limit.hard_mib), (gpu.as_str(), 20 << 10));
    // Nothing limits compute.
    let amounts = json!({"gpu.nvidia.com/memory": "20Gi", "windlass.dev/compute": "25"});
    let other = shares.schedule("other", &amounts).expect("free");
    let answer = kubelet.prepare_all(&[(&other.claim, &other.uid)]).await;
    let error = &answer.claims[&other.uid].error;
    assert!(error.contains("no method enforces 25 of windlass.dev/compute"), "{error}");
    // A container that starts again finds the record.
    fs::remove_file(&path).expect("it is there");
    until("the record is there", async || record().ok_or("no record")).await;
    // So does a container whose claim is known to the next agent.
    agent.stop().await;
    fs::remove_file(&path).expect("it is there");
    let orphan = path.with_file_name("ended.json");
    fs::write(&orphan, "{}").expect("written");
    let agent = RunningAgent::start(&shares.world.config).expect("it starts");
    until("the record is there", async || record().ok_or("no record")).await;
    let mut kubelet = shares.world.register_kubelet().await;
    shares.end(&mut kubelet, holder).await;
    assert!(!path.exists() && !orphan.exists());
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_the_driver_cannot_limit_starts_only_if_a_weaker_limit_is_allowed() {
    let by_driver = ShareSettings { method: ShareMethod::Driver, ..TRUSTED };
    for (at_least, manner, refusal) in [
        (RequiredLimit::None, TRUSTED, None),
        (RequiredLimit::Driver, TRUSTED, Some("`driver` is required by memoryLimits.atLeast")),
        (
            RequiredLimit::None,
            by_driver,
            Some("`driver` is required by the method of `sharing` or `dra.shares`"),
        ),
    ] {
        let shares = with_hook("570.133.20", at_least, manner);
        let (agent, mut kubelet) = shares.start_ready().await;
        let Holder { claim, uid, .. } = &shares.schedule("part", &memory("20Gi")).expect("free");
        let answer = kubelet.prepare_all(&[(claim, uid)]).await.claims[uid].clone();
        match refusal {
            None => assert_eq!(answer.error, ""),
            Some(text) => assert!(answer.error.contains(text), "{answer:?}"),
        }
        assert!(!limits(&shares, uid).exists());
        agent.stop().await;
    }
}

#[tokio::test]
async fn the_status_of_a_claim_reports_the_use_of_too_much_memory() {
    let mut shares = Shares::new(TRUSTED);
    shares.world.config.policy.watchdog =
        WatchdogPolicy { action: WatchdogAction::Observe, interval: Duration::from_millis(10) };
    let proc = shares.world.config.places.host_root.join("proc");
    show_process(
        &proc,
        std::process::id(),
        "stat",
        &fs::read("/proc/self/stat").expect("it is there"),
    );
    let (agent, mut kubelet) = shares.start_ready().await;
    let holders = ["greedy", "modest"]
        .map(|name| (name, shares.schedule(name, &memory("20Gi")).expect("free")));
    let mut processes = Vec::new();
    for (pid, (name, holder)) in (4_000_001..).zip(&holders) {
        shares.start(&mut kubelet, holder).await;
        let pod: Pod = shares.cluster.objects().get("ns", name).expect("it is bound");
        let group = format!("0::/kubepods/pod{}/c0ffee", pod.metadata.uid.expect("a UID"));
        show_process(&proc, pid, "cgroup", group.as_bytes());
        processes.push(Process { pid, memory_mib: 20_000, gpu_instance: None, sm_percent: 0 });
    }
    let set_memory = |memory_mib| {
        let processes = [Process { memory_mib, ..processes[0] }, processes[1].clone()];
        let change = |machine: &mut Model| machine.gpus[0].live.processes = processes.to_vec();
        shares.world.machine.update(change).expect("changed");
    };
    let exceeded = |index: usize| {
        let claim: ResourceClaim = shares.cluster.objects().get("ns", &holders[index].1.claim)?;
        let devices = claim.status?.devices?;
        let conditions = devices.into_iter().filter_map(|device| device.conditions).flatten();
        conditions.into_iter().find(|it| it.type_ == "MemoryExceeded").map(|it| it.message)
    };
    set_memory(30_000);
    let message = until("the condition", async || exceeded(0).ok_or("none")).await;
    assert_eq!(message, "30000 MiB in use, but the share is 20480 MiB");
    assert_eq!(exceeded(1), None);
    set_memory(10_000);
    until("no condition", async || exceeded(0).map_or(Ok(()), Err)).await;
    agent.stop().await;
}

/// Shows a file of a process in the host's `/proc`.
fn show_process(proc: &Path, pid: u32, name: &str, contents: &[u8]) {
    let folder = proc.join(pid.to_string());
    fs::create_dir_all(&folder).expect("created");
    fs::write(folder.join(name), contents).expect("written");
}

/// Obstacle of a GPU for containers, other than a claim that has it.
async fn obstacle_for_containers(agent: &RunningAgent, gpu: &DeviceId) -> Option<String> {
    let obstacle = |state: &NodeState| state.device_offers().remove(gpu)?.obstacle;
    let is_held =
        |state: &NodeState| obstacle(state).is_some_and(|text| text.contains("another claim"));
    obstacle(&*agent.until(|state| !is_held(state)).await)
}

#[tokio::test]
async fn no_container_gets_a_gpu_before_the_daemon_of_claims_has_ended() {
    let shares = Shares::new(MPS);
    let (agent, mut kubelet) = shares.start_ready().await;
    let gpu = crate::dra::world::gpus(&agent.state.borrow())[0].id.clone();
    let part = shares.schedule("part", &memory("20Gi")).expect("free");
    shares.start(&mut kubelet, &part).await;
    // A daemon that hangs is killed some time after the request to end.
    kill_process(shares.daemon().expect("it runs"), Signal::STOP).expect("it runs");
    shares.end(&mut kubelet, part).await;
    let obstacle = obstacle_for_containers(&agent, &gpu).await.expect("the daemon has the GPU");
    assert!(obstacle.contains("MPS daemon"), "{obstacle}");
    until_removed(&shares.folder()).await;
    agent.until(|state| state.device_offers()[&gpu].obstacle.is_none()).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_unneeded_daemon_is_ended_by_the_next_agent() {
    let (shares, agent, _kubelet, _part) = start_with_part().await;
    agent.kill().await;
    assert!(shares.folder().exists(), "it outlives the agent");
    // As if the agent had been killed just after the claim was released.
    for record in records(&shares.world.config.places) {
        fs::remove_file(record).expect("there");
    }
    let agent = RunningAgent::start(&shares.world.config).expect("it starts");
    until_removed(&shares.folder()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_daemon_is_retained_while_the_devices_of_claims_are_unknown() {
    let (shares, agent, _kubelet, _part) = start_with_part().await;
    agent.kill().await;
    fs::write(shares.world.record(), "{").expect("a broken record");
    shares.world.hide_kubelet_folder();
    let agent = shares.start_and_scan().await;
    assert!(shares.folder().exists(), "a claim may have it");
    agent.stop().await;
    shares.end_daemons().await;
}

#[tokio::test]
async fn a_daemon_is_retained_for_a_claim_that_only_the_kubelet_knows() {
    let (shares, agent, _kubelet, _part) = start_with_part().await;
    // The kubelet's checkpoint does not contain the method of sharing, if the device has no shares.
    write_prepared_checkpoint(&shares.world, "c", &agent.state.borrow());
    agent.kill().await;
    fs::write(shares.world.record(), "{").expect("a broken record");
    let agent = shares.start_and_scan().await;
    assert!(shares.world.record().with_extension("json.unreadable").exists());
    assert!(shares.folder().exists(), "its containers may share it");
    agent.stop().await;
    shares.end_daemons().await;
}

#[tokio::test]
async fn a_gpu_that_containers_share_by_mps_is_chosen_for_no_claim() {
    let mut shares = Shares::new(MPS);
    let policy = &mut shares.world.config.policy;
    policy.dra.shares.clear();
    policy.dra.devices = vec![Selector::all(DeviceKind::Gpu)];
    let rule = |name: &str, index: &[u32], sharing| {
        let devices =
            Selector { index: index.iter().copied().collect(), ..Selector::all(DeviceKind::Gpu) };
        ResourceRule::new(name.parse().expect("a name"), devices, sharing)
    };
    let replicas = 4.try_into().expect("valid");
    let (method, per_container) = (SharingMethod::Mps, PerContainer::One);
    let by_mps = Sharing::Shared(Shared { method, replicas, per_container, memory_mib: None });
    let rules = vec![
        rule("example.com/gpu-mps", &[0], by_mps),
        rule("nvidia.com/gpu", &[], Sharing::Exclusive),
    ];
    policy.resources = Resources::Rules(rules);
    let (agent, mut kubelet) = shares.start_ready().await;
    let gpus = crate::dra::world::gpus(&agent.state.borrow());
    let scheduled =
        shares.schedule_requests("plain", &[("gpu", &json!({}))]).expect("others are free");
    let Holder { claim, uid, .. } = Holder::of("plain", &scheduled);
    let devices = kubelet.prepare_claim((&claim, &uid)).await.expect("prepared");
    assert_eq!(devices[0].device_name, gpus[1].id.as_str().to_lowercase());
    let slices: Vec<ResourceSlice> = shares.cluster.objects().list();
    let published = |gpu: &Device| {
        let name = gpu.id.as_str().to_lowercase();
        slices.iter().flat_map(|it| it.spec.devices.iter().flatten()).any(|it| it.name == name)
    };
    assert_eq!([published(&gpus[0]), published(&gpus[1])], [false, true]);
    agent.stop().await;
}

#[tokio::test]
async fn the_containers_of_a_claim_share_its_full_gpu_by_mps_on_request() {
    let mut world = World::new();
    world.config.policy.dra.devices = vec![Selector::all(DeviceKind::Gpu)];
    let (agent, mut kubelet) = world.start_ready().await;
    let allocated = crate::dra::world::FIRST_GPU;
    let mut claim = world.claim(&agent, "c", &[allocated]);
    let settings = json!({"activeThreadPercentage": 50, "pinnedMemoryLimit": "10Gi"});
    let parameters = json!({
        "apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig",
        "sharing": {"strategy": "MPS", "mps": settings},
    });
    let config = json!({
        "source": "FromClaim", "requests": ["a"],
        "opaque": {"driver": "windlass.dev", "parameters": parameters},
    });
    claim["status"]["allocation"]["devices"]["config"] = json!([config]);
    world.put(&claim);
    kubelet.prepare("c").await.expect("prepared");
    let text = world.document("c").expect("it has one").to_string();
    for expected in ["PERCENTAGE=50", "MEM_LIMIT=0=10240M", "/dev/shm"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    world.claim(&agent, "other", &[allocated]);
    kubelet.prepare("other").await.expect_err("another claim has it exclusively");
    kubelet.unprepare("c").await.expect("released");
    kubelet.prepare("other").await.expect("exclusive after the end of the daemon");
    let stopped = windlass_lifecycle::mps::stop_all(&world.config.places, &world.config.mps).await;
    assert!(stopped.is_empty(), "{stopped:?}");
    agent.stop().await;
}
