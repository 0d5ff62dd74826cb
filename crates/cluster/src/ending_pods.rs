//! Watch of the pods of this node that are being deleted.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::core::ObjectMeta;
use tokio::sync::watch;

use super::{
    Client,
    metadata_watch::{EventHandler, MetadataWatch},
};

/// By UID of a pod that is being deleted: the latest time at which its containers end.
pub type TerminatingPods = BTreeMap<String, Timestamp>;

/// Watches the pods of this node. Returns those that are being deleted, and the task of the watch.
pub fn watch(
    client: Client,
) -> (watch::Receiver<Arc<TerminatingPods>>, impl Future<Output = ()> + Send) {
    let (sender, pods) = watch::channel(Arc::default());
    let watcher = MetadataWatch::of_node("ending pods", client);
    (pods, watcher.run(Publisher { pods: sender }))
}

struct Publisher {
    pods: watch::Sender<Arc<TerminatingPods>>,
}

// === impl Publisher ===

impl Publisher {
    fn publish(&self, pods: TerminatingPods) {
        windlass_host::watch::publish_if_changed(&self.pods, Arc::new(pods));
    }

    fn current(&self) -> TerminatingPods {
        TerminatingPods::clone(&self.pods.borrow())
    }
}

impl EventHandler for Publisher {
    fn on_list(&mut self, objects: Vec<ObjectMeta>) {
        self.publish(objects.iter().filter_map(termination).collect());
    }

    fn on_change(&mut self, object: ObjectMeta) {
        let Some((uid, end)) = termination(&object) else { return };
        let mut pods = self.current();
        pods.insert(uid, end);
        self.publish(pods);
    }

    fn on_delete(&mut self, object: &ObjectMeta) {
        let mut pods = self.current();
        pods.retain(|uid, _| object.uid.as_ref() != Some(uid));
        self.publish(pods);
    }
}

/// The pod's UID and the time of its end. The API server adds the grace period to the time of the request.
fn termination(object: &ObjectMeta) -> Option<(String, Timestamp)> {
    // A mirror pod has another UID than its static pod, and is deleted after the static pod. Its entry has no effect.
    Some((object.uid.clone()?, object.deletion_timestamp.as_ref()?.0))
}
