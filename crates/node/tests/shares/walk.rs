//! An agent killed between any two steps of a share: the container gets the share with its limit, and nothing is left
//! of the share after the pod's end.

use std::{fs, path::PathBuf};

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::json;
use windlass_config::Places;
use windlass_core::{cdi::Spec, memory_limit::MemoryLimitRecord};
use windlass_testkit::until;

use crate::{
    kernel::{Kernel, MI300X, record_of},
    shares::{
        World,
        by_kernel::{limited, node, pod, serving},
        placed, share,
    },
    steps::{Recorder, Steps, TRIES},
};

/// Memory of the pods, more than half of a GPU.
const GIB: u64 = 100;

/// A node with two GPUs, and a pod that the kubelet has admitted.
struct Walk {
    world: World,
    kernel: Kernel,
    uid: String,
}

/// Documents of shares.
fn documents(places: &Places) -> Vec<Spec> {
    let files = fs::read_dir(&places.cdi_dir).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    let is_share = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("windlass.dev-share-")
    };
    // A document may be removed meanwhile.
    let read = |path| serde_json::from_slice(&fs::read(path).ok()?).ok();
    paths.filter(is_share).filter_map(read).collect()
}

/// The runtime may start a container from a document while there is no agent: by its limit, or not at all. The
/// container has its GPU by the document of memory.
fn check_documents(places: &Places, kernel: &Kernel, uid: &str) {
    for document in documents(places) {
        let edits = &document.devices[0].container_edits;
        if !edits.device_nodes.is_empty() {
            match kernel.limit(uid, &kernel.program(Some(uid)), &record_of(edits)) {
                Ok(bytes) => assert_eq!(bytes, GIB << 30),
                Err(why) => assert!(why.contains("No such file"), "{why}"),
            }
        }
    }
}

// === impl Walk ===

impl Walk {
    /// Continues with a new agent after one that was killed after this number of steps.
    async fn after(self, steps: &Steps, done: usize) -> Self {
        self.put();
        let Self { world, kernel, uid } = self;
        world.agent.kill().await;
        steps.leave(done);
        check_documents(&world.node.config.places, &kernel, &uid);
        let world = World { agent: world.node.agent(), ..world };
        serving(&world, MI300X, 2).await;
        Self { world, kernel, uid }
    }

    /// Puts the pod as the scheduler bound it: the agent has to correct the decision.
    fn put(&self) {
        let pod = pod("a", GIB, 1);
        let annotations = placed(&"GPU-x".parse().expect("an id"));
        self.world.put(&pod, &json!({"uid": pod.uid, "annotations": annotations}));
    }

    fn records(&self) -> usize {
        let folder = self.world.node.config.places.state_dir.join("memory-limits/shares");
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    /// Has the kubelet start the container, with as many attempts as needed, and checks its share.
    async fn given(&self, step: &str) {
        let documents = self.world.start_of(&self.uid, "main").await;
        let gpus: Vec<_> = documents.iter().map(|it| share(it)["device"].clone()).collect();
        let record = record_of(&limited(documents).devices[0].container_edits);
        let text = fs::read(&record).expect("a record");
        let parsed = MemoryLimitRecord::parse(&text).expect("good");
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
        let others = self.world.start_of(&uid, "main").await;
        assert!(others.iter().all(|it| share(it)["device"] != gpus[0]), "{step}");
        self.world.kubelet.delete(&uid).await;
    }

    /// Checks that nothing is left of the share after its pod is gone.
    async fn ended(&self, step: &str) {
        until(step, async || {
            let state = self.world.agent.state.borrow().clone();
            let free = state.shareable.values().all(|gpu| gpu.obstacle.is_none());
            let offerings = state.offerings();
            let held =
                state.shareable.keys().filter_map(|id| offerings[id.as_str()].obstacle.clone());
            let held: Vec<_> = held.collect();
            let found = (
                documents(&self.world.node.config.places).len(),
                self.records(),
                free,
                held.is_empty(),
            );
            if found == (0, 0, true, true) { Ok(()) } else { Err((found, held)) }
        })
        .await;
    }
}

#[tokio::test]
async fn an_agent_killed_between_any_two_steps_of_a_share_keeps_its_limit_and_leaves_nothing() {
    let capacity = "drm/0000:05:00.0/vram 17179869184\ndrm/0000:26:00.0/vram 17179869184\n";
    let (world, kernel) = node(MI300X, 2, Some(capacity), "dmem").await;
    let main = pod("a", GIB, 1);
    let mut walk = Walk { world, kernel, uid: main.uid.clone() };
    let places = walk.world.node.config.places.clone();
    let mut giving = Err("none".to_owned());
    for _ in 0..TRIES {
        walk.put();
        walk.world.kubelet.admit(main.clone()).await.expect("admitted");
        let recorder = Recorder::start(&places);
        walk.world.start_of(&walk.uid, "main").await;
        giving = recorder.stop();
        if giving.is_ok() {
            break;
        }
        walk.world.kubelet.delete(&walk.uid).await;
        walk.ended("the share ends").await;
    }
    let giving = giving.expect("recorded");
    let names = giving.names();
    assert!(giving.len() >= 2, "a record and a document: {names:?}");
    for done in 0..=giving.len() {
        walk = walk.after(&giving, done).await;
        walk.given(&format!("the share is given after {done} of {names:?}")).await;
    }
    walk = walk.after(&giving, giving.len()).await;
    let recorder = Recorder::start(&places);
    walk.world.kubelet.delete(&walk.uid).await;
    walk.ended("the share ends").await;
    let ending = recorder.stop();
    // The pod is gone before it gets the share.
    for done in 0..=giving.len() {
        walk = walk.after(&giving, done).await;
        walk.ended(&format!("nothing is left after {done} of {names:?}")).await;
    }
    let ending = ending.expect("a removal is never lost");
    let names = ending.names();
    assert!(ending.len() >= 2, "a record and a document: {names:?}");
    for done in 0..=ending.len() {
        walk = walk.after(&ending, done).await;
        walk.ended(&format!("nothing is left after {done} of {names:?}")).await;
    }
    walk.world.agent.stop().await;
}
