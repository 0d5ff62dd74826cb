//! Watch of the pods of this node that have a placement, in the order in which they were bound.

use std::sync::Arc;

use kube::core::ObjectMeta;
use tokio::{sync::watch, time::Instant};
use windlass_core::annotation::PodPlacement;

use super::{
    BoundPod, Client,
    metadata_watch::{EventHandler, MetadataWatch},
};

/// A pod with a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPod {
    /// The pod, without its annotations.
    pub pod: BoundPod,
    /// The agent's correction of the pod's placement, or else the extender's decision.
    pub placement: PodPlacement,
    /// Time at which the agent first saw the pod with a readable placement: soon after the pod was bound, if the watch
    /// was running.
    pub first_seen: Instant,
}

/// Watches the pods of this node. Returns those with a readable placement, and the task of the watch. Pods of the first
/// list are in the order of their creation.
pub fn watch(
    client: Client,
) -> (watch::Receiver<Arc<Vec<PlacedPod>>>, impl Future<Output = ()> + Send) {
    let (sender, pods) = watch::channel(Arc::default());
    let watcher = MetadataWatch::of_node("placed pods", client);
    (pods, watcher.run(Publisher { pods: sender }))
}

struct Publisher {
    pods: watch::Sender<Arc<Vec<PlacedPod>>>,
}

// === impl Publisher ===

impl Publisher {
    fn update(&self, change: impl FnOnce(&mut Vec<PlacedPod>)) {
        let mut pods = self.pods.borrow().to_vec();
        change(&mut pods);
        windlass_host::watch::publish_if_changed(&self.pods, Arc::new(pods));
    }
}

impl EventHandler for Publisher {
    fn on_list(&mut self, mut objects: Vec<ObjectMeta>) {
        objects.sort_by_cached_key(|object| {
            (object.creation_timestamp.as_ref().map(|time| time.0), object.uid.clone())
        });
        self.update(|pods| {
            let exists = |pod: &PlacedPod| {
                objects.iter().any(|object| object.uid.as_ref() == Some(&pod.pod.uid))
            };
            pods.retain(exists);
            for object in objects {
                insert_or_replace(pods, object);
            }
        });
    }

    fn on_change(&mut self, object: ObjectMeta) {
        self.update(|pods| insert_or_replace(pods, object));
    }

    fn on_delete(&mut self, object: &ObjectMeta) {
        self.update(|pods| pods.retain(|pod| object.uid.as_ref() != Some(&pod.pod.uid)));
    }
}

/// Adds a pod at the end, or replaces it at its position. A pod without a readable placement is removed.
fn insert_or_replace(pods: &mut Vec<PlacedPod>, object: ObjectMeta) {
    let mut pod = BoundPod::of(object);
    let existing = pods.iter().position(|existing| existing.pod.uid == pod.uid);
    // The annotations are dropped, because they may be large.
    let annotations = std::mem::take(&mut pod.annotations);
    let placement = PodPlacement::from_annotations(&annotations);
    match (existing, placement) {
        (Some(position), Some(placement)) => {
            let first_seen = pods[position].first_seen;
            pods[position] = PlacedPod { pod, placement, first_seen };
        }
        (None, Some(placement)) => {
            pods.push(PlacedPod { pod, placement, first_seen: Instant::now() });
        }
        (Some(position), None) => drop(pods.remove(position)),
        (None, None) => {}
    }
}
