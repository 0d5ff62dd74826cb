//! What is published, as the API server last said: listed, then watched, with what was written since.

use std::{collections::BTreeMap, pin::Pin, time::Duration};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
    core::Status,
};
use tokio::time::{Instant, sleep_until};
use tokio_stream::{Stream, StreamExt as _};
use windlass_config::DriverName;
use windlass_host::deadline::Deadline;

use crate::{Client, ClusterError, Limits, client::Connection};

/// The driver's slices of this node.
pub(super) struct Sight<'a> {
    pub(super) connection: &'a Connection,
    pub(super) api: Api<ResourceSlice>,
    /// By name.
    pub(super) known: BTreeMap<String, ResourceSlice>,
    selector: String,
    limits: Limits,
    /// The version that was seen last.
    version: String,
    /// A watch, and how long it may last.
    events: Option<(Events, Deadline)>,
    /// When the next one may begin.
    turn: Instant,
}

/// What a watch tells.
type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<ResourceSlice>>> + Send>>;

/// What there is to see.
pub(super) enum News {
    /// Nothing new.
    None,
    /// Someone else wrote.
    Changed,
    /// The API server has forgotten the version that was seen last.
    Expired,
}

/// HTTP's "not found": of a list, that there is no such API.
const NOT_FOUND: u16 = 404;

/// HTTP's "gone".
const GONE: u16 = 410;

const DOING: &str = "cannot watch the node's ResourceSlices";

// === impl Sight ===

impl<'a> Sight<'a> {
    pub(super) async fn list(
        client: &Client,
        connection: &'a Connection,
        driver: &DriverName,
    ) -> Result<Self, ClusterError> {
        let selector = format!("spec.driver={driver},spec.nodeName={}", client.node());
        let api: Api<ResourceSlice> = Api::all(connection.kube.clone());
        let doing = || "cannot list the node's ResourceSlices".to_owned();
        let which = ListParams::default().fields(&selector);
        let list = match connection.ask(doing, api.list(&which)).await {
            Err(error) if error.status().is_some_and(|status| status.code == NOT_FOUND) => {
                return Err(ClusterError::NoSuchApi { doing: doing() });
            }
            list => list?,
        };
        let version = list.metadata.resource_version.unwrap_or_default();
        let known = list.items.into_iter().map(|slice| (name(&slice), slice)).collect();
        let (limits, turn) = (client.limits(), Instant::now());
        Ok(Self { connection, api, known, selector, limits, version, events: None, turn })
    }

    /// Waits for news. Nothing is lost when this is given up in between.
    pub(super) async fn next(&mut self) -> Result<News, ClusterError> {
        loop {
            let Some((events, deadline)) = &mut self.events else {
                sleep_until(self.turn).await;
                if self.open().await? {
                    continue;
                }
                return Ok(News::Expired);
            };
            let event = match deadline.bound(events.next()).await {
                Ok(Some(event)) => event,
                // A server that ends every watch at once is not asked faster than this.
                Ok(None) => {
                    (self.events, self.turn) = (None, Instant::now() + self.limits.retry_first);
                    continue;
                }
                Err(_) => {
                    let limit = self.patience();
                    return Err(ClusterError::Late { doing: DOING.to_owned(), limit });
                }
            };
            return self.see(event.map_err(|error| ClusterError::of(DOING.to_owned(), error))?);
        }
    }

    /// What was written is as the API server answered.
    pub(super) fn wrote(&mut self, slice: ResourceSlice) {
        self.known.insert(name(&slice), slice);
    }

    /// The server ends a watch in time, unless the connection has died unseen.
    fn patience(&self) -> Duration {
        self.limits.watch + self.limits.answer
    }

    /// Gives `false` if the version is too old.
    async fn open(&mut self) -> Result<bool, ClusterError> {
        let seconds = u32::try_from(self.limits.watch.as_secs()).unwrap_or(u32::MAX).max(1);
        let which = WatchParams::default().fields(&self.selector).timeout(seconds);
        let question = self.api.watch(&which, &self.version);
        let events = match self.connection.ask(|| DOING.to_owned(), question).await {
            Err(error) if error.status().is_some_and(is_gone) => return Ok(false),
            events => events?,
        };
        self.events = Some((Box::pin(events), Deadline::after(self.patience())));
        Ok(true)
    }

    fn see(&mut self, event: WatchEvent<ResourceSlice>) -> Result<News, ClusterError> {
        let (slice, is_there) = match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => (slice, true),
            WatchEvent::Deleted(slice) => (slice, false),
            WatchEvent::Bookmark(mark) => {
                self.version = mark.metadata.resource_version;
                return Ok(News::None);
            }
            WatchEvent::Error(status) if is_gone(&status) => return Ok(News::Expired),
            WatchEvent::Error(status) => {
                return Err(ClusterError::Refused { doing: DOING.to_owned(), status });
            }
        };
        self.version = slice.metadata.resource_version.clone().unwrap_or_default();
        let is_news = if is_there { self.found(slice) } else { self.missed(&slice) };
        Ok(if is_news { News::Changed } else { News::None })
    }

    /// What was written here comes back as an event, and is no news.
    fn found(&mut self, slice: ResourceSlice) -> bool {
        let known = self.known.get(&name(&slice));
        let is_newer = known.is_none_or(|known| version(known) < version(&slice));
        if is_newer {
            self.wrote(slice);
        }
        is_newer
    }

    fn missed(&mut self, slice: &ResourceSlice) -> bool {
        self.known.remove(&name(slice)).is_some()
    }
}

pub(super) fn name(slice: &ResourceSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

/// Versions of one kind of objects are numbers that grow; one that is none is older than any.
fn version(slice: &ResourceSlice) -> Option<u128> {
    slice.metadata.resource_version.as_ref()?.parse().ok()
}

fn is_gone(status: &Status) -> bool {
    status.code == GONE
}
