//! Newest state of the page, with a numbered revision for each change.
//!
//! # Guarantees
//!
//! A request with the revision of the last answer gets exactly the nodes that have changed since. A request with the
//! revision of another instance, such as the instance before a restart of the server, gets the complete document. An
//! equal view of a node does not count as a change.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use jiff::Timestamp;

use crate::{
    document::{Document, Event, EventKind, NodeView, PendingPod, Source, Summary},
    history::append_changes,
    revision::Revision,
};

/// Maximum number of events in the history.
const MAX_EVENTS: usize = 500;
/// Maximum number of names of removed nodes. A reader with an older revision than the first of these removals gets the
/// complete document.
const MAX_REMOVED: usize = 1_000;

/// Maximum number of cached JSON documents with changes, besides the complete document. Most readers are a few changes
/// behind.
const MAX_CACHED: usize = 16;

/// Changes of the state that a server observed, and all pending pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// True if these are the first known holders. They may have held their devices for long, so they cause no events.
    pub has_first_holders: bool,
    /// Nodes that are new or have changed.
    pub changed: Vec<NodeView>,
    /// Names of removed nodes.
    pub removed: Vec<String>,
    /// Pods without a node.
    pub pending: Vec<PendingPod>,
}

/// The newest state, with the history of its changes.
#[derive(Debug)]
pub struct PageState {
    source: Source,
    version: &'static str,
    /// Distinguishes this instance from the instances of earlier processes.
    id: i64,
    /// Number of the last change.
    last_change: u64,
    time: Timestamp,
    /// Sums over the nodes, computed once per change and part of every answer.
    summary: Summary,
    nodes: BTreeMap<String, Versioned<NodeView>>,
    removed: VecDeque<Versioned<String>>,
    /// Number of the last change whose removed nodes were dropped from `removed`.
    last_dropped_change: u64,
    pending: Versioned<Vec<PendingPod>>,
    events: VecDeque<Versioned<Event>>,
    /// True after the first state. The history has changes of later states only.
    has_state: bool,
    /// Cached documents of the newest state as JSON, by the number of the change after which they begin; `None` for the
    /// complete document.
    cached: BTreeMap<Option<u64>, Bytes>,
}

/// A part of the state with the number of its last change.
#[derive(Debug)]
struct Versioned<T> {
    change: u64,
    value: T,
}

// === impl PageState ===

impl PageState {
    /// Creates a state without nodes.
    pub fn new(source: Source, version: &'static str, now: Timestamp) -> Self {
        Self {
            source,
            version,
            id: now.as_microsecond(),
            last_change: 0,
            time: now,
            summary: Summary::default(),
            nodes: BTreeMap::new(),
            removed: VecDeque::new(),
            last_dropped_change: 0,
            pending: Versioned { change: 0, value: Vec::new() },
            events: VecDeque::new(),
            has_state: false,
            cached: BTreeMap::new(),
        }
    }

    /// Revision of the newest state.
    pub fn revision(&self) -> Revision {
        Revision { instance: self.id, number: self.last_change }
    }

    /// Applies a newer state, and records its differences as events.
    pub fn update(&mut self, time: Timestamp, snapshot: Snapshot) {
        let next = self.last_change + 1;
        let mut events = Vec::new();
        let mut has_changed = false;
        for view in snapshot.changed {
            let previous = self.nodes.get(&view.name).map(|previous| &previous.value);
            if previous == Some(&view) {
                continue;
            }
            append_changes(time, previous, Some(&view), &mut events);
            self.nodes.insert(view.name.clone(), Versioned { change: next, value: view });
            has_changed = true;
        }
        for name in snapshot.removed {
            if let Some(previous) = self.nodes.remove(&name) {
                append_changes(time, Some(&previous.value), None, &mut events);
                self.removed.push_back(Versioned { change: next, value: name });
                has_changed = true;
            }
        }
        if self.pending.value != snapshot.pending {
            self.pending = Versioned { change: next, value: snapshot.pending };
            has_changed = true;
        }
        if snapshot.has_first_holders {
            events.retain(|it| !matches!(it.kind, EventKind::Placed | EventKind::Ended));
        }
        if self.has_state {
            let events = events.into_iter().map(|value| Versioned { change: next, value });
            self.events.extend(events);
        }
        self.has_state = true;
        while self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
        while self.removed.len() > MAX_REMOVED {
            self.last_dropped_change = self.removed.pop_front().map_or(0, |removed| removed.change);
        }
        if has_changed {
            self.summary = Summary::of(self.nodes.values().map(|node| &node.value));
            self.last_change = next;
            self.time = time;
            self.cached.clear();
        }
    }

    /// The document as JSON, encoded once for all readers with the same revision.
    pub fn json(&mut self, after: Option<&str>) -> Bytes {
        let number = after.and_then(|text| self.number_of(text));
        if let Some(cached) = self.cached.get(&number) {
            return cached.clone();
        }
        let document = serde_json::to_vec(&self.document_after(number));
        let encoded = Bytes::from(document.expect("plain data is JSON"));
        if number.is_none() || self.cached.len() < MAX_CACHED {
            self.cached.insert(number, encoded.clone());
        }
        encoded
    }

    /// Document with the changes since the revision `after`. Without a revision, or with an unknown one, the complete
    /// document.
    pub fn document(&self, after: Option<&str>) -> Document {
        self.document_after(after.and_then(|text| self.number_of(text)))
    }

    fn document_after(&self, number: Option<u64>) -> Document {
        let is_new = |changed: u64| number.is_none_or(|number| changed > number);
        let nodes = self.nodes.values().filter(|node| is_new(node.change));
        let removed =
            self.removed.iter().filter(|_| number.is_some()).filter(|it| is_new(it.change));
        let events = self.events.iter().filter(|event| is_new(event.change));
        Document {
            revision: self.revision(),
            complete: number.is_none(),
            source: self.source,
            simulated: self.nodes.values().any(|node| node.value.simulated),
            version: self.version.to_owned(),
            time: self.time,
            summary: self.summary.clone(),
            nodes: nodes.map(|node| node.value.clone()).collect(),
            // A node that was removed and has returned is in `nodes` already.
            gone: removed
                .map(|it| it.value.clone())
                .filter(|name| !self.nodes.contains_key(name))
                .collect(),
            pending: is_new(self.pending.change).then(|| self.pending.value.clone()),
            history: events.map(|event| event.value.clone()).collect(),
        }
    }

    /// Number of a revision; `None` if this instance does not have all changes since.
    fn number_of(&self, text: &str) -> Option<u64> {
        let Revision { instance, number } = Revision::parse(text)?;
        let is_known =
            instance == self.id && (self.last_dropped_change..=self.last_change).contains(&number);
        is_known.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{DeviceView, Health, HolderView};

    fn empty_state() -> PageState {
        PageState::new(Source::Cluster, "0.0.0", Timestamp::UNIX_EPOCH)
    }

    fn node(name: &str, free_gpus: usize) -> NodeView {
        NodeView { name: name.to_owned(), free_gpus, ..NodeView::default() }
    }

    fn update(state: &mut PageState, changed: &[NodeView], removed: &[&str]) {
        let removed = removed.iter().map(|&name| name.to_owned()).collect();
        let snapshot = Snapshot { changed: changed.to_vec(), removed, ..Snapshot::default() };
        state.update(Timestamp::UNIX_EPOCH, snapshot);
    }

    /// Nodes and removed nodes of the document, in one line.
    fn summary_of(state: &PageState, after: Option<&str>) -> String {
        let document = state.document(after);
        let nodes = document.nodes.iter().map(|node| format!("{}={}", node.name, node.free_gpus));
        let nodes: Vec<_> = nodes.collect();
        let scope = if document.complete { "all" } else { "new" };
        format!("{scope} [{}] gone [{}]", nodes.join(" "), document.gone.join(" "))
    }

    #[test]
    fn a_reader_gets_everything_once_and_then_the_changes() {
        let mut state = empty_state();
        update(&mut state, &[node("a", 1), node("b", 2)], &[]);
        assert_eq!(summary_of(&state, None), "all [a=1 b=2] gone []");
        let first = state.revision().to_string();
        assert_eq!(summary_of(&state, Some(&first)), "new [] gone []");
        update(&mut state, &[node("b", 3), node("a", 1)], &[]);
        assert_eq!(summary_of(&state, Some(&first)), "new [b=3] gone []");
        update(&mut state, &[], &["a"]);
        assert_eq!(summary_of(&state, Some(&first)), "new [b=3] gone [a]");
        update(&mut state, &[node("a", 9)], &[]);
        assert_eq!(summary_of(&state, Some(&first)), "new [a=9 b=3] gone []");
    }

    #[test]
    fn readers_of_one_revision_share_one_copy_until_the_next() {
        let mut state = empty_state();
        update(&mut state, &[node("a", 1)], &[]);
        let first = state.revision().to_string();
        update(&mut state, &[node("a", 2)], &[]);
        for after in [None, Some(first.as_str())] {
            let (first_copy, second_copy) = (state.json(after), state.json(after));
            assert_eq!(first_copy.as_ptr(), second_copy.as_ptr(), "{after:?}");
            let expected = serde_json::to_vec(&state.document(after)).expect("JSON");
            assert_eq!(first_copy, expected, "{after:?}");
            update(&mut state, &[node("a", 3)], &[]);
            assert_ne!(state.json(after), first_copy, "{after:?}");
            update(&mut state, &[node("a", 2)], &[]);
        }
    }

    #[test]
    fn a_document_reads_back_as_it_was_written() {
        let mut state =
            PageState::new(Source::Node, "0.0.0", "1969-12-31T00:00:00Z".parse().expect("a time"));
        update(&mut state, &[node("a", 1)], &[]);
        let first = state.revision().to_string();
        let device = DeviceView { health: Health::Unhealthy, ..DeviceView::default() };
        update(&mut state, &[NodeView { devices: vec![device], ..node("a", 0) }], &[]);
        for after in [None, Some(first.as_str())] {
            let parsed =
                serde_json::from_slice::<Document>(&state.json(after)).expect("a document");
            assert_eq!(parsed, state.document(after));
            assert_eq!(
                parsed.complete,
                after.is_none(),
                "a revision is found even if the clock was before 1970"
            );
        }
    }

    #[test]
    fn the_number_of_cached_documents_is_bounded() {
        let mut state = empty_state();
        for free in 0..100 {
            update(&mut state, &[node("a", free)], &[]);
        }
        for number in 0..100 {
            state.json(Some(&Revision { number, ..state.revision() }.to_string()));
        }
        let complete = state.json(None);
        assert_eq!(
            state.json(None).as_ptr(),
            complete.as_ptr(),
            "the complete document is cached apart from the others"
        );
        assert_eq!(state.cached.len(), MAX_CACHED + 1);
    }

    #[test]
    fn an_unchanged_state_has_the_same_revision() {
        let mut state = empty_state();
        update(&mut state, &[node("a", 1)], &[]);
        let first = state.revision();
        update(&mut state, &[node("a", 1)], &["never there"]);
        assert_eq!(state.revision(), first);
    }

    #[test]
    fn a_revision_of_another_instance_gets_everything() {
        let mut state = empty_state();
        update(&mut state, &[node("a", 1)], &[]);
        for unknown in ["", "-", "1-1", "0-99", "0-x", "\u{1F980}", "0"] {
            assert!(summary_of(&state, Some(unknown)).starts_with("all [a=1]"), "{unknown}");
        }
        assert!(summary_of(&state, Some("0-1")).starts_with("new"));
    }

    #[test]
    fn a_reader_with_a_revision_before_the_dropped_names_gets_everything() {
        let mut state = empty_state();
        let names: Vec<_> = (0..=MAX_REMOVED).map(|it| format!("n{it}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| node(name, 0)).collect();
        update(&mut state, &nodes, &[]);
        let first = state.revision().to_string();
        for name in &names {
            update(&mut state, &[], &[name]);
        }
        assert!(summary_of(&state, Some(&first)).starts_with("all []"));
        let newer = format!("{}-{}", state.id, 2);
        assert!(summary_of(&state, Some(&newer)).starts_with("new [] gone [n1 n2 "));
    }

    #[test]
    fn the_history_begins_after_the_first_state_and_keeps_the_newest_events() {
        let mut state = empty_state();
        update(&mut state, &[node("a", 1)], &[]);
        assert_eq!(state.document(None).history, []);
        for round in 0..MAX_EVENTS {
            update(&mut state, &[node(&format!("n{round}"), 0)], &[]);
        }
        let before = state.revision().to_string();
        update(&mut state, &[], &["a"]);
        let history = state.document(None).history;
        assert_eq!(history.len(), MAX_EVENTS);
        assert_eq!(history.last().expect("events").node, "a");
        assert_eq!(state.document(Some(&before)).history.len(), 1);
    }

    #[test]
    fn the_first_known_holders_cause_no_events() {
        let device = |pod: Option<&str>, health| DeviceView {
            id: "1".to_owned(),
            health,
            holders: pod
                .into_iter()
                .map(|pod| HolderView { pod: Some(pod.to_owned()), ..HolderView::default() })
                .collect(),
            ..DeviceView::default()
        };
        let view = |device| NodeView { devices: vec![device], ..node("a", 1) };
        let mut state = empty_state();
        update(&mut state, &[view(device(None, Health::Healthy))], &[]);
        let changed = vec![view(device(Some("x/a"), Health::Unhealthy))];
        let first = Snapshot { has_first_holders: true, changed, ..Snapshot::default() };
        state.update(Timestamp::UNIX_EPOCH, first);
        update(&mut state, &[view(device(Some("x/b"), Health::Unhealthy))], &[]);
        let kinds: Vec<_> = state.document(None).history.iter().map(|it| it.kind).collect();
        assert_eq!(kinds, [EventKind::Fault, EventKind::Ended, EventKind::Placed]);
    }

    #[test]
    fn pending_pods_are_in_the_document_when_they_change() {
        let mut state = empty_state();
        let pod = PendingPod {
            pod: "x/a".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            request: "1 GPU".to_owned(),
            reasons: Some(Vec::new()),
            help: None,
        };
        let pending = Snapshot { pending: vec![pod], ..Snapshot::default() };
        state.update(Timestamp::UNIX_EPOCH, pending.clone());
        let first = state.revision().to_string();
        state.update(Timestamp::UNIX_EPOCH, pending);
        assert_eq!(state.document(Some(&first)).pending, None);
        state.update(Timestamp::UNIX_EPOCH, Snapshot::default());
        assert_eq!(state.document(Some(&first)).pending, Some(Vec::new()));
    }
}
