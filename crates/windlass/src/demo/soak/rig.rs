//! What a soak runs on: a machine, an embedded kubelet, the agent's process, and what is the case.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use windlass_kubelet_sim::{Condition, Event, Kubelet, NodeStatus, Registration, ResourceStatus};
use windlass_machine::{Machine, Profile, simulated_driver, state::Gpu};

use super::{
    super::runtime,
    agent::{Agent, cdi_dir},
    invariant::{Broken, Truth, Witness},
};

/// Everything that plays a part, and what is known of the machine.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) machine: Machine,
    pub(super) kubelet: Kubelet,
    pub(super) agent: Agent,
    truth: watch::Sender<Truth>,
    folder: TempDir,
}

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

/// What CDI documents call them.
const CDI_KIND: &str = "windlass.dev/gpu";

/// How often is looked at what sends no notice.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

// === impl Rig ===

impl Rig {
    /// Makes the machine, and starts the kubelet and the agent.
    pub(super) async fn start(profile: &Profile) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("windlass-").tempdir();
        let folder = folder.context("cannot make a temporary folder")?;
        let path = folder.path();
        let machine = Machine::create(&path.join("machine"), profile, &simulated_driver()?)
            .context("cannot make the simulated machine")?;
        let mut settings = windlass_kubelet_sim::Config::new(path.join("kubelet"));
        settings.numa_nodes = (0..8).collect();
        let kubelet = Kubelet::start(settings).context("cannot start the embedded kubelet")?;
        let agent = Agent::start(path, &machine).await?;
        let truth = Truth { agent_runs_since: Some(Instant::now()), ..Truth::default() };
        Ok(Self { machine, kubelet, agent, truth: watch::Sender::new(truth), folder })
    }

    pub(super) fn dir(&self) -> &Path {
        self.folder.path()
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
            let seen = node.borrow_and_update().clone();
            let Err(left) = is_as(&seen, &usable).and_then(|()| self.documents_name(&usable))
            else {
                return Ok(());
            };
            if begun.elapsed() >= limit {
                return Err(left);
            }
            // Sockets and documents change without the kubelet's notice.
            let _ = timeout(GLANCE, node.changed()).await;
        }
    }

    /// How often a resource was registered so far.
    pub(super) fn registrations(&self) -> usize {
        self.kubelet.calls().count(|event| matches!(event, Event::Registered { .. }))
    }

    /// Waits until one more is registered than before.
    pub(super) async fn registered_since(
        &self,
        before: usize,
        limit: Duration,
    ) -> Result<(), String> {
        let registers = async {
            while self.registrations() <= before {
                sleep(GLANCE).await;
            }
        };
        timeout(limit, registers).await.map_err(|_| "nobody registers".to_owned())
    }

    fn usable(&self) -> Result<BTreeSet<String>> {
        let usable = self.gpus()?.into_iter().filter(|found| !found.is_broken);
        Ok(usable.map(|found| found.gpu.uuid).collect())
    }

    fn documents_name(&self, usable: &BTreeSet<String>) -> Result<(), String> {
        let names: Vec<_> = usable.iter().map(|uuid| format!("{CDI_KIND}={uuid}")).collect();
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

/// Whether the kubelet's picture is that of a machine with these usable GPUs, whose plugin can be called.
fn is_as(node: &NodeStatus, usable: &BTreeSet<String>) -> Result<(), String> {
    match (&node.kubelet, node.registrations.get(RESOURCE)) {
        (Condition::Running, Some(Registration::Connected { endpoint, .. }))
            if endpoint.exists() => {}
        (kubelet, other) => return Err(format!("kubelet {kubelet:?}, registration {other:?}")),
    }
    let is_healthy = |resource: &ResourceStatus| {
        let healthy = resource.devices.values().filter(|device| device.is_healthy());
        healthy.map(|device| device.id.clone()).collect::<BTreeSet<_>>()
    };
    let healthy = node.resources.get(RESOURCE).map(is_healthy).unwrap_or_default();
    if healthy == *usable {
        return Ok(());
    }
    let lacking: Vec<_> = usable.difference(&healthy).collect();
    let too_many: Vec<_> = healthy.difference(usable).collect();
    Err(format!("usable and not offered: {lacking:?}; offered and not usable: {too_many:?}"))
}
