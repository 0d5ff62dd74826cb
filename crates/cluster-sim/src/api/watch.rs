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
        let (now, oldest) = (self.store.version(), self.store.compacted());
        let ListOptions { version, send_initial_events: initial, bookmarks, timeout, .. } =
            *options;
        let version = version.filter(|version| *version != 0);
        let refusal = match version {
            Some(version) if initial && version > now => {
                Some(Refusal::too_large_version(version, now))
            }
            Some(version) if !initial && version < oldest => {
                Some(Refusal::expired(version, oldest))
            }
            _ => None,
        };
        let from = if initial { now } else { version.unwrap_or(now) };
        let first = Vec::new();
        let is_failed = refusal.is_some();
        let mut watched = WatchState {
            kind,
            selector,
            form,
            start_version: from,
            initial_events: first,
            is_failed,
            bookmarks,
            timeout,
        };
        match refusal {
            Some(refusal) => {
                watched.initial_events.push(json!({"type": "ERROR", "object": refusal.to_json()}));
            }
            None if initial => watched.initial_events = self.initial_events(&watched),
            None => {}
        }
        watched
    }

    fn initial_events(&self, watched: &WatchState) -> Vec<Value> {
        let all = self.store.all(watched.kind).map(|(_, object)| object);
        let matching = all.filter(|object| watched.selector.matches(object));
        let mut events: Vec<_> = matching.map(|object| watched.event("ADDED", object)).collect();
        if watched.bookmarks {
            let mut end = watched.bookmark(watched.start_version);
            end["object"]["metadata"]["annotations"] = json!({INITIAL_EVENTS_END: "true"});
            events.push(end);
        }
        events
    }

    /// Events of a watch for the changes after a version, and the version of the last change.
    pub(crate) fn events_since(
        &self,
        watched: &WatchState,
        after: u64,
        tick: Tick,
    ) -> (Vec<Value>, u64) {
        let selected = |object: &Option<Value>| {
            object.as_ref().filter(|object| watched.selector.matches(object)).cloned()
        };
        let changes = self.store.changes_since(watched.kind, after);
        let events =
            changes.filter_map(|change| match (selected(&change.old), selected(&change.new)) {
                (None, Some(new)) => Some(watched.event("ADDED", &new)),
                (Some(_), Some(new)) => Some(watched.event("MODIFIED", &new)),
                (Some(mut old), None) => {
                    old["metadata"]["resourceVersion"] = change.version.to_string().into();
                    Some(watched.event("DELETED", &old))
                }
                (None, None) => None,
            });
        let mut events: Vec<_> = events.collect();
        let seen = after.max(self.store.version());
        if tick == Tick::Bookmark {
            events.push(watched.bookmark(seen));
        }
        (events, seen)
    }
}

// === impl WatchState ===

impl WatchState {
    /// Stream of ticks from now on.
    pub(crate) fn ticks(&self, signal: watch::Receiver<Signal>) -> Ticks {
        let cuts = signal.borrow().ended_watches;
        let now = Instant::now();
        let before_end =
            self.timeout.map(|timeout| now + timeout.saturating_sub(LAST_BOOKMARK_LEAD));
        let bookmark = next_bookmark(now, before_end).filter(|_| self.bookmarks);
        let bookmark = bookmark.map(|at| Box::pin(sleep_until(at)));
        let end = self.timeout.map(|timeout| Box::pin(sleep(timeout)));
        Ticks {
            signal: WatchStream::new(signal),
            ended_watches: cuts,
            bookmark,
            last_bookmark_at: before_end,
            end,
        }
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
fn next_bookmark(now: Instant, before_end: Option<Instant>) -> Option<Instant> {
    let next = before_end
        .map_or(now + BOOKMARK_INTERVAL, |before_end| before_end.min(now + BOOKMARK_INTERVAL));
    Some(next).filter(|next| *next > now)
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
            let next = next_bookmark(Instant::now(), self.last_bookmark_at);
            self.bookmark = next.map(|at| Box::pin(sleep_until(at)));
            return Poll::Ready(Some(Tick::Bookmark));
        }
        let signal = ready!(Pin::new(&mut self.signal).poll_next(context));
        let is_current = signal.is_some_and(|signal| signal.ended_watches == self.ended_watches);
        Poll::Ready(is_current.then_some(Tick::Change))
    }
}
