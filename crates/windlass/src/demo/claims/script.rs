//! Steps of the claims demo: each performs an action, checks the result and reports it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::time::Instant;
use windlass_cluster_sim::{api::Objects, node};
use windlass_core::inventory::Inventory;
use windlass_kubelet_sim::{ClaimStatus, HealthWord, NodeStatus};

use super::{
    candidates::{Candidates, PCIE_ROOT},
    cluster::{self, ClusterFixture, name_of},
    event::{AllocatedDevice, ClaimContainer, ClaimEvent, PodRuns, Published},
    pod_spec::{PodSpec, results},
};
use crate::{
    commands::short_name,
    demo::{
        event::Gets,
        fault::DeviceFault,
        report::Reporter,
        runtime,
        script::{STEP_LIMIT, ms},
        stage::{NODE, QUIET_PERIOD, Stage},
    },
    exit::Misuse,
};

pub(super) struct ClaimScript<'a> {
    stage: &'a Stage,
    cluster: &'a ClusterFixture,
    reporter: Reporter,
    begun: Instant,
    steps: usize,
    pods: usize,
    /// UIDs of the running pods, by name.
    running: BTreeMap<String, String>,
    inventory: Inventory,
}

/// Limit of devices per claim in Kubernetes (`AllocationResultsMaxSize`).
const MAX_DEVICES: usize = 32;

/// Name of the pod that requests all devices.
const EVERYTHING: &str = "everything";

// === impl ClaimScript ===

impl<'a> ClaimScript<'a> {
    pub(super) fn new(
        stage: &'a Stage,
        cluster: &'a ClusterFixture,
        reporter: Reporter,
        begun: Instant,
    ) -> Self {
        Self {
            stage,
            cluster,
            reporter,
            begun,
            steps: 0,
            pods: 0,
            running: BTreeMap::new(),
            inventory: Inventory::default(),
        }
    }

    pub(super) async fn play(&mut self, inventory: Inventory) -> Result<()> {
        self.inventory = inventory;
        let published = self.publish().await.context("step publication")?;
        let Some(candidates) = Candidates::of(&published) else {
            let problem = "the demo of claims needs an exclusive device, and the agent offers none: give a \
                           configuration with --config, or add devices with --device";
            return Err(Misuse(anyhow!(problem)).into());
        };
        self.by_attribute(&candidates).await.context("step attribute")?;
        self.together(&candidates).await.context("step shared claim")?;
        self.joint(&candidates).await.context("step GPU with NIC")?;
        self.fail_and_recover(&candidates).await?;
        self.extended(&candidates).await.context("step extended resource")?;
        self.restart_kubelet().await.context("step kubelet restart")?;
        self.wipe().await.context("step wiped slices")?;
        self.release().await.context("step release")?;
        let (steps, pods, took_ms) = (self.steps, self.pods, ms(self.begun));
        self.reporter.tell(&ClaimEvent::Finished { steps, pods, took_ms })
    }

    /// Waits for the slices of all claimable devices, and for the driver's registration.
    async fn publish(&mut self) -> Result<Vec<Published>> {
        self.registered().await?;
        let is_published = |published: &[Published]| {
            let state = self.stage.state.borrow();
            let claimable = state.inventory.devices.iter().filter(|it| state.is_claimable(&it.id));
            let is_probed = |it: &Published| !it.taints.iter().any(|it| it.contains("not-probed"));
            let named: BTreeSet<_> = published.iter().map(|it| it.name.clone()).collect();
            published.iter().all(is_probed) && claimable.count() <= named.len()
        };
        let devices = self.until_published(is_published).await?;
        let (driver, took_ms) = (self.cluster.driver.to_string(), ms(self.stage.agent_started));
        self.tell(&ClaimEvent::Published { driver, devices: devices.clone(), took_ms })?;
        Ok(devices)
    }

    async fn by_attribute(&mut self, candidates: &Candidates) -> Result<()> {
        self.chapter("A device by its attributes")?;
        let (expression, fitting) = candidates.described();
        let class = self.cluster.class_of(candidates.kind())?;
        let pod_spec = PodSpec::new("by-attribute").request("device", &class, 1, &expression);
        let runs = self.run(pod_spec).await?;
        for given in &runs.devices {
            ensure!(fitting.contains(&given.device), "{} does not match the request", given.name);
        }
        self.tell(&ClaimEvent::PodRuns(runs))
    }

    /// Shares a claim between two containers, beside another pod.
    async fn together(&mut self, candidates: &Candidates) -> Result<()> {
        self.chapter("Two containers share a device; another pod gets its own")?;
        self.end("by-attribute").await?;
        let class = self.cluster.class_of(candidates.kind())?;
        let pod_spec = PodSpec::new("two-containers").containers(&["train", "watch"]);
        let first = self.run(pod_spec.request("device", &class, 1, "")).await?;
        let [train, watch] = first.containers.as_slice() else { bail!("not two containers") };
        let same = train.gets.cdi_devices == watch.gets.cdi_devices;
        ensure!(same && !train.gets.cdi_devices.is_empty(), "the containers got different devices");
        let held: BTreeSet<_> = first.devices.iter().map(|it| it.device.clone()).collect();
        self.tell(&ClaimEvent::PodRuns(first))?;
        if candidates.alone().len() < 2 {
            let what = "A pod with another device";
            return self
                .reporter
                .tell(&ClaimEvent::NotShown { what, why: "there is only one".to_owned() });
        }
        let second = self.run(PodSpec::new("neighbour").request("device", &class, 1, "")).await?;
        let is_other = second.devices.iter().all(|it| !held.contains(&it.device));
        ensure!(is_other, "the second pod got a device of the first");
        self.tell(&ClaimEvent::PodRuns(second))
    }

    /// Allocates a GPU and a NIC below one PCIe root.
    async fn joint(&mut self, candidates: &Candidates) -> Result<()> {
        let Some((gpu, nic)) = candidates.pair() else {
            let why = "no GPU and NIC of this machine are below one root".to_owned();
            let what = "GPU and NIC on one PCIe root";
            return self.reporter.tell(&ClaimEvent::NotShown { what, why });
        };
        self.chapter("A GPU and a NIC on one PCIe root")?;
        self.end_all().await?;
        let classes = [self.cluster.class_of(&gpu)?, self.cluster.class_of(&nic)?];
        let pod_spec = PodSpec::new("joint").request("gpu", &classes[0], 1, "");
        let runs = self.run(pod_spec.request("nic", &classes[1], 1, "").same(PCIE_ROOT)).await?;
        let roots = runs.devices.iter().map(|it| candidates.attribute(&it.device, PCIE_ROOT));
        let roots: BTreeSet<_> = roots.collect();
        ensure!(runs.devices.len() == 2 && roots.len() == 1, "they are on {roots:?}");
        self.tell(&ClaimEvent::PodRuns(runs))
    }

    /// Lets a held device fail and recover.
    async fn fail_and_recover(&mut self, candidates: &Candidates) -> Result<()> {
        self.chapter("A device fails")?;
        self.end_all().await?;
        let class = self.cluster.class_of(candidates.kind())?;
        let runs = self.run(PodSpec::new("holder").request("device", &class, 1, "")).await?;
        let given = runs.devices.first().cloned().context("the pod has no device")?;
        self.tell(&ClaimEvent::PodRuns(runs))?;
        let mut devices = self.inventory.devices.iter();
        let device = devices.find(|device| short_name(device) == given.name);
        let Some(fault) = device.and_then(DeviceFault::of) else {
            let why = format!("no fault is simulated for {}", given.name);
            return self.reporter.tell(&ClaimEvent::NotShown { what: "A fault", why });
        };
        self.fail(&given, &fault).await.context("step failure")?;
        self.refuse(candidates, &given).await.context("step refusal")?;
        self.recover(candidates, &given, &fault).await.context("step recovery")
    }

    async fn fail(&mut self, given: &AllocatedDevice, fault: &DeviceFault) -> Result<()> {
        let begun = Instant::now();
        let what = fault.what.clone();
        self.reporter.tell(&ClaimEvent::Fault { device: given.name.clone(), fault: what })?;
        self.stage.machine.inject(&fault.initial)?;
        let is_well = |it: &Published| it.device == given.device && it.taints.is_empty();
        let published = self.until_published(|all| !all.iter().any(is_well)).await?;
        let device = published.iter().find(|it| it.device == given.device);
        let taint = device.map(|it| it.taints.join(" "));
        let told = |node: &NodeStatus| {
            let pods = node.pods.values().flat_map(|pod| pod.containers.values());
            let mut healths = pods.flat_map(|it| it.claim_health.values().flatten());
            healths.any(|it| it.health == HealthWord::Unhealthy)
        };
        self.stage.kubelet.wait_for(told, STEP_LIMIT).await?;
        let took_ms = ms(begun);
        fault.follow_up.iter().try_for_each(|fault| self.stage.machine.inject(fault))?;
        let (device, held_by) = (given.name.clone(), "holder".to_owned());
        self.tell(&ClaimEvent::Withheld { device, taint, held_by, took_ms })
    }

    /// Checks that a failed device is not allocated, although it is free.
    async fn refuse(&mut self, candidates: &Candidates, given: &AllocatedDevice) -> Result<()> {
        self.end("holder").await?;
        let Some(pod_spec) = self.everything(candidates)? else {
            let what = "A pod that waits for the device";
            let why = format!("a claim has at most {MAX_DEVICES} devices");
            return self.reporter.tell(&ClaimEvent::NotShown { what, why });
        };
        let Err(error) = self.cluster.schedule(&pod_spec) else {
            bail!("a claim got {}, which has failed", given.name);
        };
        let reason = format!("{error:#}");
        self.tell(&ClaimEvent::NotScheduled {
            pod: EVERYTHING.to_owned(),
            asks: pod_spec.asks,
            reason,
        })
    }

    async fn recover(
        &mut self,
        candidates: &Candidates,
        given: &AllocatedDevice,
        fault: &DeviceFault,
    ) -> Result<()> {
        let (begun, quiet_ms) = (Instant::now(), QUIET_PERIOD.as_secs_f64() * 1000.0);
        self.stage.machine.inject(&fault.repair)?;
        let device = given.name.clone();
        let waiting =
            ClaimEvent::Waiting { device: device.clone(), end: fault.repair_text, quiet_ms };
        self.reporter.tell(&waiting)?;
        let is_well = |it: &Published| it.device == given.device && it.taints.is_empty();
        self.until_published(|published| published.iter().any(is_well)).await?;
        ensure!(begun.elapsed() >= QUIET_PERIOD / 2, "it was trusted again without a quiet period");
        self.tell(&ClaimEvent::GivenAgain { device, took_ms: ms(begun) })?;
        let Some(pod_spec) = self.everything(candidates)? else { return Ok(()) };
        let runs = self.run(pod_spec).await?;
        self.tell(&ClaimEvent::PodRuns(runs))
    }

    /// Pod that requests all devices of the type, if a claim may have that many.
    fn everything(&self, candidates: &Candidates) -> Result<Option<PodSpec>> {
        let class = self.cluster.class_of(candidates.kind())?;
        let all = candidates.alone().len();
        let pod_spec =
            PodSpec::new(EVERYTHING).request("all", &class, all, candidates.only_alone());
        Ok(Some(pod_spec).filter(|_| all <= MAX_DEVICES))
    }

    async fn extended(&mut self, candidates: &Candidates) -> Result<()> {
        self.chapter("An extended resource, served by a DeviceClass")?;
        self.end_all().await?;
        let resource = candidates.extended_resource();
        self.cluster.serve_extended(candidates.kind(), &resource)?;
        let runs = self.run(PodSpec::extended("old-style", &resource)).await?;
        ensure!(runs.devices.len() == 1, "it got {} devices", runs.devices.len());
        self.tell(&ClaimEvent::PodRuns(runs))
    }

    async fn restart_kubelet(&mut self) -> Result<()> {
        let (before, claims) = (self.cluster.slices(), self.stage.kubelet.node().claims.clone());
        let begun = Instant::now();
        self.stage.kubelet.restart().await?;
        self.registered().await?;
        self.slices_renewed(&before).await?;
        let took_ms = ms(begun);
        let now = self.stage.kubelet.node().claims.clone();
        let devices = |claims: &BTreeMap<_, ClaimStatus>| {
            claims.values().map(|it| (it.uid.clone(), it.devices.clone())).collect::<Vec<_>>()
        };
        ensure!(devices(&claims) == devices(&now), "claims have other devices than before");
        let (slices, claims) = (before.len(), now.len());
        self.tell(&ClaimEvent::KubeletRestarted { slices, claims, took_ms })
    }

    async fn wipe(&mut self) -> Result<()> {
        let (before, begun) = (self.cluster.slices(), Instant::now());
        let slices = self.cluster.objects().wipe_slices(NODE);
        self.slices_renewed(&before).await?;
        let devices = self.cluster.published(&self.inventory).len();
        self.tell(&ClaimEvent::Republished { slices, devices, took_ms: ms(begun) })
    }

    /// Deletes all pods, and checks that nothing remains.
    async fn release(&mut self) -> Result<()> {
        let (begun, pods) = (Instant::now(), self.running.len());
        let claims = self.cluster.claims().len();
        self.end_all().await?;
        let left = self.stage.kubelet.node().claims.clone();
        ensure!(left.is_empty(), "the kubelet has claims left: {left:?}");
        ensure!(self.cluster.claims().is_empty(), "the cluster has claims left");
        let documents = runtime::claim_documents(&self.stage.cdi_dir())?;
        ensure!(documents.is_empty(), "CDI documents are left: {documents:?}");
        self.tell(&ClaimEvent::Released { pods, claims, took_ms: ms(begun) })
    }

    /// Schedules a pod, prepares its claims and starts its containers.
    async fn run(&mut self, pod_spec: PodSpec) -> Result<PodRuns> {
        let begun = Instant::now();
        let scheduled = self.cluster.schedule(&pod_spec)?;
        let pod = node::pod(&scheduled);
        let uid = pod.uid.clone();
        self.running.insert(pod_spec.name.clone(), uid.clone());
        Box::pin(self.stage.kubelet.admit(pod)).await?;
        let mut containers = Vec::new();
        for name in pod_spec.container_names() {
            let started = Box::pin(self.stage.kubelet.start_container(&uid, name));
            let grant = started.await?;
            let edits = runtime::resolve(&self.stage.cdi_dir(), &grant.cdi_devices)?;
            let gets = Gets::new(grant.cdi_devices, edits, Vec::new());
            containers.push(ClaimContainer { name: (*name).to_owned(), gets });
        }
        let took_ms = ms(begun);
        let devices = scheduled.claims.iter().flat_map(|claim| {
            let name = claim.metadata.name.clone().unwrap_or_default();
            results(claim).into_iter().map(move |result| (name.clone(), result))
        });
        let given = |(claim, [request, _, pool, device]): (String, [String; 4])| {
            let name = name_of(&device, &self.inventory);
            AllocatedDevice { claim, request, pool, device, name }
        };
        let devices = devices.map(given).collect();
        self.is_prepared(&devices)?;
        self.pods += 1;
        Ok(PodRuns { pod: pod_spec.name, asks: pod_spec.asks, devices, containers, took_ms })
    }

    /// Checks that the driver prepared the scheduler's choice.
    fn is_prepared(&self, devices: &Vec<AllocatedDevice>) -> Result<()> {
        let node = self.stage.kubelet.node();
        let prepared: BTreeSet<_> = node
            .claims
            .values()
            .flat_map(|claim| claim.devices.values().flatten())
            .map(|it| (it.pool.clone(), it.name.clone()))
            .collect();
        for given in devices {
            let at = (given.pool.clone(), given.device.clone());
            ensure!(prepared.contains(&at), "{} was not prepared", given.name);
        }
        Ok(())
    }

    async fn end(&mut self, name: &str) -> Result<()> {
        let uid = self.running.remove(name).with_context(|| format!("no pod {name} runs"))?;
        self.stage.kubelet.delete(&uid).await;
        self.cluster.delete(name)
    }

    async fn end_all(&mut self) -> Result<()> {
        let names: Vec<_> = self.running.keys().cloned().collect();
        for name in names {
            self.end(&name).await?;
        }
        Ok(())
    }

    async fn registered(&self) -> Result<()> {
        let driver = self.cluster.driver.as_str();
        let connected = |node: &NodeStatus| {
            node.drivers.get(driver).is_some_and(|all| all.iter().any(|one| one.is_connected))
        };
        self.stage.kubelet.wait_for(connected, STEP_LIMIT).await?;
        Ok(())
    }

    /// Waits until all slices have been replaced.
    async fn slices_renewed(&self, before: &[String]) -> Result<()> {
        let renewed = |_: &[Published]| {
            let now = self.cluster.slices();
            now.len() == before.len() && now.iter().all(|uid| !before.contains(uid))
        };
        self.until_published(renewed).await.map(drop)
    }

    async fn until_published(
        &self,
        condition: impl Fn(&[Published]) -> bool,
    ) -> Result<Vec<Published>> {
        let (driver, inventory) = (&self.cluster.driver, &self.inventory);
        let reached = |objects: &Objects| {
            Some(cluster::published(objects, driver, inventory)).filter(|all| condition(all))
        };
        let reached = self.cluster.objects().until(STEP_LIMIT, reached).await;
        // The actual slices are too long for a message.
        reached.map_err(|_| anyhow!("the slices are not as expected after {STEP_LIMIT:?}"))
    }

    fn chapter(&self, title: &'static str) -> Result<()> {
        self.reporter.tell(&ClaimEvent::Chapter { title })
    }

    fn tell(&mut self, event: &ClaimEvent) -> Result<()> {
        self.steps += 1;
        self.reporter.tell(event)
    }
}
