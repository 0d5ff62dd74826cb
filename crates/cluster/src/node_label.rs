//! Watch of one label of the own Node.
//!
//! ```text
//!            list            watch, from the list's version
//!   start ────────> listed ────────────────────────────> following ─┐
//!     ^               ^                                    │ │  ^   │ ended: again, from the
//!     │               └────────────────────────────────────┘ │  └───┘ last version seen
//!     │                   410, the version is too old        │
//!     └──────────────────────────────────────────────────────┘
//!           failed: again after a pause, with new credentials
//! ```

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};
use tokio::{sync::watch, time::sleep};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use windlass_config::LabelValue;
use windlass_host::deadline;

use super::{Client, ClusterError, attempts::Attempts, client::Connection, error::is_gone};

/// Watches a label of the own Node. Returns its value, and the task to run until stopped.
///
/// # Guarantees
///
/// The value changes only when the Node is seen with another one. It stays while the API server is away or
/// the Node is deleted.
pub fn watch(
    client: Client,
    label: String,
    stop: CancellationToken,
) -> (watch::Receiver<LabelValue>, impl Future<Output = ()> + Send) {
    let (publish, value) = watch::channel(LabelValue::Unknown);
    let attempts = Attempts::new("node label", &client);
    let watcher = Watcher { client, label, attempts, publish, missing: false };
    let run = async move {
        stop.run_until_cancelled(watcher.run()).await;
    };
    (value, run)
}

struct Watcher {
    client: Client,
    label: String,
    attempts: Attempts,
    publish: watch::Sender<LabelValue>,
    /// True if the last list had no such Node.
    missing: bool,
}

/// The Node's metadata. Its status is large, changes often, and is not requested.
type NodeMetadata = PartialObjectMeta<Node>;

/// Reasons for the end of a watch, other than failures.
enum Ended {
    /// Its time is over; the next one resumes from this version.
    At(String),
    /// The API server has forgotten the version.
    Expired,
}

// === impl Watcher ===

impl Watcher {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.follow().await {
                sleep(self.attempts.failed(&error)).await;
            }
        }
    }

    /// Follows the Node over one connection, until it fails.
    async fn follow(&mut self) -> Result<(), ClusterError> {
        let connection = self.client.connect().await?;
        loop {
            let mut version = self.list(&connection).await?;
            while let Ended::At(last) = self.watch(&connection, version).await? {
                version = last;
                // Limits the rate of watches if the server ends each at once.
                sleep(self.client.limits().retry_first).await;
            }
            sleep(self.client.limits().retry_first).await;
        }
    }

    fn selector(&self) -> String {
        format!("metadata.name={}", self.client.node())
    }

    /// Lists the Node, and returns the version of the list.
    async fn list(&mut self, connection: &Connection) -> Result<String, ClusterError> {
        let nodes: Api<Node> = Api::all(connection.kube.clone());
        let which = ListParams::default().fields(&self.selector());
        let doing = || format!("cannot list Node {}", self.client.node());
        let list = connection.call(doing, nodes.list_metadata(&which)).await?;
        self.attempts.worked();
        let node = list.items.first();
        if node.is_none() && !self.missing {
            tracing::warn!(
                node = self.client.node(),
                "Node not found in the cluster: waiting for it, check the node's name"
            );
        }
        self.missing = node.is_none();
        if let Some(node) = node {
            self.publish(node);
        }
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// Watches once, up to the longest duration.
    async fn watch(
        &mut self,
        connection: &Connection,
        version: String,
    ) -> Result<Ended, ClusterError> {
        let limits = self.client.limits();
        let nodes: Api<Node> = Api::all(connection.kube.clone());
        let seconds = u32::try_from(limits.watch.as_secs()).unwrap_or(u32::MAX).max(1);
        let which = WatchParams::default().fields(&self.selector()).timeout(seconds);
        let opened = connection.call(|| self.doing(), nodes.watch_metadata(&which, &version)).await;
        let events = match opened {
            Err(error) if error.status().is_some_and(is_gone) => return Ok(Ended::Expired),
            opened => opened?,
        };
        // The server ends the watch in time, unless the connection is dead.
        let limit = limits.watch + limits.answer;
        let read = deadline::timeout(limit, self.read(events, version)).await;
        read.unwrap_or_else(|_| Err(ClusterError::Late(self.doing(), limit)))
    }

    async fn read(
        &mut self,
        events: impl Stream<Item = kube::Result<WatchEvent<NodeMetadata>>>,
        mut version: String,
    ) -> Result<Ended, ClusterError> {
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| ClusterError::of(self.doing(), error))?;
            let newer = match event {
                WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                    self.publish(&node);
                    node.metadata.resource_version
                }
                WatchEvent::Deleted(node) => node.metadata.resource_version,
                WatchEvent::Bookmark(mark) => Some(mark.metadata.resource_version),
                WatchEvent::Error(status) if is_gone(&status) => return Ok(Ended::Expired),
                WatchEvent::Error(status) => {
                    return Err(ClusterError::Refused(self.doing(), status));
                }
            };
            version = newer.unwrap_or(version);
        }
        Ok(Ended::At(version))
    }

    fn publish(&self, node: &NodeMetadata) {
        let value = match node.labels().get(&self.label) {
            Some(value) if !value.is_empty() => LabelValue::Value(value.clone()),
            Some(_) | None => LabelValue::Absent,
        };
        windlass_host::watch::publish(&self.publish, value);
    }

    fn doing(&self) -> String {
        format!("cannot watch Node {}", self.client.node())
    }
}
