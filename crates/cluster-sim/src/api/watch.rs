//! Watches: initial events, then changes with bookmarks in between, until the end.
//!
//! ```text
//!  sendInitialEvents    ADDED for each object, BOOKMARK `k8s.io/initial-events-end`, changes   (KEP-3157)
//!  from a version       changes since then, or ERROR 410 if that version is compacted
//!  allowWatchBookmarks  BOOKMARK every minute, and shortly before the end
//!  timeoutSeconds       the end
//! ```

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{
    kind::Kind, media::Form, options::ListOptions, refusal::Refusal, selector::Selector,
    server_state::ServerState, shape, store::Signal,
};

/// State of a watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchState {
    kind: &'static Kind,
    selector: Selector,
    form: Form,
    /// Version after which changes are sent.
    pub(crate) start_version: u64,
    /// Initial events: all objects, or the error of a watch that cannot start.
    pub(crate) initial_events: Vec<Value>,
    /// True if the watch ends after an initial error.
    pub(crate) is_failed: bool,
    bookmarks: bool,
    timeout: Option<Duration>,
}

/// Wake-up of a watch: a change of the store, or the time for a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    Change,
    Bookmark,
}

/// Stream of a watch's ticks. The stream ends when all watches are ended, or at the timeout.
pub(crate) struct Ticks {
    signal: WatchStream<Signal>,
    ended_watches: u64,
    bookmark: Option<Pin<Box<Sleep>>>,
    last_bookmark_at: Option<Instant>,
    end: Option<Pin<Box<Sleep>>>,
}

/// Interval of bookmarks (`defaultBookmarkFrequency` of the real server).
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between the last bookmark and the end of a watch (`nextBookmarkTime`).
const LAST_BOOKMARK_LEAD: Duration = Duration::from_secs(2);

/// Annotation of the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

// === impl ServerState ===

impl ServerState {
    pub(crate) fn watch(
        &self,
        kind: &'static Kind,
        (selector, form): (Selector, Form),
        options: &ListOptions,
    ) -> WatchState {
        let (current_version, oldest_version) =
            (self.store.version(), self.store.compacted_version());
        let ListOptions { version, send_initial_events: initial, bookmarks, timeout, .. } =
            *options;
        let version = version.filter(|version| *version != 0);
        let refusal = match version {
            Some(version) if initial && version > current_version => {
                Some(Refusal::too_large_version(version, current_version))
            }
            Some(version) if !initial && version < oldest_version => {
                Some(Refusal::expired(version, oldest_version))
            }
            _ => None,
        };
        let start_version =
            if initial { current_version } else { version.unwrap_or(current_version) };
        let initial_events = Vec::new();
        let is_failed = refusal.is_some();
        let mut watch_state = WatchState {
            kind,
            selector,
            form,
            start_version,
            initial_events,
            is_failed,
            bookmarks,
            timeout,
        };
        match refusal {
            Some(refusal) => {
                watch_state
                    .initial_events
                    .push(json!({"type": "ERROR", "object": refusal.to_json()}));
            }
            None if initial => watch_state.initial_events = self.initial_events(&watch_state),
            None => {}
        }
        watch_state
    }

    fn initial_events(&self, watch_state: &WatchState) -> Vec<Value> {
        let objects = self.store.all(watch_state.kind).map(|(_, object)| object);
        let selected_objects = objects.filter(|object| watch_state.selector.matches(object));
        let mut events: Vec<_> =
            selected_objects.map(|object| watch_state.event("ADDED", object)).collect();
        if watch_state.bookmarks {
            let mut end = watch_state.bookmark(watch_state.start_version);
            end["object"]["metadata"]["annotations"] = json!({INITIAL_EVENTS_END: "true"});
            events.push(end);
        }
        events
    }

    /// Events of a watch for the changes after a version, and the version of the last change.
    pub(crate) fn events_since(
        &self,
        watch_state: &WatchState,
        version: u64,
        tick: Tick,
    ) -> (Vec<Value>, u64) {
        let if_selected = |object: &Option<Value>| {
            object.as_ref().filter(|object| watch_state.selector.matches(object)).cloned()
        };
        let changes = self.store.changes_since(watch_state.kind, version);
        let events = changes.filter_map(|change| {
            match (if_selected(&change.old), if_selected(&change.new)) {
                (None, Some(new)) => Some(watch_state.event("ADDED", &new)),
                (Some(_), Some(new)) => Some(watch_state.event("MODIFIED", &new)),
                (Some(mut old), None) => {
                    old["metadata"]["resourceVersion"] = change.version.to_string().into();
                    Some(watch_state.event("DELETED", &old))
                }
                (None, None) => None,
            }
        });
        let mut events: Vec<_> = events.collect();
        let latest_version = version.max(self.store.version());
        if tick == Tick::Bookmark {
            events.push(watch_state.bookmark(latest_version));
        }
        (events, latest_version)
    }
}

// === impl WatchState ===

impl WatchState {
    /// Stream of ticks from now on.
    pub(crate) fn ticks(&self, signal: watch::Receiver<Signal>) -> Ticks {
        let ended_watches = signal.borrow().ended_watches;
        let now = Instant::now();
        let last_bookmark_at =
            self.timeout.map(|timeout| now + timeout.saturating_sub(LAST_BOOKMARK_LEAD));
        let bookmark = next_bookmark(now, last_bookmark_at).filter(|_| self.bookmarks);
        let bookmark = bookmark.map(|at| Box::pin(sleep_until(at)));
        let end = self.timeout.map(|timeout| Box::pin(sleep(timeout)));
        Ticks { signal: WatchStream::new(signal), ended_watches, bookmark, last_bookmark_at, end }
    }

    /// One event of the watch.
    fn event(&self, event_type: &str, object: &Value) -> Value {
        json!({"type": event_type, "object": shape::in_form(self.kind, object, self.form)})
    }

    /// Bookmark: an object with only a version.
    fn bookmark(&self, version: u64) -> Value {
        let object = json!({
            "kind": self.kind.name, "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": version.to_string()},
        });
        self.event("BOOKMARK", &object)
    }
}

/// Time of the next bookmark: in a minute, or shortly before the end if that is earlier.
fn next_bookmark(now: Instant, last_bookmark_at: Option<Instant>) -> Option<Instant> {
    let next_bookmark_at = last_bookmark_at.map_or(now + BOOKMARK_INTERVAL, |last_bookmark_at| {
        last_bookmark_at.min(now + BOOKMARK_INTERVAL)
    });
    Some(next_bookmark_at).filter(|next_bookmark_at| *next_bookmark_at > now)
}

// === impl Ticks ===

impl Stream for Ticks {
    type Item = Tick;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Tick>> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(None);
        }
        if let Some(bookmark) = &mut self.bookmark
            && bookmark.as_mut().poll(context).is_ready()
        {
            let next_bookmark_at = next_bookmark(Instant::now(), self.last_bookmark_at);
            self.bookmark = next_bookmark_at.map(|at| Box::pin(sleep_until(at)));
            return Poll::Ready(Some(Tick::Bookmark));
        }
        let signal = ready!(Pin::new(&mut self.signal).poll_next(context));
        let is_current = signal.is_some_and(|signal| signal.ended_watches == self.ended_watches);
        Poll::Ready(is_current.then_some(Tick::Change))
    }
}
