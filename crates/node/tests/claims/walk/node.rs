//! The node around the agent, shared by all actors: the kubelet's two checkpoints, the scheduler's allocations, and
//! connections to the agent's sockets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use tokio::{sync::RwLock, time::sleep};
use tonic::{Status, transport::Channel};
use windlass_cluster_sim::api::Objects;
use windlass_kubelet_api::{
    checkpoint::{self, NO_NUMA_NODE, PodDevices},
    deviceplugin::PLUGIN_DIR,
    dra::checkpoint::{self as claims, ClaimState, DriverState},
    socket::SocketPath,
};
use windlass_testkit::GPU;

use super::owners::Owners;
use crate::claims::{
    objects::NAMESPACE,
    rng::{Length, Rng},
    world::{DRIVER, NODE},
};

/// The node, shared by all actors.
pub(super) struct Node {
    /// The kubelet's own folder. The agent sees all or a part of it.
    pub(super) kubelet: PathBuf,
    pub(super) objects: Objects,
    /// Read lock of a running call, until its answer is recorded. The write lock is held between the kill of an agent
    /// and the start of the next.
    pub(super) calls: RwLock<()>,
    facts: Mutex<Facts>,
    channel: Mutex<Option<Channel>>,
    steps: AtomicU64,
    length: Length,
    start: Instant,
}

/// Pods, claims and devices of the node, as the kubelet and the scheduler know them.
pub(super) struct Facts {
    pub(super) owners: Owners,
    /// Pods with devices of the device plugin, in the kubelet's memory.
    pub(super) pods: BTreeMap<String, DevicePod>,
    /// Claims in the kubelet's checkpoint.
    pub(super) claims: BTreeMap<String, ClaimState>,
    /// Latest device list of each resource; true for healthy devices.
    pub(super) lists: BTreeMap<String, BTreeMap<String, bool>>,
    /// Claim to which the scheduler has allocated each device.
    pub(super) scheduled: BTreeMap<String, String>,
    pub(super) pod_resources: PodResourcesAnswer,
    pub(super) tally: BTreeMap<String, u64>,
}

/// A pod with devices.
pub(super) struct DevicePod {
    pub(super) devices: Vec<String>,
    /// True for devices of a plain init container, which pod resources omit.
    pub(super) is_init: bool,
    pub(super) since: Instant,
}

/// The answer of the kubelet's pod resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodResourcesAnswer {
    /// All containers except init containers.
    Correct,
    /// No pod: the kubelet has not reached its API server since its start.
    Empty,
    Error,
    /// Answers later than the agent waits.
    Late,
}

// === impl Node ===

impl Node {
    pub(super) fn new(kubelet: PathBuf, objects: Objects, length: Length) -> Self {
        let facts = Facts {
            owners: Owners::new(),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            lists: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            pod_resources: PodResourcesAnswer::Correct,
            tally: BTreeMap::new(),
        };
        Self {
            kubelet,
            objects,
            calls: RwLock::new(()),
            facts: Mutex::new(facts),
            channel: Mutex::new(None),
            steps: AtomicU64::new(0),
            length,
            start: Instant::now(),
        }
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.length.is_reached(self.start, self.steps())
    }

    /// Counts and records a step of the walk.
    pub(super) fn step(&self, event: impl Into<String>) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.count(event);
    }

    pub(super) fn count(&self, event: impl Into<String>) {
        *self.facts().tally.entry(event.into()).or_default() += 1;
    }

    /// A socket of the device plugin.
    pub(super) fn plugin_socket(&self) -> PathBuf {
        self.kubelet.join(PLUGIN_DIR).join("windlass-nvidia.com_gpu.sock")
    }

    pub(super) fn driver_socket(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER).join("dra.sock")
    }

    pub(super) fn registration_socket(&self) -> PathBuf {
        self.kubelet.join("plugins_registry").join(format!("{DRIVER}@reg.sock"))
    }

    /// The kubelet's one connection to the driver; a new one now and then, and after the last one broke.
    pub(super) async fn driver(&self, rng: &mut Rng) -> Option<Channel> {
        let current = self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(current) = current.filter(|_| rng.below(16) > 0) {
            return Some(current);
        }
        let channel = dial(self.driver_socket()).await;
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&channel);
        channel
    }

    /// Handles a call without an answer because its connection broke; it counts as no step.
    pub(super) async fn connection_lost(&self) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.count("calls without an answer: connection lost");
        sleep(Duration::from_millis(2)).await;
    }

    /// Writes the allocation of a claim, as the scheduler does.
    pub(super) fn allocate(&self, uid: &str, devices: &[String]) {
        let result = |device: &String| {
            json!({
                "request": "gpu", "driver": DRIVER, "pool": format!("{NODE}/nvidia"),
                "device": device.to_lowercase(),
            })
        };
        let results: Vec<_> = devices.iter().map(result).collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": uid, "namespace": NAMESPACE, "uid": uid},
            "spec": {}, "status": {"allocation": {"devices": {"results": results}}},
        });
        self.objects.put(&serde_json::from_value::<ResourceClaim>(claim).expect("a claim"));
    }

    /// Deletes the claim's object, so that the scheduler may allocate its devices to others.
    pub(super) fn delete(&self, uid: &str) {
        // The object may have been deleted by force before.
        let _ = self.objects.delete::<ResourceClaim>(NAMESPACE, uid);
        self.facts().scheduled.retain(|_, claim| claim != uid);
    }

    /// Writes the kubelet's checkpoint of devices as a whole.
    pub(super) fn write_devices(&self) {
        let facts = self.facts();
        let pods = facts.pods.iter().map(|(uid, pod)| PodDevices {
            pod_uid: uid.clone(),
            container_name: "main".to_owned(),
            resource_name: GPU.to_owned(),
            device_ids: [(NO_NUMA_NODE, pod.devices.clone())].into(),
            allocate_response: Vec::new(),
        });
        let healthy = |list: &BTreeMap<String, bool>| {
            Some(
                list.iter()
                    .filter(|(_, is_healthy)| **is_healthy)
                    .map(|(id, _)| id.clone())
                    .collect(),
            )
        };
        let registered = facts.lists.iter().map(|(name, list)| (name.clone(), healthy(list)));
        let document = checkpoint::Checkpoint {
            pods: Some(pods.collect()),
            registered: Some(registered.collect()),
        };
        replace(&self.kubelet.join(PLUGIN_DIR).join(checkpoint::FILE_NAME), &document.to_json());
    }

    /// Adds claims to the kubelet's checkpoint before they are prepared.
    pub(super) fn add_claims(&self, uids: &BTreeSet<String>) {
        let mut facts = self.facts();
        for uid in uids {
            facts.claims.entry(uid.clone()).or_insert_with(|| ClaimState {
                claim_uid: uid.clone(),
                claim_name: uid.clone(),
                namespace: NAMESPACE.to_owned(),
                pod_uids: [format!("pod-of-{uid}")].into(),
                drivers: [(DRIVER.to_owned(), DriverState::default())].into(),
            });
        }
        self.write_claims(&facts);
    }

    pub(super) fn remove_claim(&self, uid: &str) {
        let mut facts = self.facts();
        facts.claims.remove(uid);
        self.write_claims(&facts);
    }

    /// Writes the kubelet's checkpoint of claims as a whole.
    pub(super) fn write_claims(&self, facts: &Facts) {
        let document =
            claims::Checkpoint { claims: Some(facts.claims.values().cloned().collect()) };
        replace(&self.kubelet.join(claims::FILE_NAME), &document.to_json());
    }
}

pub(super) async fn dial(socket: PathBuf) -> Option<Channel> {
    SocketPath::new(socket).expect("short").dial().await.ok()
}

/// True if the connection broke before an answer.
pub(super) fn is_connection_error(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Replaces a file as the kubelet does.
fn replace(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("written");
    fs::rename(&draft, path).expect("renamed");
}
