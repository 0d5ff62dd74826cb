//! Watch of object metadata, for the objects of one kind that a field selector matches.
//!
//! ```text
//!            list            watch, from the list's version
//!   start ────────> listed ────────────────────────────> following ─┐
//!     ^               ^                                    │ │  ^   │ ended: resumed from the
//!     │               └────────────────────────────────────┘ │  └───┘ last version seen
//!     │                   410, the version is too old        │
//!     └──────────────────────────────────────────────────────┘
//!           failed: retried after a pause, with new credentials
//! ```

use std::{fmt::Debug, marker::PhantomData};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
    core::{ObjectMeta, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tokio_stream::{Stream, StreamExt as _};
use windlass_host::deadline;

use super::{
    Client, ClusterError, client::Connection, error::is_gone, request_backoff::RequestBackoff,
};

/// Watch of the metadata of objects that a field selector matches.
pub(super) struct MetadataWatch<K> {
    client: Client,
    backoff: RequestBackoff,
    /// Description of the objects in errors.
    description: String,
    selector: String,
    kind: PhantomData<fn() -> K>,
}

/// Receiver of the watched objects.
pub(super) trait EventHandler: Send {
    /// All existing objects. Objects of an earlier list that are missing here are deleted.
    fn on_list(&mut self, objects: Vec<ObjectMeta>);
    /// A new or changed object.
    fn on_change(&mut self, object: ObjectMeta);
    /// A deleted object.
    fn on_delete(&mut self, object: &ObjectMeta);
}

/// Reasons for the end of a watch, other than failures.
enum WatchEnd {
    /// The server ended the watch; the next one resumes from this version.
    Resumable(String),
    /// The version is too old to watch from (HTTP 410).
    Expired,
}

// === impl MetadataWatch ===

impl MetadataWatch<Pod> {
    /// Watch of the pods of this node that have not ended.
    pub(super) fn of_node(task: &'static str, client: Client) -> Self {
        let objects = format!("pods of node {}", client.node());
        // Pods that have ended need no GPUs, and are not in the kubelet's checkpoint.
        let selector =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", client.node());
        Self::new(task, client, objects, selector)
    }
}

impl<K> MetadataWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
{
    pub(super) fn new(
        task: &'static str,
        client: Client,
        description: String,
        selector: String,
    ) -> Self {
        let backoff = RequestBackoff::new(task, &client);
        Self { client, backoff, description, selector, kind: PhantomData }
    }

    /// Follows the objects, until dropped.
    pub(super) async fn run(mut self, mut handler: impl EventHandler) {
        loop {
            if let Err(error) = self.watch_over_connection(&mut handler).await {
                sleep(self.backoff.record_failure(&error)).await;
            }
        }
    }

    /// Follows the objects over one connection, until it fails.
    async fn watch_over_connection(
        &mut self,
        handler: &mut impl EventHandler,
    ) -> Result<(), ClusterError> {
        let connection = self.client.connect().await?;
        loop {
            let mut version = self.list(&connection, handler).await?;
            while let WatchEnd::Resumable(last_version) =
                self.watch(&connection, version, handler).await?
            {
                version = last_version;
                // Limits the rate of watches if the server ends each watch at once.
                sleep(self.client.timeouts().retry_min).await;
            }
            sleep(self.client.timeouts().retry_min).await;
        }
    }

    /// Lists the objects, and returns the version of the list.
    async fn list(
        &mut self,
        connection: &Connection,
        handler: &mut impl EventHandler,
    ) -> Result<String, ClusterError> {
        let objects: Api<K> = Api::all(connection.kube.clone());
        // Any version suffices, because the watch continues from it. This allows an answer from the API server's cache.
        let params = ListParams::default().fields(&self.selector).match_any();
        let context = || format!("cannot list {}", self.description);
        let list = connection.call(context, objects.list_metadata(&params)).await?;
        handler.on_list(list.items.into_iter().map(|object| object.metadata).collect());
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// Watches once, up to `ClientTimeouts::watch_timeout`.
    async fn watch(
        &mut self,
        connection: &Connection,
        version: String,
        handler: &mut impl EventHandler,
    ) -> Result<WatchEnd, ClusterError> {
        let timeouts = self.client.timeouts();
        let objects: Api<K> = Api::all(connection.kube.clone());
        let seconds = u32::try_from(timeouts.watch_timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        let params = WatchParams::default().fields(&self.selector).timeout(seconds);
        let response =
            connection.call(|| self.context(), objects.watch_metadata(&params, &version)).await;
        let events = match response {
            Err(error) if error.status().is_some_and(is_gone) => return Ok(WatchEnd::Expired),
            response => response?,
        };
        // Success is recorded here and not after the list: with a role that allows `list` and not `watch`, the pause
        // between the lists must grow.
        self.backoff.record_success();
        // The server ends the watch in time, unless the connection is dead.
        let limit = timeouts.watch_timeout + timeouts.response_timeout;
        let read = deadline::timeout(limit, self.read(events, version, handler)).await;
        read.unwrap_or_else(|_| Err(ClusterError::DeadlineExceeded(self.context(), limit)))
    }

    async fn read(
        &self,
        events: impl Stream<Item = kube::Result<WatchEvent<PartialObjectMeta<K>>>>,
        mut version: String,
        handler: &mut impl EventHandler,
    ) -> Result<WatchEnd, ClusterError> {
        tokio::pin!(events);
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| ClusterError::of(self.context(), error))?;
            let new_version = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.metadata.resource_version.clone();
                    handler.on_change(object.metadata);
                    version
                }
                WatchEvent::Deleted(object) => {
                    handler.on_delete(&object.metadata);
                    object.metadata.resource_version
                }
                WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
                WatchEvent::Error(status) if is_gone(&status) => return Ok(WatchEnd::Expired),
                WatchEvent::Error(status) => {
                    return Err(ClusterError::Refused(self.context(), status));
                }
            };
            version = new_version.unwrap_or(version);
        }
        Ok(WatchEnd::Resumable(version))
    }

    fn context(&self) -> String {
        format!("cannot watch {}", self.description)
    }
}
