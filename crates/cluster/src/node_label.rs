//! Watch of one label of this node's Node object.

use k8s_openapi::api::core::v1::Node;
use kube::core::ObjectMeta;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_config::LabelValue;

use super::{
    Client,
    metadata_watch::{EventHandler, MetadataWatch},
};

/// Watches a label of this node's Node object. Returns its value, and the task, which ends at `stop`.
///
/// # Guarantees
///
/// The value changes only when the API server returns the Node with another value. The last value stays while the API
/// server is unreachable or the Node is deleted.
pub fn watch(
    client: Client,
    label: String,
    stop: CancellationToken,
) -> (watch::Receiver<LabelValue>, impl Future<Output = ()> + Send) {
    let (sender, value) = watch::channel(LabelValue::Unknown);
    let node = client.node().to_owned();
    let objects = format!("Node {node}");
    let selector = format!("metadata.name={node}");
    // Only metadata is requested: the Node's status is large and changes often.
    let watcher = MetadataWatch::<Node>::new("node label", client, objects, selector);
    let handler = Publisher { node, label, value: sender, is_missing: false };
    let task = async move {
        stop.run_until_cancelled(watcher.run(handler)).await;
    };
    (value, task)
}

struct Publisher {
    node: String,
    label: String,
    value: watch::Sender<LabelValue>,
    /// True if the last list had no such Node.
    is_missing: bool,
}

// === impl Publisher ===

impl EventHandler for Publisher {
    fn on_list(&mut self, objects: Vec<ObjectMeta>) {
        let node = objects.into_iter().next();
        if node.is_none() && !self.is_missing {
            tracing::warn!(
                node = self.node,
                "Node not found in the cluster: waiting for it, check the node's name"
            );
        }
        self.is_missing = node.is_none();
        if let Some(node) = node {
            self.on_change(node);
        }
    }

    fn on_change(&mut self, object: ObjectMeta) {
        let labels = object.labels.unwrap_or_default();
        let value = match labels.get(&self.label) {
            Some(value) if !value.is_empty() => LabelValue::Value(value.clone()),
            Some(_) | None => LabelValue::Absent,
        };
        windlass_host::watch::publish_if_changed(&self.value, value);
    }

    fn on_delete(&mut self, _: &ObjectMeta) {}
}
