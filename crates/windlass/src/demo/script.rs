//! The story: each step does something, waits for its consequence, and tells it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::{Instant, timeout};
use windlass_core::{
    device::Device,
    inventory::Inventory,
    placement::{self, Connections, Policy, Request, Topology as Distances},
};
use windlass_kubelet_sim::{Admission, Allotment, NodeStatus, Pod, PodStatus, Question};
use windlass_machine::Fault;

use super::{
    event::{Alternative, Arrival, Container, Counts, Event, Failure},
    pods, runtime,
    stage::{QUIET_PERIOD, Stage},
    tell::Teller,
};
use crate::commands::{Topology, ordered, short_name};

/// Plays the steps.
pub(super) struct Script<'a> {
    stage: &'a Stage,
    teller: Teller,
    begun: Instant,
    steps: usize,
    pods: usize,
}

/// How long any step may take.
const STEP_LIMIT: Duration = Duration::from_secs(5);

/// "GPU has fallen off the bus": what is injected.
const FALLEN_OFF: u64 = 79;

// === impl Script ===

impl<'a> Script<'a> {
    pub(super) fn new(stage: &'a Stage, teller: Teller, begun: Instant) -> Self {
        Self { stage, teller, begun, steps: 0, pods: 0 }
    }

    /// Plays the whole story.
    pub(super) async fn play(&mut self) -> Result<()> {
        let inventory = self.discover().await.context("step discovery")?;
        self.tell(&Event::Topology(Topology::of(&inventory)))?;
        let resources = self.register().await.context("step registration")?;
        let Some(main) = resources.iter().max_by_key(|counts| counts.allocatable) else {
            bail!("step registration: the machine has no device to offer");
        };
        self.fill(&inventory, main).await.context("step pods")?;
        for other in resources.iter().filter(|counts| counts.resource != main.resource) {
            let short = other.resource.rsplit('/').next().unwrap_or_default();
            let pod = pods::single(&format!("on-{}", short.replace('.', "-")), &other.resource);
            self.admit(&inventory, pod).await.context("step pods")?;
        }
        self.refuse(main).await.context("step refusal")?;
        self.fail_and_recover(&inventory, main).await?;
        self.restart_kubelet(&resources).await.context("step kubelet restart")?;
        let (steps, pods, took_ms) = (self.steps, self.pods, ms(self.begun));
        self.teller.tell(&Event::Finished { steps, pods, took_ms })
    }

    async fn discover(&mut self) -> Result<Inventory> {
        let mut state = self.stage.state.clone();
        let complete = state.wait_for(|state| state.inventory.is_complete());
        let state = timeout(STEP_LIMIT, complete).await.context("no inventory in time")??;
        let inventory = state.inventory.clone();
        drop(state);
        ensure!(
            inventory.simulated.is_some(),
            "the agent does not say that the machine is simulated"
        );
        self.tell(&Event::Discovered {
            inventory: inventory.clone(),
            took_ms: ms(self.stage.agent_started),
        })?;
        Ok(inventory)
    }

    /// Every resource that the agent offers must arrive at the kubelet.
    async fn register(&mut self) -> Result<Vec<Counts>> {
        let offered = self.stage.state.borrow().resources();
        let mut arrived = Vec::new();
        for (resource, (capacity, allocatable)) in offered {
            let resource = resource.to_string();
            let complete =
                |node: &NodeStatus| node.counts(&resource) == Some((capacity, allocatable));
            self.stage.kubelet.wait_for(complete, STEP_LIMIT).await?;
            let took_ms = ms(self.stage.agent_started);
            arrived.push(Arrival { counts: Counts { resource, capacity, allocatable }, took_ms });
        }
        let resources = arrived.iter().map(|arrival| arrival.counts.clone()).collect();
        self.tell(&Event::Registered { resources: arrived })?;
        Ok(resources)
    }

    async fn fill(&mut self, inventory: &Inventory, main: &Counts) -> Result<()> {
        for pod in pods::that_fit(&main.resource, main.allocatable) {
            self.admit(inventory, pod).await?;
        }
        Ok(())
    }

    async fn admit(&mut self, inventory: &Inventory, pod: Pod) -> Result<()> {
        let begun = Instant::now();
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let wanted: Vec<_> = pod.containers.iter().flat_map(|one| one.limits.clone()).collect();
        let admission = self.stage.kubelet.admit(pod).await?;
        let took_ms = ms(begun);
        self.stage.kubelet.start_container(&uid, "main").await?;
        for (resource, size) in wanted {
            let given = admission.allotment("main", &resource).map_or(0, |given| given.ids().len());
            ensure!(given as u64 == size, "{name} got {given} of {size} {resource}");
        }
        let containers = self.containers(inventory, &admission)?;
        self.pods += 1;
        self.tell(&Event::PodAdmitted { pod: name, containers, took_ms })
    }

    fn containers(&self, inventory: &Inventory, admission: &Admission) -> Result<Vec<Container>> {
        let mut containers = Vec::new();
        for container in &admission.containers {
            for (resource, allotment) in &container.resources {
                let names = (container.name.as_str(), resource.as_str());
                containers.push(self.container(inventory, names, allotment)?);
            }
        }
        Ok(containers)
    }

    fn container(
        &self,
        inventory: &Inventory,
        (name, resource): (&str, &str),
        allotment: &Allotment,
    ) -> Result<Container> {
        let devices = ordered(allotment.ids().iter().filter_map(|id| inventory.get(id)));
        let state = self.stage.state.borrow().clone();
        let policy = state.placement(&resource.parse()?);
        let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
        let grant = &allotment.grant;
        let mut cdi_devices = grant.cdi_devices.clone();
        cdi_devices.sort_by_key(|name| devices.iter().position(|d| name.ends_with(d.id.as_str())));
        let edits = runtime::resolve(&self.stage.cdi_dir(), &cdi_devices)?;
        let own = grant.envs.iter().map(|(key, value)| format!("{key}={value}"));
        Ok(Container {
            name: name.to_owned(),
            resource: resource.to_owned(),
            devices: devices.iter().map(|device| short_name(device)).collect(),
            ids: devices.iter().map(|device| device.id.to_string()).collect(),
            why: Connections::among(&state.topology, &ids).to_string(),
            alternative: allotment
                .preference
                .as_ref()
                .and_then(|asked| alternative(inventory, &state.topology, policy, asked)),
            cdi_devices,
            files: edits.files(),
            env: own.chain(edits.env).collect(),
            device_nodes: edits.device_nodes,
        })
    }

    /// A pod that asks for more than is left must be refused, by the kubelet's own count.
    async fn refuse(&mut self, main: &Counts) -> Result<()> {
        let held = held_of(&self.stage.kubelet.node(), &main.resource).len();
        let pod = pods::too_large(&main.resource, main.allocatable - held);
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let Err(rejection) = self.stage.kubelet.admit(pod).await else {
            bail!("{name} was admitted");
        };
        self.stage.kubelet.delete(&uid).await;
        let (reason, message) = (rejection.reason.to_string(), rejection.message);
        self.tell(&Event::PodRefused { pod: name, reason, message })
    }

    /// A GPU that a pod holds falls off the bus, and comes back.
    async fn fail_and_recover(&mut self, inventory: &Inventory, main: &Counts) -> Result<()> {
        let node = self.stage.kubelet.node();
        let held = held_of(&node, &main.resource);
        let known = held.iter().filter_map(|(id, pod)| Some((inventory.get(id)?, pod)));
        let last = known.max_by_key(|(device, _)| device.index);
        let (device, pod) = last.context("no pod holds a device")?;
        self.fail(device, pod, main).await.context("step failure")?;
        self.recover(device, main).await.context("step recovery")
    }

    async fn fail(&mut self, device: &Device, pod: &str, main: &Counts) -> Result<()> {
        let gpu = device.index as usize;
        let begun = Instant::now();
        self.stage.machine.inject(&Fault::Xid { gpu, code: FALLEN_OFF })?;
        let id = device.id.as_str();
        let unhealthy = |node: &NodeStatus| is_healthy(node, &main.resource, id) == Some(false);
        let node = self.stage.kubelet.wait_for(unhealthy, STEP_LIMIT).await?;
        let took_ms = ms(begun);
        // The driver finds it lost from now on: it does not recover by itself.
        self.stage.machine.inject(&Fault::Lost { gpu })?;
        let why = self.stage.state.borrow().inventory.get(id).map(|now| now.health.to_string());
        self.tell(&Event::Fault {
            device: format!("GPU{gpu}"),
            fault: format!("XID {FALLEN_OFF}"),
        })?;
        self.tell(&Event::Unhealthy(Failure {
            device: short_name(device),
            why: why.unwrap_or_default(),
            counts: counts(&node, &main.resource),
            held_by: pod.to_owned(),
            took_ms,
        }))
    }

    async fn recover(&mut self, device: &Device, main: &Counts) -> Result<()> {
        let begun = Instant::now();
        let (name, quiet_ms) = (short_name(device), QUIET_PERIOD.as_secs_f64() * 1000.0);
        self.stage.machine.inject(&Fault::Recover { gpu: device.index as usize })?;
        self.teller.tell(&Event::Waiting { device: name.clone(), quiet_ms })?;
        let id = device.id.as_str();
        let healthy = |node: &NodeStatus| is_healthy(node, &main.resource, id) == Some(true);
        let node = self.stage.kubelet.wait_for(healthy, STEP_LIMIT).await?;
        ensure!(begun.elapsed() >= QUIET_PERIOD / 2, "it was trusted again without a quiet period");
        let counts = counts(&node, &main.resource);
        self.tell(&Event::Recovered { device: name, counts, took_ms: ms(begun) })
    }

    async fn restart_kubelet(&mut self, resources: &[Counts]) -> Result<()> {
        let before = holdings(&self.stage.kubelet.node());
        let begun = Instant::now();
        self.stage.kubelet.restart().await?;
        let back = |node: &NodeStatus| {
            resources.iter().all(|counts| {
                node.counts(&counts.resource) == Some((counts.capacity, counts.allocatable))
            })
        };
        let node = self.stage.kubelet.wait_for(back, STEP_LIMIT).await?;
        let took_ms = ms(begun);
        let after = holdings(&node);
        ensure!(
            before == after,
            "pods hold other devices than before: {before:?} became {after:?}"
        );
        self.tell(&Event::KubeletRestarted {
            resources: resources.len(),
            pods: after.len(),
            devices_held: resources.iter().map(|one| held_of(&node, &one.resource).len()).sum(),
            took_ms,
        })
    }

    /// Tells a step that was done.
    fn tell(&mut self, event: &Event) -> Result<()> {
        self.steps += 1;
        self.teller.tell(event)
    }
}

/// The kubelet's question is asked again, to learn what came second.
fn alternative(
    inventory: &Inventory,
    topology: &Distances,
    policy: Policy,
    asked: &Question,
) -> Option<Alternative> {
    let available: Vec<_> = asked.available.iter().map(String::as_str).collect();
    let required: Vec<_> = asked.must_include.iter().map(String::as_str).collect();
    let (near, size) = (&[][..], asked.size);
    let request = Request { available: &available, required: &required, near, size, policy };
    let explanation = placement::explain(topology, request).ok()?;
    let why_not = explanation.verdict()?;
    let devices = explanation.alternative?.devices;
    let devices = devices.iter().filter_map(|id| inventory.get(id.as_str()));
    Some(Alternative { devices: devices.map(short_name).collect(), why_not })
}

/// Device ids of a resource that pods hold, and the pod.
fn held_of(node: &NodeStatus, resource: &str) -> BTreeMap<String, String> {
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

/// What each pod holds, leaving out what may change.
fn holdings(node: &NodeStatus) -> BTreeMap<String, Vec<String>> {
    let ids = |pod: &PodStatus| {
        let containers = pod.containers.iter();
        let held = containers.flat_map(|(name, container)| {
            let devices = container.devices.values().flat_map(|numa| numa.values().flatten());
            devices.map(move |id| format!("{name}={id}"))
        });
        held.collect()
    };
    node.pods.iter().map(|(uid, pod)| (uid.clone(), ids(pod))).collect()
}

fn is_healthy(node: &NodeStatus, resource: &str, id: &str) -> Option<bool> {
    Some(node.resources.get(resource)?.devices.get(id)?.is_healthy())
}

fn counts(node: &NodeStatus, resource: &str) -> Counts {
    let (capacity, allocatable) = node.counts(resource).unwrap_or_default();
    Counts { resource: resource.to_owned(), capacity, allocatable }
}

fn ms(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 10_000.0).round() / 10.0
}
