//! Test rig of a soak: machine, embedded kubelet, agent process, and ground truth.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Error, Result, anyhow};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use windlass_kubelet_sim::{
    Container, Event, Kubelet, KubeletState, NodeStatus, PluginStatus, Pod, ResourceStatus,
};
use windlass_machine::{Machine, MachineProfile, state::Gpu};

use super::{
    super::{runtime, testbed::cdi_dir},
    agent::{Agent, Mounts, is_copy_current, state_dir},
    cluster::SoakCluster,
    invariant::{self, GroundTruth, MaybeUnhealthy, Monitor, Violation},
    owners::{self, DriverRecord, published_name},
    schedule::AllocationApis,
    slices::ExpectedSlices,
};
use crate::simulated;

#[derive(Debug)]
pub(super) struct Rig {
    pub(super) machine: Machine,
    pub(super) kubelet: Kubelet,
    pub(super) agent: Agent,
    /// Cluster, in a soak with claims.
    pub(super) cluster: Option<SoakCluster>,
    truth: watch::Sender<GroundTruth>,
    /// Health of the devices other than whole GPUs, at the start.
    other_devices: Option<HealthByResource>,
    pub(super) folder: TempDir,
}

type HealthByResource = BTreeMap<String, BTreeMap<String, bool>>;

/// Whole GPU of the machine.
#[derive(Clone, Debug)]
pub(super) struct IndexedGpu {
    pub(super) index: usize,
    pub(super) gpu: Gpu,
    pub(super) is_broken: bool,
}

pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// UID of the agent's own pod.
pub(super) const AGENT_POD_UID: &str = "windlass-uid";

/// Resource of NICs.
pub(super) const NIC_RESOURCE: &str = "rdma/hca";

const CDI_KIND: &str = "windlass.dev/gpu";

/// Poll interval for state without notifications.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

// === impl Rig ===

impl Rig {
    /// Creates the machine and starts kubelet and agent.
    pub(super) async fn start(
        profile: &MachineProfile,
        mounts: Mounts,
        mut cluster: Option<SoakCluster>,
    ) -> Result<Self> {
        let folder = simulated::temp_folder()?;
        let path = folder.path();
        let machine = simulated::create_machine_in(path, profile)?;
        let kubelet = simulated::start_kubelet_in(path)?;
        // The agent takes an empty pod list for one that the kubelet has not synchronized yet.
        let own_pod = Pod::new("windlass").container(Container::new("node"));
        Box::pin(kubelet.admit(own_pod)).await.context("the agent's own pod is not admitted")?;
        if let Some(cluster) = &mut cluster {
            cluster.fixture.delete_slices_at_kubelet_start(&kubelet);
        }
        let agent = Agent::start(path, mounts, &machine, cluster.as_ref())?;
        let truth =
            GroundTruth { agent_runs_since: Some(Instant::now()), ..GroundTruth::default() };
        let truth = watch::Sender::new(truth);
        Ok(Self { machine, kubelet, agent, cluster, truth, other_devices: None, folder })
    }

    /// Records the health of the devices other than whole GPUs, once NICs are listed: resources register one by one.
    pub(super) async fn record_other_devices(&mut self, limit: Duration) -> Result<()> {
        let nics = self.machine.model()?.nics.len();
        let are_listed = |node: &NodeStatus| nics == 0 || node.resources.contains_key(NIC_RESOURCE);
        let result = self.kubelet.wait_for(are_listed, limit).await;
        let node = result.map_err(|_| anyhow!("{NIC_RESOURCE} is not offered within {limit:?}"))?;
        self.other_devices = Some(other_devices(&node));
        Ok(())
    }

    pub(super) fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// APIs that allocate GPUs in this soak.
    pub(super) fn apis(&self) -> AllocationApis {
        if self.cluster.is_some() { AllocationApis::Both } else { AllocationApis::DevicePlugin }
    }

    pub(super) fn plugin_dir(&self) -> PathBuf {
        self.kubelet.config().plugin_dir()
    }

    /// Future that checks every device list, and completes at the first violation.
    pub(super) fn first_violation(&self) -> impl Future<Output = Violation> + use<> {
        monitor_node(self.kubelet.watch_status(), self.truth.subscribe())
    }

    /// Records that the agent does not run.
    pub(super) fn mark_agent_stopped(&self) {
        self.truth.send_modify(|truth| truth.agent_runs_since = None);
    }

    pub(super) fn mark_agent_started(&self) {
        self.truth.send_modify(|truth| truth.agent_runs_since = Some(Instant::now()));
    }

    /// Records a broken GPU.
    pub(super) fn mark_broken(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            truth.broken.entry(uuid.to_owned()).or_insert_with(Instant::now);
        });
    }

    /// Records the repair of a GPU. Called before the repair, because the agent may report it at once.
    pub(super) fn mark_repaired(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            truth.broken.remove(uuid);
        });
    }

    /// Replaces the GPUs that may be reported unhealthy.
    pub(super) fn set_maybe_unhealthy(&self, maybe_unhealthy: MaybeUnhealthy) {
        self.truth.send_modify(|truth| truth.maybe_unhealthy = maybe_unhealthy);
    }

    /// Adds a GPU that may be reported unhealthy.
    pub(super) fn add_maybe_unhealthy(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            if let MaybeUnhealthy::Only(maybe_unhealthy) = &mut truth.maybe_unhealthy {
                maybe_unhealthy.insert(uuid.to_owned());
            }
        });
    }

    /// Adds devices of claims. [`Rig::wait_until_settled`] removes those that the driver's record no longer has.
    pub(super) fn mark_claimed(&self, devices: &BTreeSet<String>) {
        self.truth.send_modify(|truth| truth.claimed.extend(devices.iter().cloned()));
    }

    /// Present whole GPUs in the driver's order.
    pub(super) fn gpus(&self) -> Result<Vec<IndexedGpu>> {
        let truth = self.truth.borrow();
        let gpus = self.machine.model()?.gpus.into_iter().enumerate();
        let whole_gpus = gpus.filter(|(_, gpu)| gpu.mig.is_none());
        let indexed_gpus = whole_gpus.map(|(index, gpu)| {
            let is_broken = truth.broken.contains_key(&gpu.uuid);
            IndexedGpu { index, gpu, is_broken }
        });
        Ok(indexed_gpus.collect())
    }

    /// Waits until device lists, CDI documents and slices match the ground truth. On timeout, returns the last
    /// difference.
    pub(super) async fn wait_until_settled(&self, limit: Duration) -> Result<(), String> {
        let usable = self.usable().map_err(|error| format!("{error:#}"))?;
        let start = Instant::now();
        let mut node = self.kubelet.watch_status();
        loop {
            if self.cluster.is_some() {
                self.kubelet.reconcile_claims().await;
            }
            let status = node.borrow_and_update().clone();
            let Err(problem) = self.check_settled(&status, &usable) else {
                let claimed = self.record()?.devices();
                self.truth
                    .send_modify(|truth| truth.claimed.retain(|device| claimed.contains(device)));
                return Ok(());
            };
            if start.elapsed() >= limit {
                return Err(problem);
            }
            // Poll as well, because sockets and documents change without a notification.
            let _ = timeout(POLL_INTERVAL, node.changed()).await;
        }
    }

    fn check_settled(&self, node: &NodeStatus, usable: &BTreeSet<String>) -> Result<(), String> {
        let record = self.record()?;
        let claimed = record.devices();
        let is_free = |uuid: &&String| !claimed.contains(&published_name(uuid));
        check_devices(node, &usable.iter().filter(is_free).cloned().collect())?;
        self.check_other_devices(node)?;
        self.check_documents(usable, node)?;
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let broken = self.broken();
        cluster.check_connected(node)?;
        if !is_copy_current(self.dir()) {
            return Err("the record of claims has no copy".to_owned());
        }
        owners::check_agreement(node, &record)?;
        let held = invariant::holders(node).into_keys().collect();
        cluster.published().check(ExpectedSlices { usable, broken: &broken, held: &held })
    }

    /// Checks that the health of the other devices is as at the start.
    fn check_other_devices(&self, node: &NodeStatus) -> Result<(), String> {
        let (Some(initial), now) = (&self.other_devices, other_devices(node)) else {
            return Ok(());
        };
        if now == *initial {
            return Ok(());
        }
        Err(format!("health of other devices is {now:?}, and was {initial:?} at the start"))
    }

    /// Devices by claim, from the driver's record.
    pub(super) fn record(&self) -> Result<DriverRecord, String> {
        DriverRecord::read(&state_dir(self.dir()))
            .map_err(|error| format!("the driver's record: {error}"))
    }

    /// Checks that no device has two owners.
    pub(super) fn check_exclusive(&self) -> Result<()> {
        let record = self.record().map_err(Error::msg)?;
        Ok(owners::check_exclusive(owners::kubelet_owners(&self.kubelet.status()), &record)?)
    }

    /// Checks without the taints gate: slices exist, and broken GPUs are not published.
    pub(super) fn check_without_taints(&self) -> Result<Result<(), String>> {
        let cluster = self.cluster.as_ref().context("the soak is without claims")?;
        if cluster.slices().is_empty() {
            return Ok(Err("no slice is published".to_owned()));
        }
        Ok(cluster.published().check_no_broken(&self.broken()))
    }

    /// Waits until whole GPUs were registered after `since`.
    pub(super) async fn wait_for_registration(
        &self,
        since: u64,
        limit: Duration,
    ) -> Result<(), String> {
        let is_gpus = |event: &Event| matches!(event, Event::Registered { resource, .. } if resource == GPU_RESOURCE);
        let event = self.kubelet.events().wait_for_event(since, is_gpus, limit).await;
        event.map(drop).ok_or_else(|| "no registration".to_owned())
    }

    fn usable(&self) -> Result<BTreeSet<String>> {
        let usable = self.gpus()?.into_iter().filter(|indexed_gpu| !indexed_gpu.is_broken);
        Ok(usable.map(|indexed_gpu| indexed_gpu.gpu.uuid).collect())
    }

    /// Broken GPUs, present or not: the agent may still publish a missing one.
    pub(super) fn broken(&self) -> BTreeSet<String> {
        self.truth.borrow().broken.keys().cloned().collect()
    }

    /// Checks that the CDI documents have every usable GPU, and every device of a claim.
    fn check_documents(&self, usable: &BTreeSet<String>, node: &NodeStatus) -> Result<(), String> {
        let usable = usable.iter().map(|uuid| format!("{CDI_KIND}={uuid}"));
        let names: Vec<_> = usable.chain(owners::cdi_names(node).cloned()).collect();
        let result = runtime::resolve(&cdi_dir(self.dir()), &names);
        result.map(|_| ()).map_err(|error| format!("{error:#}"))
    }

    /// Ends all parts and removes the folder.
    pub(super) async fn shut_down(mut self) {
        // Kill the agent: a call that hangs in the simulated driver would outlive a graceful stop.
        self.agent.process.kill().await;
        self.kubelet.shutdown().await;
    }

    /// Moves a folder away and returns its new path.
    pub(super) fn move_away(&self, path: &Path) -> Result<PathBuf> {
        let moved_path = self.dir().join("away");
        let result = fs::rename(path, &moved_path);
        result.with_context(|| format!("cannot move {} away", path.display()))?;
        Ok(moved_path)
    }
}

async fn monitor_node(
    mut node: watch::Receiver<Arc<NodeStatus>>,
    truth: watch::Receiver<GroundTruth>,
) -> Violation {
    let mut monitor = Monitor::default();
    loop {
        let status = node.borrow_and_update().clone();
        if let Err(violation) = monitor.check(Instant::now(), &truth.borrow(), &status) {
            return violation;
        }
        // Poll as well, because a deadline may pass without a change. After the kubelet's end `changed` fails at once.
        if let Ok(Err(_)) = timeout(POLL_INTERVAL, node.changed()).await {
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Health of the devices other than whole GPUs.
fn other_devices(node: &NodeStatus) -> HealthByResource {
    let health = |resource: &ResourceStatus| {
        let devices = resource.devices.values();
        devices.map(|device| (device.id.clone(), device.is_healthy())).collect()
    };
    let other_devices = node.resources.iter().filter(|(name, _)| *name != GPU_RESOURCE);
    other_devices.map(|(name, resource)| (name.clone(), health(resource))).collect()
}

/// Checks that the kubelet lists exactly the usable GPUs and can call the plugin.
fn check_devices(node: &NodeStatus, usable: &BTreeSet<String>) -> Result<(), String> {
    match (&node.kubelet, node.plugins.get(GPU_RESOURCE)) {
        (KubeletState::Running, Some(PluginStatus::Connected { endpoint, .. }))
            if endpoint.exists() => {}
        (kubelet, plugin) => {
            return Err(format!("kubelet {kubelet:?}, registration {plugin:?}"));
        }
    }
    let resource = node.resources.get(GPU_RESOURCE).cloned().unwrap_or_default();
    let healthy = resource.devices.values().filter(|device| device.is_healthy());
    let healthy: BTreeSet<_> = healthy.map(|device| device.id.clone()).collect();
    // The kubelet does not allocate from a list that precedes the latest registration.
    if healthy == *usable && resource.allocatable == usable.len() {
        return Ok(());
    }
    let missing: Vec<_> = usable.difference(&healthy).collect();
    let unexpected: Vec<_> = healthy.difference(usable).collect();
    let count = resource.allocatable;
    Err(format!(
        "usable but not offered: {missing:?}; offered but not usable: {unexpected:?}; allocatable: {count}"
    ))
}
