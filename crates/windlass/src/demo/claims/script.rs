//! The story of claims: each step asks for something, checks what came, and tells both.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::time::Instant;
use windlass_cluster_sim::{api::Objects, node};
use windlass_core::inventory::Inventory;
use windlass_kubelet_sim::{ClaimStatus, HealthWord, NodeStatus};

use super::{
    cluster::{self, Cluster, name_of},
    event::{Container, Event, Given, PodRuns, Published},
    ground::{Ground, PCIE_ROOT},
    wish::{Wish, results},
};
use crate::{
    commands::short_name,
    demo::{
        event::Gets,
        fault::Trouble,
        runtime,
        script::{STEP_LIMIT, ms},
        stage::{QUIET_PERIOD, Stage},
        tell::Teller,
    },
    exit::Misuse,
};

/// Plays the steps.
pub(super) struct Story<'a> {
    stage: &'a Stage,
    cluster: &'a Cluster,
    teller: Teller,
    begun: Instant,
    steps: usize,
    /// Pods that ran.
    pods: usize,
    /// Those that run now: UIDs by name.
    running: BTreeMap<String, String>,
    inventory: Inventory,
}

/// Kubernetes' limit (`AllocationResultsMaxSize`).
const MOST_DEVICES: usize = 32;

/// A pod that asks for everything that can be had.
const EVERYTHING: &str = "everything";

// === impl Story ===

impl<'a> Story<'a> {
    pub(super) fn new(
        (stage, cluster): (&'a Stage, &'a Cluster),
        teller: Teller,
        begun: Instant,
    ) -> Self {
        let (running, inventory) = (BTreeMap::new(), Inventory::default());
        Self { stage, cluster, teller, begun, steps: 0, pods: 0, running, inventory }
    }

    /// Plays the whole story, from what was discovered.
    pub(super) async fn play(&mut self, inventory: Inventory) -> Result<()> {
        self.inventory = inventory;
        let published = self.publish().await.context("step publication")?;
        let Some(ground) = Ground::of(&published) else {
            let nothing = "the demo of claims needs a device that a claim has alone, and the agent offers none: \
                           give a configuration with --config, or add devices with --device";
            return Err(Misuse(anyhow!(nothing)).into());
        };
        self.by_attribute(&ground).await.context("step attribute")?;
        self.together(&ground).await.context("step shared claim")?;
        self.joint(&ground).await.context("step GPU with NIC")?;
        self.fail_and_recover(&ground).await?;
        self.extended(&ground).await.context("step extended resource")?;
        self.restart_kubelet().await.context("step kubelet restart")?;
        self.wipe().await.context("step wiped slices")?;
        self.release().await.context("step release")?;
        let (steps, pods, took_ms) = (self.steps, self.pods, ms(self.begun));
        self.teller.tell(&Event::Finished { steps, pods, took_ms })
    }

    /// Every device that claims may have must arrive in slices, and the driver at the kubelet.
    async fn publish(&mut self) -> Result<Vec<Published>> {
        self.registered().await?;
        let is_there = |published: &[Published]| {
            let state = self.stage.state.borrow();
            let claimable = state.inventory.devices.iter().filter(|it| state.is_claimable(&it.id));
            let is_probed = |it: &Published| !it.taints.iter().any(|it| it.contains("not-probed"));
            let named: BTreeSet<_> = published.iter().map(|it| it.name.clone()).collect();
            published.iter().all(is_probed) && claimable.count() <= named.len()
        };
        let devices = self.until_published(is_there).await?;
        let (driver, took_ms) = (self.cluster.driver.to_string(), ms(self.stage.agent_started));
        self.tell(&Event::Published { driver, devices: devices.clone(), took_ms })?;
        Ok(devices)
    }

    /// A claim that says what it needs.
    async fn by_attribute(&mut self, ground: &Ground) -> Result<()> {
        self.chapter("A device by what it is")?;
        let (expression, fitting) = ground.described();
        let class = self.cluster.class_of(ground.kind())?;
        let wish = Wish::new("by-attribute").request("device", &class, (1, &expression));
        let runs = self.run(wish).await?;
        for given in &runs.devices {
            ensure!(fitting.contains(&given.device), "{} is not what was asked for", given.name);
        }
        self.tell(&Event::PodRuns(runs))
    }

    /// Two containers share the device of their pod's claim; the next pod gets another.
    async fn together(&mut self, ground: &Ground) -> Result<()> {
        self.chapter("Two containers with one device, and a pod beside them")?;
        self.end("by-attribute").await?;
        let class = self.cluster.class_of(ground.kind())?;
        let wish = Wish::new("two-containers").containers(&["train", "watch"]);
        let first = self.run(wish.request("device", &class, (1, ""))).await?;
        let [train, watch] = first.containers.as_slice() else { bail!("not two containers") };
        let same = train.gets.cdi_devices == watch.gets.cdi_devices;
        ensure!(same && !train.gets.cdi_devices.is_empty(), "the containers got different devices");
        let held: BTreeSet<_> = first.devices.iter().map(|it| it.device.clone()).collect();
        self.tell(&Event::PodRuns(first))?;
        if ground.alone().len() < 2 {
            let what = "A pod with another device";
            return self
                .teller
                .tell(&Event::NotShown { what, why: "there is only one".to_owned() });
        }
        let second = self.run(Wish::new("neighbour").request("device", &class, (1, ""))).await?;
        let is_other = second.devices.iter().all(|it| !held.contains(&it.device));
        ensure!(is_other, "the second pod got a device of the first");
        self.tell(&Event::PodRuns(second))
    }

    /// A GPU and a NIC that reach each other without the processor.
    async fn joint(&mut self, ground: &Ground) -> Result<()> {
        let Some((gpu, nic)) = ground.pair() else {
            let why = "no GPU and NIC of this machine are below one root".to_owned();
            let what = "GPU and NIC on one PCIe root";
            return self.teller.tell(&Event::NotShown { what, why });
        };
        self.chapter("A GPU and a NIC on one PCIe root")?;
        self.end_all().await?;
        let classes = [self.cluster.class_of(&gpu)?, self.cluster.class_of(&nic)?];
        let wish = Wish::new("joint").request("gpu", &classes[0], (1, ""));
        let runs = self.run(wish.request("nic", &classes[1], (1, "")).same(PCIE_ROOT)).await?;
        let roots = runs.devices.iter().map(|it| ground.attribute(&it.device, PCIE_ROOT));
        let roots: BTreeSet<_> = roots.collect();
        ensure!(runs.devices.len() == 2 && roots.len() == 1, "they are on {roots:?}");
        self.tell(&Event::PodRuns(runs))
    }

    /// A device that a pod has fails, and comes back.
    async fn fail_and_recover(&mut self, ground: &Ground) -> Result<()> {
        self.chapter("A device fails")?;
        self.end_all().await?;
        let class = self.cluster.class_of(ground.kind())?;
        let runs = self.run(Wish::new("holder").request("device", &class, (1, ""))).await?;
        let given = runs.devices.first().cloned().context("the pod has no device")?;
        self.tell(&Event::PodRuns(runs))?;
        let mut devices = self.inventory.devices.iter();
        let device = devices.find(|device| short_name(device) == given.name);
        let Some(trouble) = device.and_then(Trouble::of) else {
            let why = format!("no fault is simulated for {}", given.name);
            return self.teller.tell(&Event::NotShown { what: "A fault", why });
        };
        self.fail(&given, &trouble).await.context("step failure")?;
        self.refuse(ground, &given).await.context("step refusal")?;
        self.recover(ground, (&given, &trouble)).await.context("step recovery")
    }

    async fn fail(&mut self, given: &Given, trouble: &Trouble) -> Result<()> {
        let begun = Instant::now();
        let what = trouble.what.clone();
        self.teller.tell(&Event::Fault { device: given.name.clone(), fault: what })?;
        self.stage.machine.inject(&trouble.begins)?;
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
        trouble.lasts.iter().try_for_each(|fault| self.stage.machine.inject(fault))?;
        let (device, held_by) = (given.name.clone(), "holder".to_owned());
        self.tell(&Event::Withheld { device, taint, held_by, took_ms })
    }

    /// Nobody gets a device that failed, though it is free.
    async fn refuse(&mut self, ground: &Ground, given: &Given) -> Result<()> {
        self.end("holder").await?;
        let Some(wish) = self.everything(ground)? else {
            let what = "A pod that waits for the device";
            let why = format!("a claim has at most {MOST_DEVICES} devices");
            return self.teller.tell(&Event::NotShown { what, why });
        };
        let Err(error) = self.cluster.schedule(&wish) else {
            bail!("a claim got {}, which has failed", given.name);
        };
        let reason = format!("{error:#}");
        self.tell(&Event::NotScheduled { pod: EVERYTHING.to_owned(), asks: wish.asks, reason })
    }

    async fn recover(
        &mut self,
        ground: &Ground,
        (given, trouble): (&Given, &Trouble),
    ) -> Result<()> {
        let (begun, quiet_ms) = (Instant::now(), QUIET_PERIOD.as_secs_f64() * 1000.0);
        self.stage.machine.inject(&trouble.ends)?;
        let device = given.name.clone();
        let waiting = Event::Waiting { device: device.clone(), end: trouble.end, quiet_ms };
        self.teller.tell(&waiting)?;
        let is_well = |it: &Published| it.device == given.device && it.taints.is_empty();
        self.until_published(|published| published.iter().any(is_well)).await?;
        ensure!(begun.elapsed() >= QUIET_PERIOD / 2, "it was trusted again without a quiet period");
        self.tell(&Event::GivenAgain { device, took_ms: ms(begun) })?;
        let Some(wish) = self.everything(ground)? else { return Ok(()) };
        let runs = self.run(wish).await?;
        self.tell(&Event::PodRuns(runs))
    }

    /// A pod that wants all devices of the type that the story is about, if a claim may have so many.
    fn everything(&self, ground: &Ground) -> Result<Option<Wish>> {
        let class = self.cluster.class_of(ground.kind())?;
        let all = ground.alone().len();
        let wish = Wish::new(EVERYTHING).request("all", &class, (all, ground.only_alone()));
        Ok(Some(wish).filter(|_| all <= MOST_DEVICES))
    }

    /// A pod that asks as if there were a device plugin.
    async fn extended(&mut self, ground: &Ground) -> Result<()> {
        self.chapter("An extended resource that a DeviceClass answers for")?;
        self.end_all().await?;
        let resource = ground.extended_resource();
        self.cluster.serve_extended(ground.kind(), &resource)?;
        let runs = self.run(Wish::extended("old-style", &resource)).await?;
        ensure!(runs.devices.len() == 1, "it got {} devices", runs.devices.len());
        self.tell(&Event::PodRuns(runs))
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
        self.tell(&Event::KubeletRestarted { slices, claims, took_ms })
    }

    async fn wipe(&mut self) -> Result<()> {
        let (before, begun) = (self.cluster.slices(), Instant::now());
        let slices = self.cluster.objects().wipe_slices(cluster::NODE);
        self.slices_renewed(&before).await?;
        let devices = self.cluster.published(&self.inventory).len();
        self.tell(&Event::Republished { slices, devices, took_ms: ms(begun) })
    }

    /// Everything goes, and nothing may be left of it.
    async fn release(&mut self) -> Result<()> {
        let (begun, pods) = (Instant::now(), self.running.len());
        let claims = self.cluster.claims().len();
        self.end_all().await?;
        let left = self.stage.kubelet.node().claims.clone();
        ensure!(left.is_empty(), "the kubelet has claims left: {left:?}");
        ensure!(self.cluster.claims().is_empty(), "the cluster has claims left");
        let documents = self.stage.claim_documents()?;
        ensure!(documents.is_empty(), "CDI documents are left: {documents:?}");
        self.tell(&Event::Released { pods, claims, took_ms: ms(begun) })
    }

    /// Has a pod scheduled, its claims prepared and its containers started.
    async fn run(&mut self, wish: Wish) -> Result<PodRuns> {
        let begun = Instant::now();
        let scheduled = self.cluster.schedule(&wish)?;
        let pod = node::pod(&scheduled);
        let uid = pod.uid.clone();
        self.running.insert(wish.name.clone(), uid.clone());
        Box::pin(self.stage.kubelet.admit(pod)).await?;
        let mut containers = Vec::new();
        for name in wish.container_names() {
            let started = Box::pin(self.stage.kubelet.start_container(&uid, name));
            let grant = started.await?;
            let edits = runtime::resolve(&self.stage.cdi_dir(), &grant.cdi_devices)?;
            let gets = Gets::new(grant.cdi_devices, edits, Vec::new());
            containers.push(Container { name: (*name).to_owned(), gets });
        }
        let took_ms = ms(begun);
        let devices = scheduled.claims.iter().flat_map(|claim| {
            let name = claim.metadata.name.clone().unwrap_or_default();
            results(claim).into_iter().map(move |result| (name.clone(), result))
        });
        let given = |(claim, [request, _, pool, device]): (String, [String; 4])| {
            let name = name_of(&device, &self.inventory);
            Given { claim, request, pool, device, name }
        };
        let devices = devices.map(given).collect();
        self.is_prepared(&devices)?;
        self.pods += 1;
        Ok(PodRuns { pod: wish.name, asks: wish.asks, devices, containers, took_ms })
    }

    /// What the scheduler chose is what the driver prepared.
    fn is_prepared(&self, devices: &Vec<Given>) -> Result<()> {
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

    /// Waits until there are as many slices as before, and none of those.
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
        // What there was instead is far more than a person can read.
        reached.map_err(|_| anyhow!("the slices are not as expected after {STEP_LIMIT:?}"))
    }

    fn chapter(&self, title: &'static str) -> Result<()> {
        self.teller.tell(&Event::Chapter { title })
    }

    /// Tells a step that was done.
    fn tell(&mut self, event: &Event) -> Result<()> {
        self.steps += 1;
        self.teller.tell(event)
    }
}
