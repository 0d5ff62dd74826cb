//! Watch of the terminating pods of this node: pods that are being deleted.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::core::ObjectMeta;
use tokio::sync::watch;

use super::{
    Client,
    metadata_watch::{EventHandler, MetadataWatch},
};

/// By UID of a terminating pod: the latest time at which its containers end.
pub type TerminatingPods = BTreeMap<String, Timestamp>;

/// Watches the pods of this node. Returns the terminating ones, and the task of the watch.
pub fn watch(
    client: Client,
) -> (watch::Receiver<Arc<TerminatingPods>>, impl Future<Output = ()> + Send) {
    let (sender, pods) = watch::channel(Arc::default());
    let watcher = MetadataWatch::of_node("terminating pods", client);
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

/// UID and deletion timestamp of a terminating pod. The timestamp is the time of the delete request plus the grace
/// period, at which the kubelet kills the containers.
fn termination(object: &ObjectMeta) -> Option<(String, Timestamp)> {
    // A mirror pod's entry has no effect: processes have the UID of its static pod, which differs and is deleted first.
    Some((object.uid.clone()?, object.deletion_timestamp.as_ref()?.0))
}
