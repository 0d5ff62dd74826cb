//! Shares of GPUs by amounts: bound when a container starts, to the GPU that the cluster half decided if it has room,
//! and never beyond a GPU's capacity.

mod by_kernel;
mod interrupted_steps;

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::{Value, json};
use windlass_cluster_sim::api::{ApiServer, Effect, Fault};
use windlass_config::{Policy, ShareResources};
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_deviceplugin::shares::share_name;
use windlass_kubelet_sim::{Container, Kubelet, Pod};
use windlass_machine::MachineProfile;
use windlass_testkit::{
    GPU, Node, Permission, RunningAgent, pod_with, until, until_allocatable, until_removed,
};

pub(crate) const MEMORY: &str = "windlass.dev/gpu-memory";
pub(crate) const COMPUTE: &str = "windlass.dev/gpu-compute";

/// Schedulable GiB of one GPU, and of the machine's eight.
const GIB_PER_GPU: usize = 79;
const GIB_OF_ALL_GPUS: usize = 8 * GIB_PER_GPU;

/// A node in a cluster, whose pods share its GPUs.
pub(crate) struct World {
    pub(crate) api: ApiServer,
    pub(crate) node: Node,
    pub(crate) kubelet: Kubelet,
    pub(crate) agent: RunningAgent,
    pub(crate) gpus: Vec<DeviceId>,
}

fn policy() -> Policy {
    let name = |name: &str| Some(name.parse().expect("a resource"));
    let shares = ShareResources {
        memory: name(MEMORY),
        compute: name(COMPUTE),
        ..ShareResources::default()
    };
    Policy { shares, ..Policy::default() }
}

/// The placement of a share on a GPU.
pub(crate) fn placement_annotations(gpu: &DeviceId) -> Value {
    json!({"windlass.dev/placement": json!({"devices": [{"id": gpu, "memoryMib": 1}]}).to_string()})
}

// === impl World ===

impl World {
    async fn new() -> Self {
        let world = Self::with(policy(), 8).await;
        until_allocatable(&world.kubelet, MEMORY, GIB_OF_ALL_GPUS).await;
        until_allocatable(&world.kubelet, COMPUTE, 800).await;
        world
    }

    /// A node with this policy, once it has this number of allocatable GPUs.
    pub(crate) async fn with(policy: Policy, gpus: usize) -> Self {
        let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        Self::prepared(&profile, policy, gpus, |_| {}).await
    }

    /// A node with this policy, which `prepare` changes before its agent starts, once it has this number of allocatable
    /// GPUs.
    pub(crate) async fn prepared(
        profile: &MachineProfile,
        policy: Policy,
        gpus: usize,
        prepare: impl FnOnce(&mut Node),
    ) -> Self {
        let api = ApiServer::start();
        let mut node = Node::new(profile, policy).with_cluster("n1", &api.kubeconfig());
        prepare(&mut node);
        let (kubelet, agent) = node.start_ready(gpus).await;
        let state = agent.state.borrow().clone();
        let gpus = state.shareable.keys().cloned().collect();
        Self { api, node, kubelet, agent, gpus }
    }

    /// Binds a pod to the node with these annotations, and has the kubelet admit it.
    pub(crate) async fn admit(&self, pod: Pod, annotations: &Value) {
        self.put(&pod, &json!({"uid": pod.uid, "annotations": annotations}));
        self.kubelet.admit(pod).await.expect("admitted");
    }

    /// Puts a bound pod with this metadata on the API server.
    pub(crate) fn put(&self, pod: &Pod, metadata: &Value) {
        let container = |it: &Container| {
            let limits = it.limits.iter().map(|(name, count)| (name.clone(), count.to_string()));
            let limits: BTreeMap<_, _> = limits.collect();
            json!({"name": it.name, "image": "i", "resources": {"limits": limits}})
        };
        let init = pod.init_containers.iter().map(|it| container(&it.container));
        let mut object = json!({
            "metadata": metadata,
            "spec": {
                "nodeName": "n1",
                "initContainers": init.collect::<Vec<_>>(),
                "containers": pod.containers.iter().map(container).collect::<Vec<_>>(),
            },
        });
        object["metadata"]["name"] = pod.name.clone().into();
        object["metadata"]["namespace"] = pod.namespace.clone().into();
        self.api.objects().put::<PodObject>(&serde_json::from_value(object).expect("a Pod"));
    }

    /// Admits a pod with these GiB of memory and annotations, and starts it.
    pub(crate) async fn run(&self, name: &str, gib: u64, annotations: &Value) -> Value {
        self.admit(pod_with(name, MEMORY, gib), annotations).await;
        self.start(name, "main").await.remove(0)
    }

    /// Starts a container, with repeated attempts as the kubelet's. Returns its documents, in the order of their names.
    pub(crate) async fn start(&self, name: &str, container: &str) -> Vec<Value> {
        self.start_by_uid(&format!("{name}-uid"), container).await
    }

    /// Starts a container of the pod with this UID, as [`Self::start`] does.
    pub(crate) async fn start_by_uid(&self, uid: &str, container: &str) -> Vec<Value> {
        let grant = until("the container starts", async || {
            self.kubelet.start_container(uid, container).await
        })
        .await;
        let names = grant.cdi_devices.iter().map(|it| it.strip_prefix("windlass.dev/share="));
        names.map(|name| self.document(name.expect("a share"))).collect()
    }

    fn document(&self, name: &str) -> Value {
        let path = self.node.config.places.cdi_dir.join(format!("windlass.dev-share-{name}.json"));
        let document: Value =
            serde_json::from_slice(&std::fs::read(path).expect("a document")).expect("JSON");
        assert_eq!(document["devices"][0]["name"], name);
        document
    }

    fn documents(&self) -> usize {
        let files = std::fs::read_dir(&self.node.config.places.cdi_dir).expect("a folder");
        let names =
            files.map(|file| file.expect("a file").file_name().into_string().expect("text"));
        names.filter(|name| name.starts_with("windlass.dev-share-")).count()
    }

    /// Waits for the agent's own annotation of a pod, and returns it.
    pub(crate) async fn until_corrected(&self, name: &str) -> String {
        until("the pod is annotated", async || {
            let pod = self.api.objects().get::<PodObject>("default", name).expect("a Pod");
            let annotations = pod.metadata.annotations.unwrap_or_default();
            annotations.get("windlass.dev/placed").cloned().ok_or(annotations)
        })
        .await
    }

    /// The path of the first pod's document for this number of GiB.
    fn path_of(&self, gib: u64) -> PathBuf {
        let ids: Vec<_> = (0..gib).map(|id| id.to_string()).collect();
        let name = share_name(MEMORY, &ids);
        self.node.config.places.cdi_dir.join(format!("windlass.dev-share-{name}.json"))
    }

    /// Ends the agent, does the action, and starts the next agent.
    pub(crate) async fn restart(mut self, action: impl FnOnce()) -> Self {
        self.agent.stop().await;
        action();
        self.agent = self.node.start_agent();
        let has_all_gpus = |state: &windlass_resources::NodeState| state.shareable.len() == 8;
        self.agent.until(|state| has_all_gpus(state)).await;
        until_allocatable(&self.kubelet, MEMORY, GIB_OF_ALL_GPUS).await;
        self
    }

    /// Every request of the agent is one that the shipped roles allow.
    pub(crate) fn assert_permissions(&self) {
        self.assert_within(&Permission::shipped());
    }

    /// Every request of the agent is one that these permissions allow.
    pub(crate) fn assert_within(&self, permissions: &[Permission]) {
        for request in self.api.objects().requests() {
            let permission =
                Permission::required_by(&request.method, &request.path, &request.query);
            let permission = permission.expect("a request for a resource");
            assert!(
                permissions.iter().any(|it| it.covers(&permission)),
                "deploy lacks {permission:?}"
            );
        }
    }
}

pub(crate) fn variables(document: &Value) -> Vec<&str> {
    let env = document["devices"][0]["containerEdits"]["env"].as_array();
    env.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The share in a document.
pub(crate) fn share(document: &Value) -> Value {
    let text = variables(document).into_iter().find_map(|it| it.strip_prefix("WINDLASS_SHARE="));
    serde_json::from_str(text.expect("a share")).expect("JSON")
}

fn gpu_of(document: &Value) -> String {
    share(document)["device"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn pods_share_the_gpu_that_was_decided_for_them() {
    let world = World::new().await;
    let gpu = &world.gpus[5];
    let first = world.run("a", 8, &placement_annotations(gpu)).await;
    assert_eq!(gpu_of(&first), gpu.as_str());
    assert_eq!(
        (share(&first)["memoryMib"].clone(), share(&first)["uid"].clone()),
        (json!(8192), json!("a-uid"))
    );
    let text =
        std::fs::read_to_string(world.node.config.places.cdi_dir.join("windlass.dev-gpu.json"));
    let gpu_document: Value = serde_json::from_str(&text.expect("a document")).expect("JSON");
    let full_gpu = gpu_document["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .find(|it| it["name"] == gpu.as_str());
    let nodes = |device: &Value| device["containerEdits"]["deviceNodes"].clone();
    assert_eq!(nodes(&first["devices"][0]), nodes(full_gpu.expect("the GPU")));
    assert_eq!(first["containerEdits"], gpu_document["containerEdits"]);
    let second = world.run("b", 71, &placement_annotations(gpu)).await;
    assert_eq!(gpu_of(&second), gpu.as_str(), "both shares fill its 79 GiB");
    let state = world.agent.state.borrow().clone();
    let pod = windlass_node::PodHoldings {
        namespace: "default".to_owned(),
        name: "b".to_owned(),
        ..windlass_node::PodHoldings::default()
    };
    let shares = windlass_node::shares_of(&world.node.config.places, &state, &pod);
    let [share] = shares.as_slice() else { panic!("{shares:?}") };
    assert_eq!((&share.device, share.memory_mib, share.of_mib), (gpu, 71 << 10, 81_559));
    assert_eq!(share.pod_uids, ["b-uid".to_owned()].into());
    assert_eq!(share.enforcement, Enforcement::None);
    assert_eq!(world.start("a", "main").await, [first], "a restarted container has the same share");
    // The other GPUs are offered in full.
    until_allocatable(&world.kubelet, GPU, 7).await;
    world.assert_permissions();
    world.agent.stop().await;
}

#[tokio::test]
async fn a_decision_that_does_not_fit_is_corrected() {
    let world = World::new().await;
    let gpu = &world.gpus[0];
    world.run("a", 40, &placement_annotations(gpu)).await;
    let corrected = world.run("b", 40, &placement_annotations(gpu)).await;
    assert_ne!(gpu_of(&corrected), gpu.as_str());
    let placement: Value = serde_json::from_str(&world.until_corrected("b").await).expect("JSON");
    let expected = json!({"devices": [{"id": gpu_of(&corrected), "memoryMib": 40960}]});
    assert_eq!(placement, expected);
    let fitting = world.run("c", 39, &placement_annotations(gpu)).await;
    assert_eq!(gpu_of(&fitting), gpu.as_str());
    // A decision for a failed GPU is not followed.
    world.node.inject("lost@7");
    until_allocatable(&world.kubelet, MEMORY, GIB_OF_ALL_GPUS - GIB_PER_GPU).await;
    let failed = &world.gpus[..];
    let state = world.agent.state.borrow().clone();
    let lost =
        failed.iter().find(|id| state.shareable[*id].obstacle.is_some()).expect("it was lost");
    let other_gpu_share = world.run("d", 1, &placement_annotations(lost)).await;
    assert_ne!(gpu_of(&other_gpu_share), lost.as_str());
    world.agent.stop().await;
}

#[tokio::test]
async fn a_restarted_agent_knows_every_share() {
    let world = World::new().await;
    let gpu = &world.gpus[2].clone();
    let first = world.run("a", 40, &placement_annotations(gpu)).await;
    let world = world.restart(|| {}).await;
    assert_eq!(world.start("a", "main").await, [first]);
    let second = world.run("b", 40, &placement_annotations(gpu)).await;
    assert_ne!(gpu_of(&second), gpu.as_str(), "80 GiB exceed the GPU");
    until_allocatable(&world.kubelet, GPU, 6).await;
    world.agent.stop().await;
}

#[tokio::test]
async fn a_share_with_an_unreadable_document_counts_on_every_gpu_until_its_pod_starts_again() {
    let world = World::new().await;
    let gpu = world.gpus[2].clone();
    world.run("a", 40, &placement_annotations(&gpu)).await;
    let path = world.path_of(40);
    let text = std::fs::read(&path).expect("a document");
    let world = world.restart(|| std::fs::write(&path, "{").expect("written")).await;
    world.admit(pod_with("b", MEMORY, 30), &placement_annotations(&gpu)).await;
    let assert_refused = async |part: &str| {
        let error = world.kubelet.start_container("b-uid", "main").await.expect_err("not started");
        assert!(error.to_string().contains(part), "{error}");
    };
    assert_refused("any GPU may have its share").await;
    std::fs::remove_file(&path).expect("it was there");
    world.start("b", "main").await;
    world.admit(pod_with("c", MEMORY, 50), &placement_annotations(&gpu)).await;
    let error = world.kubelet.start_container("c-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("51200 MiB of memory"), "{error}");
    // The kubelet starts the pod's container again.
    let restarted = world.start("a", "main").await.remove(0);
    assert_eq!(gpu_of(&restarted), gpu.as_str());
    assert_eq!(std::fs::read(&path).expect("a document"), text);
    let other = world.start("c", "main").await.remove(0);
    assert_ne!(gpu_of(&other), gpu.as_str());
    world.agent.stop().await;
}

#[tokio::test]
async fn without_an_api_server_a_container_waits_with_the_reason() {
    let world = World::new().await;
    world.api.inject(Fault::at("/api/v1/pods", Effect::CloseConnection));
    world.admit(pod_with("a", MEMORY, 8), &placement_annotations(&world.gpus[1])).await;
    let error = world.kubelet.start_container("a-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("cannot list pods of node n1"), "{error}");
    assert_eq!(world.documents(), 0);
    world.api.clear_faults();
    let document = world.start("a", "main").await.remove(0);
    assert_eq!(gpu_of(&document), world.gpus[1].as_str());
    // A pod that has its share needs no API server.
    world.api.inject(Fault::at("/api/v1/pods", Effect::CloseConnection));
    assert_eq!(world.start("a", "main").await, [document]);
    world.agent.stop().await;
}

#[tokio::test]
async fn annotations_by_a_pods_author_take_no_share_of_other_pods() {
    let world = World::new().await;
    let full_gpu = world.kubelet.admit(pod_with("whole", GPU, 1)).await.expect("admitted");
    let full_gpu = full_gpu.containers[0].resources[GPU].ids();
    let full_gpu: DeviceId = full_gpu.first().expect("a GPU").parse().expect("an id");
    until_allocatable(&world.kubelet, MEMORY, GIB_OF_ALL_GPUS - GIB_PER_GPU).await;
    let full = &world.gpus.iter().find(|id| **id != full_gpu).expect("another").clone();
    let first = world.run("a", 79, &placement_annotations(full)).await;
    let too_large =
        json!({"devices": [{"id": full, "memoryMib": 1, "computeMilli": 1}]}).to_string();
    for (name, annotation) in [
        ("damaged", "GPU".to_owned()),
        ("of-two", json!({"devices": [{"id": full}, {"id": full_gpu}]}).to_string()),
        ("unknown", json!({"devices": [{"id": "GPU-x", "memoryMib": 8}]}).to_string()),
        ("whole-gpu", json!({"devices": [{"id": full_gpu}]}).to_string()),
        ("full", too_large),
    ] {
        let forged = json!({"windlass.dev/placement": annotation, "windlass.dev/other": "x"});
        let document = world.run(name, 10, &forged).await;
        let gpu = gpu_of(&document);
        assert!(gpu != full_gpu.as_str() && gpu != full.as_str(), "{name} got {gpu}");
        assert_eq!(share(&document)["memoryMib"], 10240, "{name}");
    }
    assert_eq!(world.start("a", "main").await, [first]);
    world.agent.stop().await;
}

#[tokio::test]
async fn a_placement_that_was_not_written_by_a_binding_is_ignored() {
    let world = World::new().await;
    world.run("a", 8, &placement_annotations(&world.gpus[1])).await;
    let pod = pod_with("forged", MEMORY, 8);
    let fields = json!({"f:metadata": {"f:annotations": {"f:windlass.dev/placement": {}}}});
    let writer = json!({
        "manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    let annotations = placement_annotations(&world.gpus[5]);
    world
        .put(&pod, &json!({"uid": pod.uid, "annotations": annotations, "managedFields": [writer]}));
    world.kubelet.admit(pod).await.expect("admitted");
    let document = world.start("forged", "main").await.remove(0);
    assert_eq!(gpu_of(&document), world.gpus[1].as_str(), "the agent chooses the fullest GPU");
    assert!(world.until_corrected("forged").await.contains(world.gpus[1].as_str()));
    world.agent.stop().await;
}

#[tokio::test]
async fn a_static_pod_is_found_by_its_mirror_pod() {
    let world = World::new().await;
    let pod = pod_with("static", MEMORY, 8);
    let mirror = json!({"kubernetes.io/config.mirror": pod.uid});
    world.put(&pod, &json!({"uid": "of-the-mirror", "annotations": mirror}));
    world.kubelet.admit(pod).await.expect("admitted");
    let document = world.start("static", "main").await.remove(0);
    assert_eq!(share(&document)["uid"], "static-uid");
    assert!(world.until_corrected("static").await.contains(&gpu_of(&document)));
    // If two pods have the annotation of a mirror pod, neither counts.
    let pod = pod_with("other", MEMORY, 8);
    let mirror = json!({"kubernetes.io/config.mirror": pod.uid});
    world.put(&pod, &json!({"uid": "u1", "annotations": mirror}));
    world.put(&pod_with("forged", MEMORY, 8), &json!({"uid": "u2", "annotations": mirror}));
    world.kubelet.admit(pod).await.expect("admitted");
    let error = world.kubelet.start_container("other-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("has no pod with UID other-uid"), "{error}");
    world.agent.stop().await;
}

#[tokio::test]
async fn all_containers_of_a_pod_have_one_gpu_by_both_amounts() {
    let world = World::new().await;
    let container =
        |name: &str, gib, percent| Container::new(name).limit(MEMORY, gib).limit(COMPUTE, percent);
    let pod = Pod::new("p")
        .init_container(container("first", 4, 10))
        .container(container("main", 8, 20))
        .container(container("side", 2, 30));
    world.admit(pod, &json!({})).await;
    let mut gpus = Vec::new();
    for container in ["first", "main", "side"] {
        let documents = world.start("p", container).await;
        assert_eq!(documents.len(), 2, "{container}");
        for document in &documents {
            let share = share(document);
            assert_eq!(
                (&share["memoryMib"], &share["computePercent"]),
                (&json!(10240), &json!(50))
            );
            gpus.push(gpu_of(document));
        }
        let has_nodes = |it: &&Value| !it["devices"][0]["containerEdits"]["deviceNodes"].is_null();
        assert_eq!(documents.iter().filter(has_nodes).count(), 1, "the GPU is granted once");
    }
    gpus.dedup();
    assert_eq!(gpus.len(), 1, "{gpus:?}");
    let placement: Value = serde_json::from_str(&world.until_corrected("p").await).expect("JSON");
    let expected = json!({"devices": [{"id": gpus[0], "memoryMib": 10240, "computeMilli": 500}]});
    assert_eq!(placement, expected);
    // Half of the compute of this GPU is free, and all of it on the other GPUs.
    world
        .admit(pod_with("q", COMPUTE, 60), &placement_annotations(&gpus[0].parse().expect("an id")))
        .await;
    let other = world.start("q", "main").await.remove(0);
    assert_ne!(gpu_of(&other), gpus[0]);
    world.agent.stop().await;
}

#[tokio::test]
async fn a_gpu_is_offered_in_full_again_after_its_last_share() {
    let world = World::new().await;
    world.run("a", 8, &placement_annotations(&world.gpus[4])).await;
    until_allocatable(&world.kubelet, GPU, 7).await;
    let path = world.path_of(8);
    assert!(path.exists());
    world.kubelet.delete_pod("a-uid").await;
    until_removed(&path).await;
    until_allocatable(&world.kubelet, GPU, 8).await;
    // The next pod gets the same ids.
    let next = world.run("b", 8, &placement_annotations(&world.gpus[3])).await;
    assert_eq!(gpu_of(&next), world.gpus[3].as_str());
    world.agent.stop().await;
}
