//! Steps of the demo: each performs an action, waits for its effect and reports it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::time::{Instant, timeout};
use windlass_core::{
    device::Device,
    inventory::Inventory,
    placement::{self, Connections, Policy, Request, Topology as Distances},
    resource::ResourceName,
};
use windlass_kubelet_sim::{
    Admission, ContainerAllocation, NodeStatus, Pod, PodStatus, PreferredAllocationCall,
};
use windlass_resources::NodeState;

use super::{
    arrivals::Arrivals,
    event::{Alternative, Arrival, Container, Event, Failure, ResolvedGrant, ResourceCounts},
    fault::DeviceFault,
    pods,
    report::Reporter,
    runtime,
    testbed::{QUIET_PERIOD, Testbed},
};
use crate::{
    commands::{Topology, short_name, sorted_by_inventory},
    exit::UsageError,
};

pub(super) struct Script<'a> {
    testbed: &'a Testbed,
    reporter: Reporter,
    start: Instant,
    steps: usize,
    pods: usize,
    /// UID and resource of the last pod whose board was cleaned before its start.
    last_board_pod: Option<(String, String)>,
}

/// Timeout of a step. On an idle machine most steps take milliseconds. The slowest waits for a cleanup: the agent
/// caches pod resources for five seconds.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two attempts at a step.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Offers that do not change for this time are stable.
const STABLE_TIME: Duration = Duration::from_millis(50);

/// Poll interval of a board's log.
const BOARD_POLL_INTERVAL: Duration = Duration::from_millis(5);

// === impl Script ===

impl<'a> Script<'a> {
    pub(super) fn new(testbed: &'a Testbed, reporter: Reporter, start: Instant) -> Self {
        Self { testbed, reporter, start, steps: 0, pods: 0, last_board_pod: None }
    }

    pub(super) async fn run_steps(&mut self) -> Result<()> {
        let inventory = self.discover().await.context("step discovery")?;
        self.report(&Event::Topology(Topology::of(&inventory)))?;
        let resources = self.register().await.context("step registration")?;
        if resources.is_empty() {
            let problem = "the agent offers no device of this machine by default: give a configuration with \
                           --config, or add devices with --device";
            return Err(UsageError(anyhow!(problem)).into());
        }
        let main_resource = self.main_resource(&resources);
        if let Some(main) = main_resource {
            self.admit_pods(&inventory, main).await.context("step pods")?;
        }
        let is_main = |counts: &&ResourceCounts| {
            main_resource.is_some_and(|main| main.resource == counts.resource)
        };
        for other in resources.iter().filter(|counts| !is_main(counts)) {
            let base_name = other.resource.rsplit('/').next().unwrap_or_default();
            let pod = pods::with_one_device(
                &format!("on-{}", base_name.replace('.', "-")),
                &other.resource,
            );
            self.admit(&inventory, pod).await.context("step pods")?;
        }
        self.replace_tenant(&inventory, &resources).await.context("step cleanup")?;
        if let Some(main) = main_resource {
            self.check_refusal(main).await.context("step refusal")?;
            self.fail_and_recover(&inventory, main).await?;
        }
        self.restart_kubelet(&resources).await.context("step kubelet restart")?;
        let (steps, pods, took_ms) = (self.steps, self.pods, elapsed_ms(self.start));
        self.reporter.report(&Event::Finished { steps, pods, took_ms })
    }

    async fn discover(&mut self) -> Result<Inventory> {
        let inventory = wait_for_inventory(self.testbed).await?;
        self.report(&Event::Discovered {
            inventory: inventory.clone(),
            took_ms: elapsed_ms(self.testbed.agent_started),
        })?;
        Ok(inventory)
    }

    /// Waits until every offered resource has arrived at the kubelet.
    async fn register(&mut self) -> Result<Vec<ResourceCounts>> {
        let mut arrivals = Arrivals::default();
        let offers = tokio::select! {
            offers = timeout(STEP_LIMIT, self.stable_offers()) => {
                offers.context("the offers do not become stable")?
            }
            () = self.record_arrivals(&mut arrivals) => bail!("the embedded kubelet has ended"),
        };
        let mut registered = Vec::new();
        for (resource, (capacity, allocatable)) in offers {
            let resource = resource.to_string();
            let is_complete =
                |node: &NodeStatus| node.counts(&resource) == Some((capacity, allocatable));
            let node = self.testbed.kubelet.wait_for(is_complete, STEP_LIMIT).await?;
            arrivals.observe(&node, Instant::now());
            let last_change =
                arrivals.last_change(&resource).expect("the resource was observed above");
            let took_ms = to_ms(last_change - self.testbed.agent_started);
            registered.push(Arrival {
                counts: ResourceCounts { resource, capacity, allocatable },
                took_ms,
            });
        }
        let resources = registered.iter().map(|arrival| arrival.counts.clone()).collect();
        self.report(&Event::Registered { resources: registered })?;
        Ok(resources)
    }

    /// Records arrivals for twice the timeout of a step, longer than any caller waits.
    async fn record_arrivals(&self, arrivals: &mut Arrivals) {
        let observe = |node: &NodeStatus| {
            arrivals.observe(node, Instant::now());
            false
        };
        // The predicate is never true, so the wait ends by its timeout.
        drop(self.testbed.kubelet.wait_for(observe, 2 * STEP_LIMIT).await);
    }

    /// Exclusive resource with the most allocatable devices. Shared resources give a container one device or all.
    fn main_resource<'b>(&self, resources: &'b [ResourceCounts]) -> Option<&'b ResourceCounts> {
        let offers = self.testbed.state.borrow().device_offers();
        let is_exclusive = |counts: &&ResourceCounts| {
            let is_this_resource = |name: &ResourceName| name.to_string() == counts.resource;
            let mut shared = offers.values().filter(|offer| offer.shared.is_some());
            !shared.any(|offer| offer.resource.as_ref().is_some_and(is_this_resource))
        };
        resources.iter().filter(is_exclusive).max_by_key(|counts| counts.allocatable)
    }

    /// Counts of every offered resource, once they are stable. Probes and cleanup change them after discovery.
    async fn stable_offers(&self) -> BTreeMap<ResourceName, (usize, usize)> {
        let mut state = self.testbed.state.clone();
        while let Ok(Ok(())) = timeout(STABLE_TIME, state.changed()).await {}
        self.testbed.state.borrow().resources()
    }

    async fn admit_pods(&mut self, inventory: &Inventory, main: &ResourceCounts) -> Result<()> {
        for pod in pods::fitting(&main.resource, main.allocatable) {
            self.admit(inventory, pod).await?;
        }
        Ok(())
    }

    async fn admit(&mut self, inventory: &Inventory, pod: Pod) -> Result<()> {
        let start = Instant::now();
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let limits: Vec<_> =
            pod.containers.iter().flat_map(|container| container.limits.clone()).collect();
        let admission = self.testbed.kubelet.admit(pod).await?;
        let took_ms = elapsed_ms(start);
        self.testbed.kubelet.start_container(&uid, "main").await?;
        for (resource, size) in &limits {
            let allocation = admission.allocation("main", resource);
            let count = allocation.map_or(0, |allocation| allocation.ids().len());
            ensure!(count as u64 == *size, "{name} got {count} of {size} {resource}");
        }
        let containers = self.containers(inventory, &admission)?;
        self.pods += 1;
        self.report(&Event::PodAdmitted { pod: name.clone(), containers, took_ms })?;
        let requests = self.testbed.boards.take_requests();
        if requests.is_empty() {
            return Ok(());
        }
        self.last_board_pod = limits.into_iter().next().map(|(resource, _)| (uid, resource));
        self.report(&Event::HandedOver { pod: name, done: requests })
    }

    /// Deletes the last pod with a board, and starts another on it.
    async fn replace_tenant(
        &mut self,
        inventory: &Inventory,
        resources: &[ResourceCounts],
    ) -> Result<()> {
        let Some((uid, resource)) = self.last_board_pod.take() else { return Ok(()) };
        let start = Instant::now();
        let pod = self.testbed.kubelet.status().pods.get(&uid).map(|pod| pod.name.clone());
        let pod = pod.unwrap_or_default();
        self.testbed.kubelet.delete_pod(&uid).await;
        self.reporter.report(&Event::Deleted { pod: pod.clone() })?;
        let requests = timeout(STEP_LIMIT, self.wait_for_board_requests()).await;
        let done = requests.context("the board got no cleanup request")?;
        let has_all_counts =
            |node: &NodeStatus| resources.iter().all(|counts| has_counts(node, counts));
        self.testbed.kubelet.wait_for(has_all_counts, STEP_LIMIT).await?;
        self.report(&Event::CleanedUp { pod, done, took_ms: elapsed_ms(start) })?;
        self.admit(inventory, pods::with_one_device("after-it", &resource)).await
    }

    async fn wait_for_board_requests(&self) -> Vec<String> {
        loop {
            match self.testbed.boards.take_requests() {
                requests if requests.is_empty() => tokio::time::sleep(BOARD_POLL_INTERVAL).await,
                requests => return requests,
            }
        }
    }

    fn containers(&self, inventory: &Inventory, admission: &Admission) -> Result<Vec<Container>> {
        let mut containers = Vec::new();
        for container in &admission.containers {
            for (resource, allocation) in &container.resources {
                let name = container.name.as_str();
                containers.push(self.container(inventory, name, resource, allocation)?);
            }
        }
        Ok(containers)
    }

    fn container(
        &self,
        inventory: &Inventory,
        name: &str,
        resource: &str,
        allocation: &ContainerAllocation,
    ) -> Result<Container> {
        let devices =
            sorted_by_inventory(allocation.ids().iter().filter_map(|id| inventory.get(id)));
        let state = self.testbed.state.borrow().clone();
        let policy = state.placement(&resource.parse()?);
        let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
        let grant = &allocation.run_options;
        let mut cdi_devices = grant.cdi_devices.clone();
        cdi_devices.sort_by_key(|name| {
            devices.iter().position(|device| name.ends_with(device.id.as_str()))
        });
        let edits = runtime::resolve(&self.testbed.cdi_dir(), &cdi_devices)?;
        let envs = grant.envs.iter().map(|(key, value)| format!("{key}={value}"));
        Ok(Container {
            name: name.to_owned(),
            resource: resource.to_owned(),
            devices: devices.iter().map(|device| short_name(device)).collect(),
            ids: devices.iter().map(|device| device.id.to_string()).collect(),
            why: Connections::among(&state.topology, &ids).to_string(),
            alternative: allocation
                .preferred_call
                .as_ref()
                .and_then(|preference| alternative(inventory, &state.topology, policy, preference)),
            grant: ResolvedGrant::new(cdi_devices, edits, envs.collect()),
        })
    }

    /// Checks that the kubelet refuses a pod larger than the free devices.
    async fn check_refusal(&mut self, main: &ResourceCounts) -> Result<()> {
        let held_count = holders_by_device(&self.testbed.kubelet.status(), &main.resource).len();
        let pod = pods::oversized(&main.resource, main.allocatable - held_count);
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let Err(rejection) = self.testbed.kubelet.admit(pod).await else {
            bail!("{name} was admitted");
        };
        self.testbed.kubelet.delete_pod(&uid).await;
        let (reason, message) = (rejection.reason.to_string(), rejection.message);
        self.report(&Event::PodRefused { pod: name, reason, message })
    }

    /// Makes an allocated device fail, and repairs it.
    async fn fail_and_recover(
        &mut self,
        inventory: &Inventory,
        main: &ResourceCounts,
    ) -> Result<()> {
        let node = self.testbed.kubelet.status();
        let holders = holders_by_device(&node, &main.resource);
        let held_devices = holders.iter().filter_map(|(id, pod)| Some((inventory.get(id)?, pod)));
        let last = held_devices.max_by_key(|(device, _)| device.index);
        let (device, pod) = last.context("no pod holds a device")?;
        let Some(fault) = DeviceFault::of(device) else {
            return self.reporter.report(&Event::NoFault { device: short_name(device) });
        };
        self.fail_device(device, pod, main, &fault).await.context("step failure")?;
        self.repair_device(device, main, &fault).await.context("step recovery")
    }

    async fn fail_device(
        &mut self,
        device: &Device,
        pod: &str,
        main: &ResourceCounts,
        fault: &DeviceFault,
    ) -> Result<()> {
        let start = Instant::now();
        let id = device.id.as_str();
        let is_unhealthy = |node: &NodeStatus| is_healthy(node, &main.resource, id) == Some(false);
        // The kubelet may learn of a missing device node first, which has no quiet period. So also wait for the
        // device's health, from before the injection: the unhealthy state may be short.
        let mut state = self.testbed.state.clone();
        let has_failed = |state: &Arc<NodeState>| {
            state.inventory.get(id).is_some_and(|device| !device.health.is_healthy())
        };
        self.testbed.machine.inject(&fault.initial)?;
        let report = async {
            let node = self.testbed.kubelet.wait_for(is_unhealthy, STEP_LIMIT).await;
            node.map(|node| (node, elapsed_ms(start)))
        };
        let (report, detection) =
            tokio::join!(report, timeout(STEP_LIMIT, state.wait_for(has_failed)));
        let (node, took_ms) = report?;
        drop(detection.context("the agent did not detect the failure")??);
        fault.follow_up.iter().try_for_each(|fault| self.testbed.machine.inject(fault))?;
        let why =
            self.testbed.state.borrow().inventory.get(id).map(|device| device.health.to_string());
        let name = short_name(device);
        self.report(&Event::Fault { device: name.clone(), fault: fault.description.clone() })?;
        self.report(&Event::Unhealthy(Failure {
            device: name,
            why: why.unwrap_or_default(),
            counts: counts(&node, &main.resource),
            held_by: pod.to_owned(),
            took_ms,
        }))
    }

    async fn repair_device(
        &mut self,
        device: &Device,
        main: &ResourceCounts,
        fault: &DeviceFault,
    ) -> Result<()> {
        let start = Instant::now();
        let (name, quiet_ms) = (short_name(device), QUIET_PERIOD.as_secs_f64() * 1000.0);
        self.testbed.machine.inject(&fault.repair)?;
        let waiting = Event::Waiting { device: name.clone(), end: fault.repair_text, quiet_ms };
        self.reporter.report(&waiting)?;
        let id = device.id.as_str();
        let is_recovered = |node: &NodeStatus| is_healthy(node, &main.resource, id) == Some(true);
        let node = self.testbed.kubelet.wait_for(is_recovered, STEP_LIMIT).await?;
        ensure!(start.elapsed() >= QUIET_PERIOD / 2, "the device recovered without a quiet period");
        let counts = counts(&node, &main.resource);
        self.report(&Event::Recovered { device: name, counts, took_ms: elapsed_ms(start) })
    }

    async fn restart_kubelet(&mut self, resources: &[ResourceCounts]) -> Result<()> {
        let old_holdings = holdings(&self.testbed.kubelet.status());
        let start = Instant::now();
        self.testbed.kubelet.restart().await?;
        let has_all_counts =
            |node: &NodeStatus| resources.iter().all(|counts| has_counts(node, counts));
        let node = self.testbed.kubelet.wait_for(has_all_counts, STEP_LIMIT).await?;
        let took_ms = elapsed_ms(start);
        let new_holdings = holdings(&node);
        ensure!(
            old_holdings == new_holdings,
            "pods hold other devices than before: {old_holdings:?} became {new_holdings:?}"
        );
        self.report(&Event::KubeletRestarted {
            resources: resources.len(),
            pods: new_holdings.len(),
            devices_held: resources
                .iter()
                .map(|counts| holders_by_device(&node, &counts.resource).len())
                .sum(),
            took_ms,
        })
    }

    fn report(&mut self, event: &Event) -> Result<()> {
        self.steps += 1;
        self.reporter.report(event)
    }
}

/// Waits until every source has answered, and returns the inventory.
pub(super) async fn wait_for_inventory(testbed: &Testbed) -> Result<Inventory> {
    let mut node = testbed.state.clone();
    let completion = node.wait_for(|node| node.inventory.is_complete());
    let node = timeout(STEP_LIMIT, completion).await.context("no inventory in time")??;
    let is_simulated = node.inventory.simulated.is_some();
    ensure!(is_simulated, "the agent does not report a simulated machine");
    Ok(node.inventory.clone())
}

/// Repeats the kubelet's request to find the second best set.
fn alternative(
    inventory: &Inventory,
    topology: &Distances,
    policy: Policy,
    preference: &PreferredAllocationCall,
) -> Option<Alternative> {
    let available: Vec<_> = preference.available.iter().map(String::as_str).collect();
    let required: Vec<_> = preference.must_include.iter().map(String::as_str).collect();
    let request = Request {
        available: &available,
        required: &required,
        near: &[],
        size: preference.size,
        policy,
    };
    let explanation = placement::explain(topology, request).ok()?;
    let why_not = explanation.deciding_difference()?;
    let devices = explanation.alternative?.devices;
    let devices = devices.iter().filter_map(|id| inventory.get(id.as_str()));
    Some(Alternative { devices: devices.map(short_name).collect(), why_not })
}

/// Names of pods, by the id of the device that they hold.
fn holders_by_device(node: &NodeStatus, resource: &str) -> BTreeMap<String, String> {
    let containers = node.pods.values().flat_map(|pod| {
        pod.containers.values().map(move |container| (pod.name.clone(), container))
    });
    containers
        .filter_map(|(pod, container)| Some((pod, container.devices.get(resource)?)))
        .flat_map(|(pod, devices)| {
            devices.values().flatten().map(move |id| (id.clone(), pod.clone()))
        })
        .collect()
}

/// Devices of each pod, as `container=id`, by the pod's UID.
fn holdings(node: &NodeStatus) -> BTreeMap<String, Vec<String>> {
    let ids = |pod: &PodStatus| {
        let containers = pod.containers.iter();
        let ids = containers.flat_map(|(name, container)| {
            let devices = container.devices.values().flat_map(|numa| numa.values().flatten());
            devices.map(move |id| format!("{name}={id}"))
        });
        ids.collect()
    };
    node.pods.iter().map(|(uid, pod)| (uid.clone(), ids(pod))).collect()
}

fn is_healthy(node: &NodeStatus, resource: &str, id: &str) -> Option<bool> {
    Some(node.resources.get(resource)?.devices.get(id)?.is_healthy())
}

/// True if the kubelet has the same counts of a resource.
fn has_counts(node: &NodeStatus, expected: &ResourceCounts) -> bool {
    node.counts(&expected.resource) == Some((expected.capacity, expected.allocatable))
}

fn counts(node: &NodeStatus, resource: &str) -> ResourceCounts {
    let (capacity, allocatable) = node.counts(resource).unwrap_or_default();
    ResourceCounts { resource: resource.to_owned(), capacity, allocatable }
}

/// Milliseconds since an instant, rounded to one decimal.
pub(super) fn elapsed_ms(since: Instant) -> f64 {
    to_ms(since.elapsed())
}

/// Milliseconds, rounded to one decimal.
fn to_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
