//! Store of objects with their versions and history.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use tokio::sync::watch;
use windlass_sched::random::Random;

use super::{
    kind::Kind,
    request::{NamespacedName, Part},
};
use crate::names;

/// All objects, as JSON in the shape of their types.
#[derive(Debug)]
pub(crate) struct Store {
    objects: BTreeMap<GroupResource, BTreeMap<NamespacedName, Entry>>,
    history: VecDeque<Change>,
    version: u64,
    /// The history has no changes up to this version.
    compacted_version: u64,
    random: Random,
    signal: watch::Sender<Signal>,
}

/// Group and plural of a kind.
pub(crate) type GroupResource = (&'static str, &'static str);

/// An object, with the configurations that field managers have applied.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) object: Value,
    /// Last applied configuration by field manager, without fields that other managers took over.
    pub(crate) applied_configs: BTreeMap<FieldManager, Value>,
}

/// Field manager. The status of an object and the main part have separate managers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FieldManager {
    pub(crate) name: String,
    pub(crate) part: Part,
}

/// Change of one object. A created object has no `old`, a deleted one no `new`.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) kind: GroupResource,
    pub(crate) id: NamespacedName,
    pub(crate) old: Option<Value>,
    pub(crate) new: Option<Value>,
}

/// State that wakes watches when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) version: u64,
    /// Number of times that all watches were ended.
    pub(crate) ended_watches: u64,
}

/// Maximum number of changes in the history.
const HISTORY: usize = 10_000;

/// First version. A small number could equal constants in tests by accident.
const FIRST_VERSION: u64 = 100;

// === impl Store ===

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        let signal = Signal { version: FIRST_VERSION, ended_watches: 0 };
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            version: FIRST_VERSION,
            compacted_version: FIRST_VERSION,
            random: Random::new(seed),
            signal: watch::Sender::new(signal),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn compacted_version(&self) -> u64 {
        self.compacted_version
    }

    pub(crate) fn signal(&self) -> watch::Receiver<Signal> {
        self.signal.subscribe()
    }

    pub(crate) fn get(&self, kind: &Kind, id: &NamespacedName) -> Option<&Entry> {
        self.objects.get(&group_resource(kind))?.get(id)
    }

    pub(crate) fn all(&self, kind: &Kind) -> impl Iterator<Item = (&NamespacedName, &Value)> {
        let entries = self.objects.get(&group_resource(kind)).into_iter().flatten();
        entries.map(|(id, entry)| (id, &entry.object))
    }

    /// All objects of all kinds.
    pub(crate) fn all_objects(
        &self,
    ) -> impl Iterator<Item = (GroupResource, &NamespacedName, &Value)> {
        let of_kind = |(kind, entries): (&GroupResource, _)| {
            let kind = *kind;
            let entries: &BTreeMap<NamespacedName, Entry> = entries;
            entries.iter().map(move |(id, entry)| (kind, id, &entry.object))
        };
        self.objects.iter().flat_map(of_kind)
    }

    /// Stores an object under the next version, and returns it.
    pub(crate) fn insert(
        &mut self,
        kind: &'static Kind,
        id: NamespacedName,
        mut entry: Entry,
    ) -> Value {
        self.version += 1;
        entry.object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = entry.object.clone();
        let old = self.objects.entry(group_resource(kind)).or_default().insert(id.clone(), entry);
        self.record((group_resource(kind), id), old.map(|old| old.object), Some(object.clone()));
        object
    }

    /// Removes an object, if it exists.
    pub(crate) fn remove(&mut self, kind: GroupResource, id: &NamespacedName) {
        let entry = self.objects.get_mut(&kind).and_then(|entries| entries.remove(id));
        if let Some(Entry { object, .. }) = entry {
            self.version += 1;
            self.record((kind, id.clone()), Some(object), None);
        }
    }

    fn record(
        &mut self,
        (kind, id): (GroupResource, NamespacedName),
        old: Option<Value>,
        new: Option<Value>,
    ) {
        self.history.push_back(Change { version: self.version, kind, id, old, new });
        if self.history.len() > HISTORY {
            self.compacted_version = self.history.pop_front().map_or(0, |change| change.version);
        }
        self.signal.send_modify(|signal| signal.version = self.version);
    }

    /// Changes of a kind after a version.
    pub(crate) fn changes_since(
        &self,
        kind: &Kind,
        version: u64,
    ) -> impl DoubleEndedIterator<Item = &Change> {
        let plural = group_resource(kind);
        let start = self.history.partition_point(|change| change.version <= version);
        self.history.range(start..).filter(move |change| change.kind == plural)
    }

    /// Objects of a kind at a version. The history must have all changes since that version.
    pub(crate) fn objects_at(
        &self,
        kind: &Kind,
        version: u64,
    ) -> BTreeMap<&NamespacedName, &Value> {
        let mut objects: BTreeMap<_, _> = self.all(kind).collect();
        for change in self.changes_since(kind, version).rev() {
            match &change.old {
                Some(old) => objects.insert(&change.id, old),
                None => objects.remove(&change.id),
            };
        }
        objects
    }

    /// Discards the history. Watches from older versions must list again.
    pub(crate) fn compact(&mut self) {
        self.history.clear();
        self.compacted_version = self.version;
    }

    pub(crate) fn end_watches(&mut self) {
        self.signal.send_modify(|signal| signal.ended_watches += 1);
    }

    /// Random suffix for `generateName`.
    pub(crate) fn suffix(&mut self) -> String {
        names::suffix(&mut self.random)
    }

    /// UID for a new object.
    pub(crate) fn uid(&mut self) -> String {
        self.random.uuid()
    }
}

/// Key of a kind in the store.
pub(crate) fn group_resource(kind: &Kind) -> GroupResource {
    (kind.group, kind.resource)
}
