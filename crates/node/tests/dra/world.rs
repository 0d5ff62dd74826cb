//! A node with an API server: a simulated machine, an agent that offers its devices to claims, and claims.

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{Config, DraOffer, DraPolicy, HostPaths, Policy};
use windlass_core::device::{Device, DeviceKind};
use windlass_kubelet_api::dra::checkpoint::CPU_MANAGER_FILE;
use windlass_machine::{Machine, MachineProfile};
use windlass_node::documents::Document;
use windlass_resources::NodeState;
use windlass_testkit::{Node, RunningAgent, until, until_exists};

use crate::dra::kubelet::Kubelet;

/// A node and its cluster; a test starts agent and kubelet.
pub(crate) struct World {
    pub(crate) api: ApiServer,
    pub(crate) config: Config,
    pub(crate) machine: Machine,
}

/// First GPU of the node, for request `a`.
pub(crate) const FIRST_GPU: Allocated<'static> = Allocated { request: "a", gpu: 0 };

/// Second GPU of the node, for request `a`.
pub(crate) const SECOND_GPU: Allocated<'static> = Allocated { request: "a", gpu: 1 };

/// GPU of the node that is allocated to a request.
#[derive(Clone, Copy)]
pub(crate) struct Allocated<'a> {
    pub(crate) request: &'a str,
    pub(crate) gpu: usize,
}

// === impl World ===

impl World {
    pub(crate) fn new() -> Self {
        Self::from_profile("dgx-h100", policy_for_both_apis())
    }

    /// A node with eight GPUs, its agent, and its kubelet.
    pub(crate) async fn start() -> (Self, RunningAgent, Kubelet) {
        let world = Self::new();
        let (agent, kubelet) = world.start_ready().await;
        (world, agent, kubelet)
    }

    /// A node with the simulated machine of a shipped profile.
    pub(crate) fn from_profile(profile: &str, dra: DraPolicy) -> Self {
        Self::on(&MachineProfile::named(profile).expect("a shipped profile"), dra)
    }

    /// A node with this hardware and driver.
    pub(crate) fn on(profile: &MachineProfile, dra: DraPolicy) -> Self {
        let node = Node::new(profile, Policy { dra, ..Policy::default() });
        let api = ApiServer::start();
        let Node { machine, config, .. } = node.with_cluster("n1", &api.kubeconfig());
        let world = Self { api, config, machine };
        world.show_kubelet_folder();
        world
    }

    /// Creates the files of a kubelet's folder, all visible to the agent.
    fn show_kubelet_folder(&self) {
        std::fs::create_dir_all(&self.config.places.kubelet_dir).expect("created");
        std::fs::write(self.config.places.kubelet_dir.join(CPU_MANAGER_FILE), "{}")
            .expect("written");
    }

    /// Hides the parts of the folder that the shipped manifest does not mount.
    pub(crate) fn hide_kubelet_folder(&self) {
        std::fs::remove_file(self.config.places.kubelet_dir.join(CPU_MANAGER_FILE))
            .expect("it was there");
    }

    /// An agent, once its devices are healthy, and the kubelet that has registered it.
    pub(crate) async fn start_ready(&self) -> (RunningAgent, Kubelet) {
        let agent = RunningAgent::start(&self.config).expect("it starts");
        let gpu_count = self.machine.model().expect("a model").gpus.len();
        agent
            .until(|state| {
                gpus(state).iter().filter(|gpu| gpu.health.is_healthy()).count() == gpu_count
            })
            .await;
        let kubelet = self.register_kubelet().await;
        (agent, kubelet)
    }

    /// Waits for the registration socket, and registers the driver with a kubelet.
    pub(crate) async fn register_kubelet(&self) -> Kubelet {
        until_exists(&self.registration()).await;
        Kubelet::register(&self.registration()).await
    }

    pub(crate) fn registration(&self) -> PathBuf {
        self.config.places.kubelet_dir.join("plugins_registry/windlass.dev@reg.sock")
    }

    pub(crate) fn endpoint(&self) -> PathBuf {
        self.config.places.kubelet_dir.join("plugins/windlass.dev/dra.sock")
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.config.places.state_dir.join("claims.json")
    }

    /// Waits until the record and its copy have this content again.
    pub(crate) async fn until_records(&self, expected: &[u8]) {
        until("the record and its copy are written again", async || {
            let contents = records(&self.config.places).map(|path| std::fs::read(path).ok());
            let is_equal = contents.iter().all(|text| text.as_deref() == Some(expected));
            if is_equal { Ok(()) } else { Err(contents.map(|text| text.map(|it| it.len()))) }
        })
        .await;
    }

    /// Changes the claims of the record to the state before any step of a preparation.
    pub(crate) fn mark_prepare_started(&self) {
        self.change_record(|record| {
            let claims = record["claims"].as_object_mut().expect("a map");
            claims.values_mut().for_each(|entry| entry["state"] = json!("PrepareStarted"));
        });
    }

    /// Changes the record, and writes it in the agent's form.
    pub(crate) fn change_record(&self, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read(self.record()).expect("there");
        let mut record: Value = serde_json::from_slice(&text).expect("JSON");
        change(&mut record);
        let record = Document::Claims.round_trip(record.to_string().as_bytes()).expect("a record");
        std::fs::write(self.record(), record).expect("written");
    }

    /// Waits until the record meets a condition.
    pub(crate) async fn until_record(&self, condition: impl Fn(&Value) -> bool) {
        until("the record meets the condition", async || {
            let record =
                std::fs::read(self.record()).ok().and_then(|it| serde_json::from_slice(&it).ok());
            if record.as_ref().is_some_and(&condition) { Ok(()) } else { Err(record) }
        })
        .await;
    }

    /// A claim's CDI document, if it has one.
    pub(crate) fn document(&self, uid: &str) -> Option<Value> {
        let path = self.config.places.cdi_dir.join(format!("windlass.dev-claim-{uid}.json"));
        let text = std::fs::read(path).ok()?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Waits until a claim's CDI document has this content.
    pub(crate) async fn until_document(&self, uid: &str, document: &Value) {
        until("the document has the content", async || {
            let current = self.document(uid);
            if current.as_ref() == Some(document) { Ok(()) } else { Err(current) }
        })
        .await;
    }

    /// Puts a claim whose UID is its name.
    pub(crate) fn claim(
        &self,
        agent: &RunningAgent,
        name: &str,
        allocated: &[Allocated<'_>],
    ) -> Value {
        let state = agent.state.borrow().clone();
        let results = allocated.iter().map(|it| result(it.request, &gpus(&state)[it.gpu]));
        let claim = claim(name, &results.collect::<Vec<_>>());
        self.put(&claim);
        claim
    }

    /// Puts a claim of namespace `ns`, in place of another of the same name.
    pub(crate) fn put(&self, claim: &Value) {
        let claim = serde_json::from_value::<ResourceClaim>(claim.clone()).expect("a claim");
        self.api.objects().put(&claim);
    }

    pub(crate) fn remove(&self, claim: &str) {
        self.api.objects().delete::<ResourceClaim>("ns", claim).expect("it was there");
    }

    /// Waits until the requests to the API server meet a condition.
    pub(crate) async fn until_requests(&self, condition: impl Fn() -> bool) {
        until("the requests to the API server", async || {
            condition().then_some(()).ok_or_else(|| self.api.objects().requests())
        })
        .await;
    }
}

/// The record of claims, and its copy.
pub(crate) fn records(places: &HostPaths) -> [PathBuf; 2] {
    [places.state_dir.join("claims.json"), places.cdi_dir.join("windlass.dev-claims.copy")]
}

/// Devices for claims and through the device plugin.
pub(crate) fn policy_for_both_apis() -> DraPolicy {
    DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() }
}

/// The node's GPUs, in order.
pub(crate) fn gpus(state: &Arc<NodeState>) -> Vec<Device> {
    state.inventory.of_kind(DeviceKind::Gpu).cloned().collect()
}

/// An allocated claim whose UID is its name.
pub(crate) fn claim(name: &str, results: &[Value]) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {}, "status": {"allocation": {"devices": {"results": results}}},
    })
}

/// Allocation result of a device, as the scheduler writes it.
pub(crate) fn result(request: &str, device: &Device) -> Value {
    json!({
        "request": request, "driver": "windlass.dev", "pool": format!("n1/{}", device.source),
        "device": device.id.as_str().to_lowercase(),
    })
}
