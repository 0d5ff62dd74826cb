//! Cache of the published slices: filled by a list, updated by a watch and by the agent's own writes.

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::time::{Instant, sleep_until};
use tokio_stream::{Stream, StreamExt as _};
use windlass_config::DriverName;
use windlass_host::deadline::Deadline;

use crate::{Client, ClientTimeouts, ClusterError, client::Connection, error::is_gone};

/// The driver's slices of this node.
pub(super) struct SliceCache<'a> {
    pub(super) connection: &'a Connection,
    pub(super) api: Api<ResourceSlice>,
    pub(super) slices: BTreeMap<String, ResourceSlice>,
    selector: String,
    timeouts: ClientTimeouts,
    /// Resource version of the last event.
    version: String,
    /// The current watch, with its deadline.
    events: Option<(Events, Deadline)>,
    /// Earliest time of the next watch.
    next_watch: Instant,
}

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<ResourceSlice>>> + Send>>;

/// Event of the watch, after its effect on the cache.
pub(super) enum CacheEvent {
    /// No change.
    None,
    /// Another writer changed a slice.
    Changed,
    /// The resource version is too old to watch from (HTTP 410).
    Expired,
}

const WATCH_CONTEXT: &str = "cannot watch the node's ResourceSlices";

// === impl SliceCache ===

impl<'a> SliceCache<'a> {
    pub(super) async fn list(
        client: &Client,
        connection: &'a Connection,
        driver: &DriverName,
    ) -> Result<Self, ClusterError> {
        let selector = format!("spec.driver={driver},spec.nodeName={}", client.node());
        let api: Api<ResourceSlice> = Api::all(connection.kube.clone());
        let context = || "cannot list the node's ResourceSlices".to_owned();
        let params = ListParams::default().fields(&selector);
        let list = match connection.call(context, api.list(&params)).await {
            Err(error) if error.code() == Some(404) => {
                return Err(ClusterError::NoSuchApi(context()));
            }
            list => list?,
        };
        let version = list.metadata.resource_version.unwrap_or_default();
        let slices = list.items.into_iter().map(|slice| (name(&slice), slice)).collect();
        let (timeouts, next_watch) = (client.timeouts(), Instant::now());
        Ok(Self { connection, api, slices, selector, timeouts, version, events: None, next_watch })
    }

    /// Waits for an event. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<CacheEvent, ClusterError> {
        loop {
            let Some((events, deadline)) = &mut self.events else {
                sleep_until(self.next_watch).await;
                if self.open_watch().await? {
                    continue;
                }
                return Ok(CacheEvent::Expired);
            };
            let event = match deadline.timeout(events.next()).await {
                Ok(Some(event)) => event,
                // Limits the rate of watches if the server ends each watch at once.
                Ok(None) => {
                    self.events = None;
                    self.next_watch = Instant::now() + self.timeouts.retry_min;
                    continue;
                }
                Err(_) => {
                    let limit = self.watch_limit();
                    return Err(ClusterError::DeadlineExceeded(WATCH_CONTEXT.to_owned(), limit));
                }
            };
            return self
                .apply(event.map_err(|error| ClusterError::of(WATCH_CONTEXT.to_owned(), error))?);
        }
    }

    /// Adds a slice as the API server stored it.
    pub(super) fn record_write(&mut self, slice: ResourceSlice) {
        self.slices.insert(name(&slice), slice);
    }

    /// Longest duration of a watch. The server ends a watch earlier, unless the connection is dead.
    fn watch_limit(&self) -> Duration {
        self.timeouts.watch_timeout + self.timeouts.response_timeout
    }

    /// Opens a watch. Returns `false` if the version is too old.
    async fn open_watch(&mut self) -> Result<bool, ClusterError> {
        let seconds =
            u32::try_from(self.timeouts.watch_timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        let params = WatchParams::default().fields(&self.selector).timeout(seconds);
        let request = self.api.watch(&params, &self.version);
        let events = match self.connection.call(|| WATCH_CONTEXT.to_owned(), request).await {
            Err(error) if error.status().is_some_and(is_gone) => return Ok(false),
            events => events?,
        };
        self.events = Some((Box::pin(events), Deadline::after(self.watch_limit())));
        Ok(true)
    }

    fn apply(&mut self, event: WatchEvent<ResourceSlice>) -> Result<CacheEvent, ClusterError> {
        let (slice, is_deleted) = match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => (slice, false),
            WatchEvent::Deleted(slice) => (slice, true),
            WatchEvent::Bookmark(bookmark) => {
                self.version = bookmark.metadata.resource_version;
                return Ok(CacheEvent::None);
            }
            WatchEvent::Error(status) if is_gone(&status) => return Ok(CacheEvent::Expired),
            WatchEvent::Error(status) => {
                return Err(ClusterError::Refused(WATCH_CONTEXT.to_owned(), status));
            }
        };
        self.version = slice.metadata.resource_version.clone().unwrap_or_default();
        let cached = self.slices.get(&name(&slice));
        // The agent's own write returns as an event whose version is in the cache already.
        let is_change = match cached {
            Some(cached) => is_deleted || version(cached) < version(&slice),
            None => !is_deleted,
        };
        if is_deleted {
            self.slices.remove(&name(&slice));
        } else if is_change {
            self.record_write(slice);
        }
        Ok(if is_change { CacheEvent::Changed } else { CacheEvent::None })
    }
}

pub(super) fn name(slice: &ResourceSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

/// Resource version as a number, which grows with each write; `None`, the lowest, for a version that is not a number.
fn version(slice: &ResourceSlice) -> Option<u128> {
    slice.metadata.resource_version.as_ref()?.parse().ok()
}
