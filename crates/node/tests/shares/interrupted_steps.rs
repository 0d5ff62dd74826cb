//! An agent killed between any two steps of a share: the container gets the share with its limit, and nothing is left
//! of the share after the pod's end.

use std::{fs, path::PathBuf};

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::json;
use windlass_config::HostPaths;
use windlass_core::{cdi::Spec, memory_limit::MemoryLimitRecord};
use windlass_testkit::until;

use crate::{
    kernel::{Kernel, MI300X, record_of},
    shares::{
        World,
        by_kernel::{document_with_limit, node, pod, until_shareable},
        placement_annotations, share,
    },
    steps::{MAX_RECORDINGS, Recorder, Steps},
};

/// Memory of the pods, more than half of a GPU.
const GIB: u64 = 100;

/// A node with two GPUs, and a pod that the kubelet has admitted.
struct Scenario {
    world: World,
    kernel: Kernel,
    uid: String,
}

/// Documents of shares.
fn documents(places: &HostPaths) -> Vec<Spec> {
    let files = fs::read_dir(&places.cdi_dir).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    let is_share = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("windlass.dev-share-")
    };
    // A document may be removed after the folder is listed.
    let read = |path| serde_json::from_slice(&fs::read(path).ok()?).ok();
    paths.filter(is_share).filter_map(read).collect()
}

/// The runtime may start a container from a document while there is no agent: by its limit, or not at all. The
/// container has its GPU by the document of memory.
fn check_documents(places: &HostPaths, kernel: &Kernel, uid: &str) {
    for document in documents(places) {
        let edits = &document.devices[0].container_edits;
        if !edits.device_nodes.is_empty() {
            match kernel.limit(uid, &kernel.program(Some(uid)), &record_of(edits)) {
                Ok(bytes) => assert_eq!(bytes, GIB << 30),
                Err(error) => assert!(error.contains("No such file"), "{error}"),
            }
        }
    }
}

// === impl Scenario ===

impl Scenario {
    /// Continues with a new agent after one that was killed after this number of steps.
    async fn restart_after(self, steps: &Steps, done: usize) -> Self {
        self.put();
        let Self { world, kernel, uid } = self;
        world.agent.kill().await;
        steps.restore(done);
        check_documents(&world.node.config.places, &kernel, &uid);
        let world = World { agent: world.node.start_agent(), ..world };
        until_shareable(&world, MI300X, 2).await;
        Self { world, kernel, uid }
    }

    /// Puts the pod as the scheduler bound it: the agent has to correct the decision.
    fn put(&self) {
        let pod = pod("a", GIB, 1);
        let annotations = placement_annotations(&"GPU-x".parse().expect("an id"));
        self.world.put(&pod, &json!({"uid": pod.uid, "annotations": annotations}));
    }

    fn records(&self) -> usize {
        let folder = self.world.node.config.places.state_dir.join("memory-limits/shares");
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    /// Makes the kubelet start the container, repeated until it succeeds, and checks its share.
    async fn check_share(&self, step: &str) {
        let documents = self.world.start_by_uid(&self.uid, "main").await;
        let gpus: Vec<_> = documents.iter().map(|it| share(it)["device"].clone()).collect();
        let record = record_of(&document_with_limit(documents).devices[0].container_edits);
        let text = fs::read(&record).expect("a record");
        let parsed = MemoryLimitRecord::parse(&text).expect("valid");
        let [limit] = parsed.gpus() else { panic!("{parsed:?}") };
        assert_eq!((limit.hard_mib, json!(limit.uuid)), (GIB << 10, gpus[0].clone()), "{step}");
        let program = self.kernel.program(Some(&self.uid));
        assert_eq!(self.kernel.limit(&self.uid, &program, &record), Ok(GIB << 30), "{step}");
        // The cluster half knows the GPU.
        until(step, async || {
            let pod = self.world.api.objects().get::<PodObject>("default", "a").expect("a Pod");
            let annotations = pod.metadata.annotations.unwrap_or_default();
            let placement = annotations.get("windlass.dev/placed").cloned().unwrap_or_default();
            if placement.contains(gpus[0].as_str().expect("an id")) {
                Ok(())
            } else {
                Err(placement)
            }
        })
        .await;
        // Another pod has the other GPU.
        let other = pod("b", GIB, 1);
        let uid = other.uid.clone();
        self.world.admit(other, &json!({})).await;
        let other_documents = self.world.start_by_uid(&uid, "main").await;
        assert!(other_documents.iter().all(|it| share(it)["device"] != gpus[0]), "{step}");
        self.world.kubelet.delete_pod(&uid).await;
    }

    /// Waits until the share of an ended pod has no document, no record and no effect on its GPU.
    async fn until_removed(&self, step: &str) {
        until(step, async || {
            let state = self.world.agent.state.borrow().clone();
            let has_free_gpus = state.shareable.values().all(|gpu| gpu.obstacle.is_none());
            let offers = state.device_offers();
            let obstacles =
                state.shareable.keys().filter_map(|id| offers[id.as_str()].obstacle.clone());
            let obstacles: Vec<_> = obstacles.collect();
            let remains = (
                documents(&self.world.node.config.places).len(),
                self.records(),
                has_free_gpus,
                obstacles.is_empty(),
            );
            if remains == (0, 0, true, true) { Ok(()) } else { Err((remains, obstacles)) }
        })
        .await;
    }
}

#[tokio::test]
async fn after_a_kill_between_any_two_steps_a_share_keeps_its_limit_and_can_be_removed() {
    let capacity = "drm/0000:05:00.0/vram 17179869184\ndrm/0000:26:00.0/vram 17179869184\n";
    let (world, kernel) = node(MI300X, 2, Some(capacity), "dmem").await;
    let main = pod("a", GIB, 1);
    let mut scenario = Scenario { world, kernel, uid: main.uid.clone() };
    let places = scenario.world.node.config.places.clone();
    let mut start_steps = Err("none".to_owned());
    for _ in 0..MAX_RECORDINGS {
        scenario.put();
        scenario.world.kubelet.admit(main.clone()).await.expect("admitted");
        let recorder = Recorder::start(&places);
        scenario.world.start_by_uid(&scenario.uid, "main").await;
        start_steps = recorder.stop();
        if start_steps.is_ok() {
            break;
        }
        scenario.world.kubelet.delete_pod(&scenario.uid).await;
        scenario.until_removed("the share is removed").await;
    }
    let start_steps = start_steps.expect("recorded");
    let names = start_steps.names();
    assert!(start_steps.len() >= 2, "a record and a document: {names:?}");
    for done in 0..=start_steps.len() {
        scenario = scenario.restart_after(&start_steps, done).await;
        scenario.check_share(&format!("the share is granted after {done} of {names:?}")).await;
    }
    scenario = scenario.restart_after(&start_steps, start_steps.len()).await;
    let recorder = Recorder::start(&places);
    scenario.world.kubelet.delete_pod(&scenario.uid).await;
    scenario.until_removed("the share is removed").await;
    let removal_steps = recorder.stop();
    // The pod has ended before it gets the share.
    for done in 0..=start_steps.len() {
        scenario = scenario.restart_after(&start_steps, done).await;
        scenario.until_removed(&format!("no part remains after {done} of {names:?}")).await;
    }
    let removal_steps = removal_steps.expect("no removal is lost");
    let names = removal_steps.names();
    assert!(removal_steps.len() >= 2, "a record and a document: {names:?}");
    for done in 0..=removal_steps.len() {
        scenario = scenario.restart_after(&removal_steps, done).await;
        scenario.until_removed(&format!("no part remains after {done} of {names:?}")).await;
    }
    scenario.world.agent.stop().await;
}
