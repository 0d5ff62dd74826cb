//! Steps of the claims demo: each performs an action, checks the result and reports it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::time::Instant;
use windlass_cluster_sim::{api::Objects, node};
use windlass_core::inventory::Inventory;
use windlass_kubelet_sim::{ClaimStatus, NodeStatus, ResourceHealthStatus};

use super::{
    candidates::{Candidates, PCIE_ROOT},
    cluster::{self, ClusterFixture, name_of},
    event::{AllocatedDevice, ClaimContainer, ClaimEvent, PodRuns, Published},
    pod_spec::{PodSpec, allocation_results},
};
use crate::{
    commands::short_name,
    demo::{
        event::ResolvedGrant,
        fault::DeviceFault,
        report::Reporter,
        runtime,
        script::{STEP_LIMIT, elapsed_ms},
        testbed::{NODE, QUIET_PERIOD, Testbed},
    },
    exit::UsageError,
};

pub(super) struct ClaimScript<'a> {
    testbed: &'a Testbed,
    cluster: &'a ClusterFixture,
    reporter: Reporter,
    start: Instant,
    steps: usize,
    pods: usize,
    /// UIDs of the running pods, by name.
    running: BTreeMap<String, String>,
    inventory: Inventory,
}

/// Limit of devices per claim in Kubernetes (`AllocationResultsMaxSize`).
const MAX_DEVICES: usize = 32;

/// Name of the pod that requests all devices.
const ALL_DEVICES_POD: &str = "everything";

// === impl ClaimScript ===

impl<'a> ClaimScript<'a> {
    pub(super) fn new(
        testbed: &'a Testbed,
        cluster: &'a ClusterFixture,
        reporter: Reporter,
        start: Instant,
    ) -> Self {
        Self {
            testbed,
            cluster,
            reporter,
            start,
            steps: 0,
            pods: 0,
            running: BTreeMap::new(),
            inventory: Inventory::default(),
        }
    }

    pub(super) async fn run_steps(&mut self, inventory: Inventory) -> Result<()> {
        self.inventory = inventory;
        let published = self.publish().await.context("step publication")?;
        let Some(candidates) = Candidates::of(&published) else {
            let problem = "the demo of claims needs an exclusive device, and the agent offers none: give a \
                           configuration with --config, or add devices with --device";
            return Err(UsageError(anyhow!(problem)).into());
        };
        self.request_by_attribute(&candidates).await.context("step attribute")?;
        self.share_claim(&candidates).await.context("step shared claim")?;
        self.allocate_gpu_and_nic(&candidates).await.context("step GPU with NIC")?;
        self.fail_and_recover(&candidates).await?;
        self.use_extended_resource(&candidates).await.context("step extended resource")?;
        self.restart_kubelet().await.context("step kubelet restart")?;
        self.delete_slices().await.context("step wiped slices")?;
        self.release_all().await.context("step release")?;
        let (steps, pods, took_ms) = (self.steps, self.pods, elapsed_ms(self.start));
        self.reporter.report(&ClaimEvent::Finished { steps, pods, took_ms })
    }

    /// Waits for the slices of all claimable devices, and for the driver's registration.
    async fn publish(&mut self) -> Result<Vec<Published>> {
        self.wait_for_registration().await?;
        let is_published = |published: &[Published]| {
            let state = self.testbed.state.borrow();
            let claimable =
                state.inventory.devices.iter().filter(|device| state.is_claimable(&device.id));
            let is_probed = |device: &Published| {
                !device.taints.iter().any(|taint| taint.contains("not-probed"))
            };
            let names: BTreeSet<_> = published.iter().map(|device| device.name.clone()).collect();
            published.iter().all(is_probed) && claimable.count() <= names.len()
        };
        let devices = self.wait_for_published(is_published).await?;
        let (driver, took_ms) =
            (self.cluster.driver.to_string(), elapsed_ms(self.testbed.agent_started));
        self.report(&ClaimEvent::Published { driver, devices: devices.clone(), took_ms })?;
        Ok(devices)
    }

    async fn request_by_attribute(&mut self, candidates: &Candidates) -> Result<()> {
        self.heading("A device by its attributes")?;
        let (expression, matching_devices) = candidates.describe_last();
        let class = self.cluster.ensure_class(candidates.kind())?;
        let pod_spec = PodSpec::new("by-attribute").request("device", &class, 1, &expression);
        let pod_runs = self.run_pod(pod_spec).await?;
        for allocated in &pod_runs.devices {
            ensure!(
                matching_devices.contains(&allocated.device),
                "{} does not match the request",
                allocated.name
            );
        }
        self.report(&ClaimEvent::PodRuns(pod_runs))
    }

    /// Shares a claim between two containers, then allocates another device to a second pod.
    async fn share_claim(&mut self, candidates: &Candidates) -> Result<()> {
        self.heading("Two containers share a device; another pod gets its own")?;
        self.delete_pod("by-attribute").await?;
        let class = self.cluster.ensure_class(candidates.kind())?;
        let pod_spec = PodSpec::new("two-containers").containers(&["train", "watch"]);
        let first = self.run_pod(pod_spec.request("device", &class, 1, "")).await?;
        let [train, watch] = first.containers.as_slice() else { bail!("not two containers") };
        let is_shared = train.grant.cdi_devices == watch.grant.cdi_devices;
        ensure!(
            is_shared && !train.grant.cdi_devices.is_empty(),
            "the containers got different devices"
        );
        let first_devices: BTreeSet<_> =
            first.devices.iter().map(|device| device.device.clone()).collect();
        self.report(&ClaimEvent::PodRuns(first))?;
        if candidates.exclusive().len() < 2 {
            let what = "A pod with another device";
            return self
                .reporter
                .report(&ClaimEvent::NotShown { what, why: "there is only one".to_owned() });
        }
        let second =
            self.run_pod(PodSpec::new("neighbour").request("device", &class, 1, "")).await?;
        let is_other = second.devices.iter().all(|device| !first_devices.contains(&device.device));
        ensure!(is_other, "the second pod got a device of the first");
        self.report(&ClaimEvent::PodRuns(second))
    }

    /// Allocates a GPU and a NIC below one PCIe root.
    async fn allocate_gpu_and_nic(&mut self, candidates: &Candidates) -> Result<()> {
        let Some((gpu, nic)) = candidates.gpu_and_nic() else {
            let why = "no GPU and NIC of this machine are below one root".to_owned();
            let what = "GPU and NIC on one PCIe root";
            return self.reporter.report(&ClaimEvent::NotShown { what, why });
        };
        self.heading("A GPU and a NIC on one PCIe root")?;
        self.delete_all_pods().await?;
        let classes = [self.cluster.ensure_class(&gpu)?, self.cluster.ensure_class(&nic)?];
        let pod_spec = PodSpec::new("joint").request("gpu", &classes[0], 1, "");
        let pod_runs = self
            .run_pod(pod_spec.request("nic", &classes[1], 1, "").match_attribute(PCIE_ROOT))
            .await?;
        let roots =
            pod_runs.devices.iter().map(|device| candidates.attribute(&device.device, PCIE_ROOT));
        let roots: BTreeSet<_> = roots.collect();
        ensure!(
            pod_runs.devices.len() == 2 && roots.len() == 1,
            "the devices are on the PCIe roots {roots:?}"
        );
        self.report(&ClaimEvent::PodRuns(pod_runs))
    }

    /// Makes an allocated device fail, and repairs it.
    async fn fail_and_recover(&mut self, candidates: &Candidates) -> Result<()> {
        self.heading("A device fails")?;
        self.delete_all_pods().await?;
        let class = self.cluster.ensure_class(candidates.kind())?;
        let pod_runs =
            self.run_pod(PodSpec::new("holder").request("device", &class, 1, "")).await?;
        let allocated = pod_runs.devices.first().cloned().context("the pod has no device")?;
        self.report(&ClaimEvent::PodRuns(pod_runs))?;
        let mut devices = self.inventory.devices.iter();
        let device = devices.find(|device| short_name(device) == allocated.name);
        let Some(fault) = device.and_then(DeviceFault::of) else {
            let why = format!("no fault is simulated for {}", allocated.name);
            return self.reporter.report(&ClaimEvent::NotShown { what: "A fault", why });
        };
        self.fail_device(&allocated, &fault).await.context("step failure")?;
        self.check_refusal(candidates, &allocated).await.context("step refusal")?;
        self.repair_device(candidates, &allocated, &fault).await.context("step recovery")
    }

    async fn fail_device(
        &mut self,
        allocated: &AllocatedDevice,
        fault: &DeviceFault,
    ) -> Result<()> {
        let start = Instant::now();
        let description = fault.description.clone();
        self.reporter
            .report(&ClaimEvent::Fault { device: allocated.name.clone(), fault: description })?;
        self.testbed.machine.inject(&fault.initial)?;
        let is_untainted =
            |device: &Published| device.device == allocated.device && device.taints.is_empty();
        let published =
            self.wait_for_published(|devices| !devices.iter().any(is_untainted)).await?;
        let device = published.iter().find(|device| device.device == allocated.device);
        let taint = device.map(|device| device.taints.join(" "));
        let is_reported = |node: &NodeStatus| {
            let containers = node.pods.values().flat_map(|pod| pod.containers.values());
            let mut healths = containers.flat_map(|status| status.claim_health.values().flatten());
            healths.any(|health| health.health == ResourceHealthStatus::Unhealthy)
        };
        self.testbed.kubelet.wait_for(is_reported, STEP_LIMIT).await?;
        let took_ms = elapsed_ms(start);
        fault.follow_up.iter().try_for_each(|fault| self.testbed.machine.inject(fault))?;
        let (device, held_by) = (allocated.name.clone(), "holder".to_owned());
        self.report(&ClaimEvent::Withheld { device, taint, held_by, took_ms })
    }

    /// Checks that a failed device is not allocated, although it is free.
    async fn check_refusal(
        &mut self,
        candidates: &Candidates,
        allocated: &AllocatedDevice,
    ) -> Result<()> {
        self.delete_pod("holder").await?;
        let Some(pod_spec) = self.request_all(candidates)? else {
            let what = "A pod that waits for the device";
            let why = format!("a claim has at most {MAX_DEVICES} devices");
            return self.reporter.report(&ClaimEvent::NotShown { what, why });
        };
        let Err(error) = self.cluster.schedule(&pod_spec) else {
            bail!("a claim got {}, which has failed", allocated.name);
        };
        let reason = format!("{error:#}");
        self.report(&ClaimEvent::NotScheduled {
            pod: ALL_DEVICES_POD.to_owned(),
            asks: pod_spec.request_lines,
            reason,
        })
    }

    async fn repair_device(
        &mut self,
        candidates: &Candidates,
        allocated: &AllocatedDevice,
        fault: &DeviceFault,
    ) -> Result<()> {
        let (start, quiet_ms) = (Instant::now(), QUIET_PERIOD.as_secs_f64() * 1000.0);
        self.testbed.machine.inject(&fault.repair)?;
        let device = allocated.name.clone();
        let waiting =
            ClaimEvent::Waiting { device: device.clone(), end: fault.repair_text, quiet_ms };
        self.reporter.report(&waiting)?;
        let is_untainted =
            |device: &Published| device.device == allocated.device && device.taints.is_empty();
        self.wait_for_published(|published| published.iter().any(is_untainted)).await?;
        ensure!(start.elapsed() >= QUIET_PERIOD / 2, "the device recovered without a quiet period");
        self.report(&ClaimEvent::GivenAgain { device, took_ms: elapsed_ms(start) })?;
        let Some(pod_spec) = self.request_all(candidates)? else { return Ok(()) };
        let pod_runs = self.run_pod(pod_spec).await?;
        self.report(&ClaimEvent::PodRuns(pod_runs))
    }

    /// Pod that requests every exclusive device of the type. `None` if a claim cannot have that many.
    fn request_all(&self, candidates: &Candidates) -> Result<Option<PodSpec>> {
        let class = self.cluster.ensure_class(candidates.kind())?;
        let count = candidates.exclusive().len();
        let pod_spec = PodSpec::new(ALL_DEVICES_POD).request(
            "all",
            &class,
            count,
            candidates.exclusive_selector(),
        );
        Ok(Some(pod_spec).filter(|_| count <= MAX_DEVICES))
    }

    async fn use_extended_resource(&mut self, candidates: &Candidates) -> Result<()> {
        self.heading("An extended resource, served by a DeviceClass")?;
        self.delete_all_pods().await?;
        let resource = candidates.extended_resource();
        self.cluster.ensure_extended_resource_class(candidates.kind(), &resource)?;
        let pod_runs = self.run_pod(PodSpec::extended("old-style", &resource)).await?;
        ensure!(pod_runs.devices.len() == 1, "the pod got {} devices", pod_runs.devices.len());
        self.report(&ClaimEvent::PodRuns(pod_runs))
    }

    async fn restart_kubelet(&mut self) -> Result<()> {
        let (old_slices, old_claims) =
            (self.cluster.slices(), self.testbed.kubelet.status().claims.clone());
        let start = Instant::now();
        self.testbed.kubelet.restart().await?;
        self.wait_for_registration().await?;
        self.wait_for_new_slices(&old_slices).await?;
        let took_ms = elapsed_ms(start);
        let new_claims = self.testbed.kubelet.status().claims.clone();
        let devices = |claims: &BTreeMap<_, ClaimStatus>| {
            claims
                .values()
                .map(|claim| (claim.uid.clone(), claim.devices.clone()))
                .collect::<Vec<_>>()
        };
        ensure!(
            devices(&old_claims) == devices(&new_claims),
            "claims have other devices than before"
        );
        let (slices, claims) = (old_slices.len(), new_claims.len());
        self.report(&ClaimEvent::KubeletRestarted { slices, claims, took_ms })
    }

    async fn delete_slices(&mut self) -> Result<()> {
        let (old_slices, start) = (self.cluster.slices(), Instant::now());
        let slices = self.cluster.objects().delete_all_slices(NODE);
        self.wait_for_new_slices(&old_slices).await?;
        let devices = self.cluster.published(&self.inventory).len();
        self.report(&ClaimEvent::Republished { slices, devices, took_ms: elapsed_ms(start) })
    }

    /// Deletes all pods, and checks that nothing remains.
    async fn release_all(&mut self) -> Result<()> {
        let (start, pods) = (Instant::now(), self.running.len());
        let claims = self.cluster.claims().len();
        self.delete_all_pods().await?;
        let remaining_claims = self.testbed.kubelet.status().claims.clone();
        ensure!(remaining_claims.is_empty(), "the kubelet has claims left: {remaining_claims:?}");
        ensure!(self.cluster.claims().is_empty(), "the cluster has claims left");
        let documents = runtime::claim_documents(&self.testbed.cdi_dir())?;
        ensure!(documents.is_empty(), "CDI documents are left: {documents:?}");
        self.report(&ClaimEvent::Released { pods, claims, took_ms: elapsed_ms(start) })
    }

    /// Schedules a pod, prepares its claims and starts its containers.
    async fn run_pod(&mut self, pod_spec: PodSpec) -> Result<PodRuns> {
        let start = Instant::now();
        let scheduled_pod = self.cluster.schedule(&pod_spec)?;
        let pod = node::pod(&scheduled_pod);
        let uid = pod.uid.clone();
        self.running.insert(pod_spec.name.clone(), uid.clone());
        Box::pin(self.testbed.kubelet.admit(pod)).await?;
        let mut containers = Vec::new();
        for name in pod_spec.container_names() {
            let container_start = Box::pin(self.testbed.kubelet.start_container(&uid, name));
            let grant = container_start.await?;
            let edits = runtime::resolve(&self.testbed.cdi_dir(), &grant.cdi_devices)?;
            let grant = ResolvedGrant::new(grant.cdi_devices, edits, Vec::new());
            containers.push(ClaimContainer { name: (*name).to_owned(), grant });
        }
        let took_ms = elapsed_ms(start);
        let devices = scheduled_pod.claims.iter().flat_map(|claim| {
            let name = claim.metadata.name.clone().unwrap_or_default();
            allocation_results(claim).into_iter().map(move |result| (name.clone(), result))
        });
        let allocated_device = |(claim, [request, _, pool, device]): (String, [String; 4])| {
            let name = name_of(&device, &self.inventory);
            AllocatedDevice { claim, request, pool, device, name }
        };
        let devices = devices.map(allocated_device).collect();
        self.check_prepared(&devices)?;
        self.pods += 1;
        Ok(PodRuns {
            pod: pod_spec.name,
            asks: pod_spec.request_lines,
            devices,
            containers,
            took_ms,
        })
    }

    /// Checks that the driver prepared the devices that the scheduler allocated.
    fn check_prepared(&self, devices: &Vec<AllocatedDevice>) -> Result<()> {
        let node = self.testbed.kubelet.status();
        let prepared: BTreeSet<_> = node
            .claims
            .values()
            .flat_map(|claim| claim.devices.values().flatten())
            .map(|device| (device.pool.clone(), device.name.clone()))
            .collect();
        for allocated in devices {
            let key = (allocated.pool.clone(), allocated.device.clone());
            ensure!(prepared.contains(&key), "{} was not prepared", allocated.name);
        }
        Ok(())
    }

    async fn delete_pod(&mut self, name: &str) -> Result<()> {
        let uid = self.running.remove(name).with_context(|| format!("no pod {name} runs"))?;
        self.testbed.kubelet.delete_pod(&uid).await;
        self.cluster.delete(name)
    }

    async fn delete_all_pods(&mut self) -> Result<()> {
        let names: Vec<_> = self.running.keys().cloned().collect();
        for name in names {
            self.delete_pod(&name).await?;
        }
        Ok(())
    }

    async fn wait_for_registration(&self) -> Result<()> {
        let driver = self.cluster.driver.as_str();
        let is_connected = |node: &NodeStatus| {
            let sockets = node.drivers.get(driver);
            sockets.is_some_and(|sockets| sockets.iter().any(|socket| socket.is_connected))
        };
        self.testbed.kubelet.wait_for(is_connected, STEP_LIMIT).await?;
        Ok(())
    }

    /// Waits until all slices have been replaced.
    async fn wait_for_new_slices(&self, old_slices: &[String]) -> Result<()> {
        let are_replaced = |_: &[Published]| {
            let slices = self.cluster.slices();
            slices.len() == old_slices.len() && slices.iter().all(|uid| !old_slices.contains(uid))
        };
        self.wait_for_published(are_replaced).await.map(drop)
    }

    async fn wait_for_published(
        &self,
        condition: impl Fn(&[Published]) -> bool,
    ) -> Result<Vec<Published>> {
        let (driver, inventory) = (&self.cluster.driver, &self.inventory);
        let expected = |objects: &Objects| {
            let devices = cluster::published(objects, driver, inventory);
            Some(devices).filter(|devices| condition(devices))
        };
        let result = self.cluster.objects().wait_until(STEP_LIMIT, expected).await;
        // The original error lists all slices, too long for a message.
        result.map_err(|_| anyhow!("the slices are not as expected after {STEP_LIMIT:?}"))
    }

    fn heading(&self, title: &'static str) -> Result<()> {
        self.reporter.report(&ClaimEvent::Chapter { title })
    }

    fn report(&mut self, event: &ClaimEvent) -> Result<()> {
        self.steps += 1;
        self.reporter.report(event)
    }
}
