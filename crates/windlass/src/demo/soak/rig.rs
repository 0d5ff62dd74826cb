//! What a soak runs on: a machine, an embedded kubelet, the agent's process, and what is the case.

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
    Condition, Container, Event, Kubelet, NodeStatus, Pod, Registration, ResourceStatus,
};
use windlass_machine::{Machine, Profile, state::Gpu};

use super::{
    super::runtime,
    agent::{Agent, Mounts, cdi_dir, state_dir},
    cluster::Cluster,
    hands::{self, Record, published_name},
    invariant::{self, Broken, Doubted, Truth, Witness},
    schedule::Ways,
    slices::Ground,
};
use crate::simulated;

/// Everything that plays a part, and what is known of the machine.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) machine: Machine,
    pub(super) kubelet: Kubelet,
    pub(super) agent: Agent,
    /// Where claims come from, if any do.
    pub(super) cluster: Option<Cluster>,
    truth: watch::Sender<Truth>,
    /// What was listed besides whole GPUs at the start.
    others: Option<Listed>,
    folder: TempDir,
}

/// Devices by resource, and whether each is healthy.
type Listed = BTreeMap<String, BTreeMap<String, bool>>;

/// A whole GPU of the machine.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// NVML's index.
    pub(super) index: usize,
    pub(super) gpu: Gpu,
    pub(super) is_broken: bool,
}

/// What whole GPUs are offered as.
pub(super) const RESOURCE: &str = "nvidia.com/gpu";

/// What network adapters are offered as.
pub(super) const ADAPTERS: &str = "rdma/hca";

/// What CDI documents call them.
const CDI_KIND: &str = "windlass.dev/gpu";

/// How often is looked at what sends no notice.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

// === impl Rig ===

impl Rig {
    /// Makes the machine, and starts the kubelet and the agent.
    pub(super) async fn start(
        profile: &Profile,
        mounts: Mounts,
        mut cluster: Option<Cluster>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("windlass-").tempdir();
        let folder = folder.context("cannot make a temporary folder")?;
        let path = folder.path();
        let machine = simulated::machine(&path.join("machine"), profile)
            .context("cannot make the simulated machine")?;
        let mut settings = windlass_kubelet_sim::Config::new(path.join("kubelet"));
        settings.numa_nodes = (0..8).collect();
        let kubelet = Kubelet::start(settings).context("cannot start the embedded kubelet")?;
        // A node has pods besides: a kubelet that tells of none is taken for one that does not know them yet.
        let own = Pod::new("windlass").container(Container::new("node"));
        Box::pin(kubelet.admit(own)).await.context("the agent's own pod is not admitted")?;
        if let Some(cluster) = &mut cluster {
            cluster.attend(&kubelet);
        }
        let agent = Agent::start((path, mounts), &machine, cluster.as_ref()).await?;
        let truth = Truth { agent_runs_since: Some(Instant::now()), ..Truth::default() };
        let truth = watch::Sender::new(truth);
        Ok(Self { machine, kubelet, agent, cluster, truth, others: None, folder })
    }

    /// What is listed besides whole GPUs is what there is, once it is listed: resources are registered one
    /// after the other.
    pub(super) async fn remember_others(&mut self, limit: Duration) -> Result<()> {
        let nics = self.machine.model()?.nics.len();
        let are_listed = |node: &NodeStatus| nics == 0 || node.resources.contains_key(ADAPTERS);
        let listed = self.kubelet.wait_for(are_listed, limit).await;
        let node = listed.map_err(|_| anyhow!("{ADAPTERS} is not offered within {limit:?}"))?;
        self.others = Some(others(&node));
        Ok(())
    }

    pub(super) fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Through which of the kubelet's ways pods get GPUs.
    pub(super) fn ways(&self) -> Ways {
        if self.cluster.is_some() { Ways::Both } else { Ways::DevicePlugin }
    }

    pub(super) fn plugin_dir(&self) -> PathBuf {
        self.kubelet.config().plugin_dir()
    }

    /// Ends with the first invariant that does not hold.
    pub(super) fn watched(&self) -> impl Future<Output = Broken> + use<> {
        watch_over(self.kubelet.watch(), self.truth.subscribe())
    }

    /// The agent cannot notice anything from now on.
    pub(super) fn agent_is_away(&self) {
        self.truth.send_modify(|truth| truth.agent_runs_since = None);
    }

    pub(super) fn agent_runs(&self) {
        self.truth.send_modify(|truth| truth.agent_runs_since = Some(Instant::now()));
    }

    /// From now on it is a lie that the GPU is healthy.
    pub(super) fn breaks(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            truth.broken.entry(uuid.to_owned()).or_insert_with(Instant::now);
        });
    }

    /// Told before the GPU is mended, so that nobody is a liar who is quick.
    pub(super) fn is_mended(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            truth.broken.remove(uuid);
        });
    }

    /// From now on these GPUs may be told to be unhealthy.
    pub(super) fn doubts(&self, doubted: Doubted) {
        self.truth.send_modify(|truth| truth.doubted = doubted);
    }

    /// From now on so may this one.
    pub(super) fn doubt(&self, uuid: &str) {
        self.truth.send_modify(|truth| {
            if let Doubted::These(doubted) = &mut truth.doubted {
                doubted.insert(uuid.to_owned());
            }
        });
    }

    /// A claim is meant to have these, until it has let go of them and all is settled.
    pub(super) fn are_claimed(&self, devices: &BTreeSet<String>) {
        self.truth.send_modify(|truth| truth.claimed.extend(devices.iter().cloned()));
    }

    /// Whole GPUs that are there, in the driver's order.
    pub(super) fn gpus(&self) -> Result<Vec<Found>> {
        let truth = self.truth.borrow();
        let gpus = self.machine.model()?.gpus.into_iter().enumerate();
        let whole = gpus.filter(|(_, gpu)| gpu.mig.is_none());
        let found = whole.map(|(index, gpu)| {
            let is_broken = truth.broken.contains_key(&gpu.uuid);
            Found { index, gpu, is_broken }
        });
        Ok(found.collect())
    }

    /// Waits until the kubelet reaches the agent and was told the truth, and containers would get it.
    pub(super) async fn settled(&self, limit: Duration) -> Result<(), String> {
        let usable = self.usable().map_err(|error| format!("{error:#}"))?;
        let begun = Instant::now();
        let mut node = self.kubelet.watch();
        loop {
            if self.cluster.is_some() {
                self.kubelet.reconcile_claims().await;
            }
            let seen = node.borrow_and_update().clone();
            let Err(left) = self.is_settled(&seen, &usable) else {
                let taken = self.record()?.devices();
                self.truth.send_modify(|truth| truth.claimed.retain(|it| taken.contains(it)));
                return Ok(());
            };
            if begun.elapsed() >= limit {
                return Err(left);
            }
            // Sockets and documents change without the kubelet's notice.
            let _ = timeout(GLANCE, node.changed()).await;
        }
    }

    fn is_settled(&self, node: &NodeStatus, usable: &BTreeSet<String>) -> Result<(), String> {
        let record = self.record()?;
        let taken = record.devices();
        let is_free = |uuid: &&String| !taken.contains(&published_name(uuid));
        is_as(node, &usable.iter().filter(is_free).cloned().collect())?;
        self.others_are_as_ever(node)?;
        self.documents_name(usable, node)?;
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let broken = self.broken();
        cluster.is_reached(node)?;
        hands::agree(node, &record)?;
        let held = invariant::holders(node).into_keys().collect();
        cluster.published().fits(Ground { usable, broken: &broken, held: &held })
    }

    /// Nothing is lacking of what there was at the start, and nothing is listed that was not there.
    fn others_are_as_ever(&self, node: &NodeStatus) -> Result<(), String> {
        let (Some(before), now) = (&self.others, others(node)) else { return Ok(()) };
        if now == *before {
            return Ok(());
        }
        Err(format!("{now:?} are listed besides whole GPUs, and {before:?} at the start"))
    }

    /// What claims have, by the driver's record.
    pub(super) fn record(&self) -> Result<Record, String> {
        Record::read(&state_dir(self.dir()))
            .map_err(|error| format!("the driver's record: {error}"))
    }

    /// No device is in two hands, by whichever account.
    pub(super) fn in_one_hand(&self) -> Result<()> {
        let record = self.record().map_err(Error::msg)?;
        Ok(hands::in_one_hand(hands::by_kubelet(&self.kubelet.node()), &record)?)
    }

    /// A CDI document of a claim, if there is one.
    pub(super) fn claim_document(&self) -> Result<Option<String>, String> {
        let entries = fs::read_dir(cdi_dir(self.dir()))
            .map_err(|error| format!("the CDI folder cannot be read: {error}"))?;
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.find(|name| name.contains("-claim-")))
    }

    /// Whether slices are there, and no broken GPU in them for want of a taint.
    pub(super) fn publishes_without_taints(&self) -> Result<Result<(), String>> {
        let cluster = self.cluster.as_ref().context("the soak is without claims")?;
        if cluster.slices().is_empty() {
            return Ok(Err("no slice is published".to_owned()));
        }
        Ok(cluster.published().none_is_broken(&self.broken()))
    }

    /// Waits until whole GPUs are registered since a moment.
    pub(super) async fn registered_since(&self, since: u64, limit: Duration) -> Result<(), String> {
        let is_it = |event: &Event| matches!(event, Event::Registered { resource, .. } if resource == RESOURCE);
        let registered = self.kubelet.calls().wait_for_one(since, is_it, limit).await;
        registered.map(drop).ok_or_else(|| "nobody registers".to_owned())
    }

    fn usable(&self) -> Result<BTreeSet<String>> {
        let usable = self.gpus()?.into_iter().filter(|found| !found.is_broken);
        Ok(usable.map(|found| found.gpu.uuid).collect())
    }

    /// GPUs that cannot be used now, also one that is not there: who was not told of it yet goes on publishing it.
    pub(super) fn broken(&self) -> BTreeSet<String> {
        self.truth.borrow().broken.keys().cloned().collect()
    }

    /// Each container could be started, or started again.
    fn documents_name(&self, usable: &BTreeSet<String>, node: &NodeStatus) -> Result<(), String> {
        let usable = usable.iter().map(|uuid| format!("{CDI_KIND}={uuid}"));
        let names: Vec<_> = usable.chain(hands::given(node).cloned()).collect();
        let resolved = runtime::resolve(&cdi_dir(self.dir()), &names);
        resolved.map(|_| ()).map_err(|error| format!("{error:#}"))
    }

    /// The folder stays, for whoever wants to know what went wrong.
    pub(super) fn keep_folder(&mut self) {
        self.folder.disable_cleanup(true);
    }

    /// Ends all, and removes the folder.
    pub(super) async fn clear(mut self) {
        // A call that hangs in the simulated driver would outlive it.
        self.agent.kill().await;
        self.kubelet.shutdown().await;
    }

    /// Moves a folder out of the way, and says where to.
    pub(super) fn move_away(&self, what: &Path) -> Result<PathBuf> {
        let away = self.dir().join("away");
        let moved = fs::rename(what, &away);
        moved.with_context(|| format!("cannot move {} away", what.display()))?;
        Ok(away)
    }
}

async fn watch_over(
    mut node: watch::Receiver<Arc<NodeStatus>>,
    truth: watch::Receiver<Truth>,
) -> Broken {
    let mut witness = Witness::default();
    loop {
        let seen = node.borrow_and_update().clone();
        if let Err(broken) = witness.see(Instant::now(), &truth.borrow(), &seen) {
            return broken;
        }
        // Time alone can make what is told a lie. A kubelet that is gone tells nothing more.
        if let Ok(Err(_)) = timeout(GLANCE, node.changed()).await {
            sleep(GLANCE).await;
        }
    }
}

/// What the kubelet was told of besides whole GPUs.
fn others(node: &NodeStatus) -> Listed {
    let health = |resource: &ResourceStatus| {
        let devices = resource.devices.values();
        devices.map(|device| (device.id.clone(), device.is_healthy())).collect()
    };
    let others = node.resources.iter().filter(|(name, _)| *name != RESOURCE);
    others.map(|(name, resource)| (name.clone(), health(resource))).collect()
}

/// Whether the kubelet's picture is that of a machine with these usable GPUs, whose plugin can be called.
fn is_as(node: &NodeStatus, usable: &BTreeSet<String>) -> Result<(), String> {
    match (&node.kubelet, node.registrations.get(RESOURCE)) {
        (Condition::Running, Some(Registration::Connected { endpoint, .. }))
            if endpoint.exists() => {}
        (kubelet, other) => return Err(format!("kubelet {kubelet:?}, registration {other:?}")),
    }
    let resource = node.resources.get(RESOURCE).cloned().unwrap_or_default();
    let healthy = resource.devices.values().filter(|device| device.is_healthy());
    let healthy: BTreeSet<_> = healthy.map(|device| device.id.clone()).collect();
    // A plugin that has just registered is yet to tell its list: that of the one before gives nobody anything.
    if healthy == *usable && resource.allocatable == usable.len() {
        return Ok(());
    }
    let lacking: Vec<_> = usable.difference(&healthy).collect();
    let too_many: Vec<_> = healthy.difference(usable).collect();
    let count = resource.allocatable;
    Err(format!(
        "usable and not offered: {lacking:?}; offered and not usable: {too_many:?}; allocatable: {count}"
    ))
}
