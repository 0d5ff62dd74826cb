//! A cluster of one node, whose parts can be stopped and started.

use std::{collections::BTreeSet, os::unix::fs::symlink, time::Duration};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{Device, ResourceSlice},
};
use serde_json::Value;
use tokio::{sync::Mutex, task::JoinSet, time::sleep};
use windlass_cluster_sim::{
    api::Objects,
    cluster::{Cluster, ScheduledPod},
    node as bound,
};
use windlass_config::{Config, DraOffer, DraPolicy, Policy};
use windlass_kubelet_sim::{
    self as kubelet, Admission, Kubelet, NodeStatus, Rejection, RunContainerOptions,
};
use windlass_machine::Machine;
use windlass_testkit::{Node, RunningAgent, TIMEOUT, until};

use crate::claims::objects::{NAMESPACE, admins, claim_template, class, pod};

pub(crate) const NODE: &str = "n1";

pub(crate) const DRIVER: &str = "windlass.dev";

/// Interval of the agent's checks. After three checks it makes the kubelet write a new checkpoint.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Mounts of the kubelet's folder, with the options of deploy/daemonset.yaml.
const MOUNTED_FOLDERS: [&str; 4] =
    ["device-plugins", "plugins", "plugins_registry", "pod-resources"];

/// The part of the kubelet's folder that the agent sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// The whole folder.
    Whole,
    /// The mounts of the shipped manifest, without the kubelet's checkpoint of claims.
    Shipped,
}

/// The cluster.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) kubelet: Kubelet,
    pub(crate) config: Config,
    pub(crate) agent: Option<RunningAgent>,
    /// Number of GPUs.
    pub(crate) gpus: usize,
    /// The scheduler places one pod after the other.
    queue: Mutex<()>,
    pub(crate) machine: Machine,
    _tasks: JoinSet<()>,
}

// === impl World ===

impl World {
    /// A node that makes this offer of a DGX H100's GPUs, once they are published.
    pub(crate) async fn new(offer: DraOffer) -> Self {
        Self::with_policy(DraPolicy { offer, ..DraPolicy::default() }).await
    }

    /// As [`Self::new`], by a policy.
    pub(crate) async fn with_policy(dra: DraPolicy) -> Self {
        Self::with(dra, |_| {}).await
    }

    /// Like [`Self::with_policy`], with a change of the configuration.
    pub(crate) async fn with(dra: DraPolicy, change: impl FnOnce(&mut Config)) -> Self {
        let cluster = Cluster::start();
        cluster.add_node(NODE);
        cluster.objects().create(&class()).expect("created");
        cluster.objects().create(&admins()).expect("created");
        let node = Node::from_profile("dgx-h100", Policy { dra, ..Policy::default() });
        let mut node = node.with_cluster(NODE, &cluster.server().kubeconfig());
        let kubelet = node.start_kubelet();
        node.config.kubelet_limits.check_interval = CHECK_INTERVAL;
        change(&mut node.config);
        let Node { machine, config, .. } = node;
        let (events, objects) = (kubelet.events(), cluster.objects());
        let mut tasks = JoinSet::new();
        tasks.spawn(
            async move { bound::delete_slices_at_kubelet_start(NODE, &events, &objects).await },
        );
        let (agent, gpus) = (None, 8);
        let mut world = Self {
            cluster,
            kubelet,
            config,
            agent,
            gpus,
            queue: Mutex::default(),
            machine,
            _tasks: tasks,
        };
        world.start_agent();
        let agent = world.agent.as_ref().expect("just started");
        agent.until(|state| state.inventory.is_complete()).await;
        world.until_settled().await;
        world
    }

    pub(crate) fn objects(&self) -> Objects {
        self.cluster.objects()
    }

    pub(crate) fn start_agent(&mut self) {
        self.agent = Some(RunningAgent::start(&self.config).expect("it starts"));
    }

    /// Ends the agent as SIGTERM does.
    pub(crate) async fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
    }

    /// Ends the agent as SIGKILL does.
    pub(crate) async fn kill_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
        // Pending writes of another thread complete before another agent reads them.
        sleep(Duration::from_millis(10)).await;
    }

    /// Waits until the driver is registered, and every GPU is published and free.
    pub(crate) async fn until_settled(&self) {
        self.until_registered().await;
        self.until_free(self.gpus).await;
    }

    pub(crate) async fn until_registered(&self) {
        let connected = |node: &NodeStatus| {
            node.drivers
                .get(DRIVER)
                .is_some_and(|drivers| drivers.iter().any(|driver| driver.is_connected))
        };
        self.kubelet.wait_for(connected, TIMEOUT).await.expect("the driver registers");
    }

    /// Schedules a pod, repeated until devices are free. One pod is scheduled at a time.
    pub(crate) async fn schedule_when_free(&self, pod: &Pod) -> ScheduledPod {
        let _guard = self.queue.lock().await;
        until("a place for a pod", async || self.cluster.schedule(pod)).await
    }

    /// Changes the offer through both APIs while the agent runs.
    pub(crate) fn offer(&mut self, offer: DraOffer) {
        self.config.policy.dra.offer = offer;
        self.agent.as_ref().expect("it runs").set_policy(self.config.policy.clone());
    }

    /// Waits until this number of GPUs is published without a taint.
    pub(crate) async fn until_free(&self, count: usize) {
        let free = |objects: &Objects| (free_gpus(objects) == count).then_some(());
        if self.objects().wait_until(TIMEOUT, free).await.is_err() {
            let taints = published(&self.objects()).into_iter().map(|it| (it.name, it.taints));
            panic!("not {count} are published and free: {:#?}", taints.collect::<Vec<_>>());
        }
    }

    /// Schedules and runs a pod with a separate claim.
    pub(crate) async fn run(
        &self,
        name: &str,
        devices: &Value,
    ) -> (ScheduledPod, RunContainerOptions) {
        self.objects().put(&claim_template(NAMESPACE, name, devices));
        self.run_pod(&pod((NAMESPACE, name), &["main"], ("resourceClaimTemplateName", name))).await
    }

    /// Schedules and runs a pod; returns the grant of its first container.
    pub(crate) async fn run_pod(&self, pod: &Pod) -> (ScheduledPod, RunContainerOptions) {
        let scheduled = self.cluster.schedule(pod).expect("a node");
        let grant = self.start(&scheduled).await;
        (scheduled, grant)
    }

    /// Admits a pod and starts its first container, repeated until it succeeds.
    pub(crate) async fn start(&self, scheduled: &ScheduledPod) -> RunContainerOptions {
        let pod = bound::pod(scheduled);
        self.admit(pod.clone()).await.expect("it fits");
        self.start_container(&pod.uid, &pod.containers[0].name).await
    }

    /// Admits a pod to the kubelet.
    pub(crate) async fn admit(&self, pod: kubelet::Pod) -> Result<Admission, Rejection> {
        Box::pin(self.kubelet.admit(pod)).await
    }

    /// Starts a container once.
    pub(crate) async fn try_start(
        &self,
        pod: &str,
        container: &str,
    ) -> Result<RunContainerOptions, String> {
        let started = Box::pin(self.kubelet.start_container(pod, container)).await;
        started.map_err(|error| error.to_string())
    }

    /// Starts a container, repeated until it succeeds.
    pub(crate) async fn start_container(&self, pod: &str, container: &str) -> RunContainerOptions {
        until("the container starts", async || self.try_start(pod, container).await).await
    }

    /// Deletes a pod in order: its containers end and its claims are released before its object is deleted.
    pub(crate) async fn end(&self, scheduled: &ScheduledPod) {
        self.kubelet.delete_pod(&uid(scheduled)).await;
        let metadata = &scheduled.pod.metadata;
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        let deleted =
            self.cluster.delete_pod(namespace.unwrap_or_default(), name.unwrap_or_default());
        deleted.expect("it was there");
    }

    /// Ends these pods after a last [`World::check`], and waits until every device is free again.
    pub(crate) async fn check_and_end(&self, pods: &[&ScheduledPod]) {
        self.check();
        for pod in pods {
            self.end(pod).await;
        }
        self.until_all_free().await;
    }

    /// Remains of claims in the driver's state file and among its documents.
    pub(crate) fn remains(&self) -> Vec<String> {
        let record: Vec<_> =
            self.record().into_iter().map(|(uid, _)| format!("record {uid}")).collect();
        let documents = std::fs::read_dir(&self.config.places.cdi_dir).into_iter().flatten();
        let names = documents.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        record.into_iter().chain(names.filter(|name| name.contains("-claim-"))).collect()
    }

    /// The driver's state file: devices and their use by claim.
    pub(crate) fn record(&self) -> Vec<(String, Vec<(String, String)>)> {
        let Ok(text) = std::fs::read(self.config.places.state_dir.join("claims.json")) else {
            return Vec::new();
        };
        let record: Value = serde_json::from_slice(&text).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let device = |it: &Value| (text(&it["name"]), text(&it["usage"]));
        let claims = record["claims"].as_object().expect("a map").iter();
        claims
            .map(|(uid, entry)| {
                let devices = entry["devices"].as_array().expect("a list").iter();
                (uid.clone(), devices.map(device).collect())
            })
            .collect()
    }

    /// Waits until no claim remains, and every device is free again.
    pub(crate) async fn until_all_free(&self) {
        self.until_released().await;
        self.until_settled().await;
    }

    /// Waits until no claim remains.
    pub(crate) async fn until_released(&self) {
        until("no claim remains", async || {
            let remaining = (self.remains(), self.kubelet.status().claims.clone());
            if remaining.0.is_empty() && remaining.1.is_empty() {
                return Ok(());
            }
            self.kubelet.reconcile_claims().await;
            Err(remaining)
        })
        .await;
    }
}

/// Shows an agent only the parts of the kubelet's folder that the shipped manifest mounts. Links stand for mounts.
pub(crate) fn use_shipped_mounts(config: &mut Config) {
    let real_folder = std::mem::replace(
        &mut config.places.kubelet_dir,
        config.places.state_dir.with_file_name("pod"),
    );
    std::fs::create_dir_all(&config.places.kubelet_dir).expect("created");
    for name in MOUNTED_FOLDERS {
        symlink(real_folder.join(name), config.places.kubelet_dir.join(name)).expect("linked");
    }
}

/// The devices of all slices.
pub(crate) fn published(objects: &Objects) -> Vec<Device> {
    let slices = objects.list::<ResourceSlice>().into_iter();
    slices.flat_map(|slice| slice.spec.devices.unwrap_or_default()).collect()
}

pub(crate) fn free_gpus(objects: &Objects) -> usize {
    let devices = published(objects);
    let is_gpu = |it: &&Device| it.name.starts_with("gpu-") && !it.name.contains("-mig-");
    let gpus = devices.iter().filter(is_gpu);
    gpus.filter(|it| it.taints.is_none()).count()
}

pub(crate) fn uid(scheduled: &ScheduledPod) -> String {
    scheduled.pod.metadata.uid.clone().expect("it is in the API")
}

/// Devices that the scheduler allocated to a pod's claims.
pub(crate) fn devices(scheduled: &ScheduledPod) -> BTreeSet<String> {
    scheduled.claims.iter().flat_map(crate::claims::owners::allocated).map(|it| it.device).collect()
}

/// Removes a file, if it still exists.
pub(crate) fn remove_if_exists(path: &std::path::Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            panic!("{}: {error}", path.display())
        }
        _ => {}
    }
}
