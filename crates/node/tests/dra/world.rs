//! A node with an API server: a simulated machine, an agent that offers its devices to claims, and claims.

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep, timeout};
use windlass_cluster_sim::api::ApiServer;
use windlass_core::device::{Device, DeviceKind};
use windlass_kubelet_api::dra::checkpoint::NEIGHBOUR;
use windlass_machine::{Machine, Profile};
use windlass_node::{
    Config,
    config::{ClusterAccess, DraOffer, DraPolicy, Policy},
    documents::Document,
    state::NodeState,
};

use crate::{
    common::{
        node::node,
        running::{LIMIT, Running},
    },
    kubelet::Kubelet,
};

/// A node whose parts are started one by one.
pub(crate) struct World {
    pub(crate) api: ApiServer,
    pub(crate) config: Config,
    pub(crate) machine: Machine,
}

/// Which device of the node's GPUs a request gets.
#[derive(Clone, Copy)]
pub(crate) struct Gets<'a> {
    pub(crate) request: &'a str,
    pub(crate) gpu: usize,
}

// === impl World ===

impl World {
    pub(crate) fn new() -> Self {
        Self::of("dgx-h100", DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() })
    }

    /// A node that is such a machine.
    pub(crate) fn of(machine: &str, dra: DraPolicy) -> Self {
        let profile = Profile::named(machine).expect("a shipped profile");
        let (folder, machine, config) = node(&profile, Policy { dra, ..Policy::default() });
        let (api, kubeconfig) = (ApiServer::start(), folder.join("kubeconfig"));
        std::fs::write(&kubeconfig, api.kubeconfig()).expect("written");
        let cluster = ClusterAccess {
            kubeconfig: Some(kubeconfig),
            node_name: Some("n1".to_owned()),
            ..ClusterAccess::default()
        };
        let world = Self { api, config: Config { cluster, ..config }, machine };
        world.show_kubelet_folder();
        world
    }

    /// What every kubelet has in its folder, which the agent sees therefore.
    fn show_kubelet_folder(&self) {
        std::fs::create_dir_all(&self.config.kubelet_dir).expect("made");
        std::fs::write(self.config.kubelet_dir.join(NEIGHBOUR), "{}").expect("written");
    }

    /// The agent sees no more of it than the shipped manifest mounts.
    pub(crate) fn hide_kubelet_folder(&self) {
        std::fs::remove_file(self.config.kubelet_dir.join(NEIGHBOUR)).expect("it was there");
    }

    /// An agent, once it knows its devices to be well, and the kubelet that has registered it.
    pub(crate) async fn serving(&self) -> (Running, Kubelet) {
        let agent = Running::start(&self.config).expect("it starts");
        let all = self.machine.model().expect("a model").gpus.len();
        agent
            .until(|state| gpus(state).iter().filter(|gpu| gpu.health.is_healthy()).count() == all)
            .await;
        let kubelet = self.registered().await;
        (agent, kubelet)
    }

    pub(crate) async fn registered(&self) -> Kubelet {
        self.exists(self.registration()).await;
        Kubelet::register(&self.registration()).await
    }

    pub(crate) fn registration(&self) -> PathBuf {
        self.config.kubelet_dir.join("plugins_registry/windlass.dev@reg.sock")
    }

    pub(crate) fn endpoint(&self) -> PathBuf {
        self.config.kubelet_dir.join("plugins/windlass.dev/dra.sock")
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.config.state_dir.join("claims.json")
    }

    /// Makes the record as it is when nothing is done yet.
    pub(crate) fn as_begun(&self) {
        self.change_record(|record| {
            let claims = record["claims"].as_object_mut().expect("a map");
            claims.values_mut().for_each(|entry| entry["state"] = json!("PrepareStarted"));
        });
    }

    /// Changes the record, and leaves it as an agent would have written it.
    pub(crate) fn change_record(&self, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read(self.record()).expect("there");
        let mut record: Value = serde_json::from_slice(&text).expect("JSON");
        change(&mut record);
        let record = Document::Claims.reread(record.to_string().as_bytes()).expect("a record");
        std::fs::write(self.record(), record).expect("written");
    }

    /// Waits until the record fulfils a condition.
    pub(crate) async fn recorded(&self, condition: impl Fn(&Value) -> bool) {
        let read = || serde_json::from_slice(&std::fs::read(self.record()).ok()?).ok();
        let fulfilled = async {
            while !read().is_some_and(|record| condition(&record)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, fulfilled).await.unwrap_or_else(|_| panic!("the record is {:#?}", read()));
    }

    /// A claim's CDI document, if it has one.
    pub(crate) fn document(&self, uid: &str) -> Option<Value> {
        let path = self.config.cdi_dir.join(format!("windlass.dev-claim-{uid}.json"));
        let text = std::fs::read(path).ok()?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Waits until a claim's CDI document says that.
    pub(crate) async fn documented(&self, uid: &str, document: &Value) {
        let written = async {
            while self.document(uid).as_ref() != Some(document) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, written).await.expect("it is written in time");
    }

    /// Puts a claim that has its name as its UID.
    pub(crate) fn claim(&self, agent: &Running, name: &str, gets: &[Gets<'_>]) -> Value {
        let state = agent.state.borrow().clone();
        let results = gets.iter().map(|it| result(it.request, &gpus(&state)[it.gpu]));
        let claim = claim(name, &results.collect::<Vec<_>>());
        self.put(&claim);
        claim
    }

    /// Puts a claim of namespace `ns`, in place of another of the name.
    pub(crate) fn put(&self, claim: &Value) {
        let claim = serde_json::from_value::<ResourceClaim>(claim.clone()).expect("a claim");
        self.api.objects().put(&claim);
    }

    pub(crate) fn remove(&self, claim: &str) {
        self.api.objects().delete::<ResourceClaim>("ns", claim).expect("it was there");
    }

    pub(crate) async fn exists(&self, path: PathBuf) {
        let there = async {
            while !path.exists() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, there).await.unwrap_or_else(|_| panic!("no {}", path.display()));
    }

    /// Waits for something to come true.
    pub(crate) async fn reaches(&self, condition: impl Fn() -> bool) {
        let reached = async {
            while !condition() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(LIMIT, reached).await;
        reached.unwrap_or_else(|_| panic!("not in time: {:#?}", self.api.objects().log()));
    }

    pub(crate) async fn vanishes(&self, path: PathBuf) {
        let gone = async {
            while path.exists() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, gone).await.unwrap_or_else(|_| panic!("{} stays", path.display()));
    }
}

/// The node's GPUs, in order.
pub(crate) fn gpus(state: &Arc<NodeState>) -> Vec<Device> {
    state.inventory.of_kind(DeviceKind::Gpu).cloned().collect()
}

/// An allocated claim that has its name as its UID.
pub(crate) fn claim(name: &str, results: &[Value]) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {}, "status": {"allocation": {"devices": {"results": results}}},
    })
}

/// What the scheduler writes for a device.
pub(crate) fn result(request: &str, device: &Device) -> Value {
    json!({
        "request": request, "driver": "windlass.dev", "pool": format!("n1/{}", device.source),
        "device": device.id.as_str().to_lowercase(),
    })
}
