//! Kinds of objects: their API paths, fields and verbs.

use k8s_openapi::{
    Metadata, Resource,
    api::{
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod},
        events::v1 as events,
        resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Typed object of the API.
pub trait Object: Resource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned {}

impl<T: Resource + Metadata<Ty = ObjectMeta> + Serialize + DeserializeOwned> Object for T {}

/// Kind of object.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    /// Plural in paths, such as `resourceslices`.
    pub(crate) resource: &'static str,
    /// Name, such as `ResourceSlice`.
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    pub(crate) status: Status,
    /// Fields that lists and watches may select by, as in the real server.
    pub(crate) selectable_fields: &'static [&'static str],
    /// Short names for kubectl, such as `po`.
    pub(crate) short_names: &'static [&'static str],
    round_trip: fn(Value) -> Result<Value, serde_json::Error>,
}

/// Scope of a kind's objects: a namespace or the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Cluster,
    Namespaced,
}

/// Write path of a kind's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Clients write `status` only at the path `/status`.
    Subresource,
    /// The kind has no status, or `status` is a field like any other.
    Field,
}

const NAME: &[&str] = &["metadata.name"];
const NAMESPACED: &[&str] = &["metadata.name", "metadata.namespace"];
const NAMESPACE: &[&str] = &["metadata.name", "status.phase"];
const NODE: &[&str] = &["metadata.name", "spec.unschedulable"];
const POD: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
];
const NEW_EVENT: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];
/// Selectable fields of slices. The pool's name is not selectable.
const SLICE: &[&str] = &["metadata.name", "spec.driver", "spec.nodeName"];

static KINDS: &[Kind] = &[
    Kind::of::<Namespace>(Scope::Cluster, Status::Subresource, NAMESPACE).short_names(&["ns"]),
    Kind::of::<Node>(Scope::Cluster, Status::Subresource, NODE).short_names(&["no"]),
    Kind::of::<Pod>(Scope::Namespaced, Status::Subresource, POD).short_names(&["po"]),
    Kind::of::<Event>(Scope::Namespaced, Status::Field, EVENT).short_names(&["ev"]),
    Kind::of::<events::Event>(Scope::Namespaced, Status::Field, NEW_EVENT).short_names(&["ev"]),
    Kind::of::<Lease>(Scope::Namespaced, Status::Field, NAMESPACED),
    Kind::of::<ResourceSlice>(Scope::Cluster, Status::Field, SLICE),
    Kind::of::<ResourceClaim>(Scope::Namespaced, Status::Subresource, NAMESPACED),
    Kind::of::<ResourceClaimTemplate>(Scope::Namespaced, Status::Field, NAMESPACED),
    Kind::of::<DeviceClass>(Scope::Cluster, Status::Field, NAME),
];

// === impl Kind ===

impl Kind {
    const fn of<T: Object>(
        scope: Scope,
        status: Status,
        selectable_fields: &'static [&'static str],
    ) -> Self {
        Self {
            group: T::GROUP,
            version: T::VERSION,
            resource: T::URL_PATH_SEGMENT,
            name: T::KIND,
            scope,
            status,
            selectable_fields,
            short_names: &[],
            round_trip: read::<T>,
        }
    }

    const fn short_names(self, short_names: &'static [&'static str]) -> Self {
        Self { short_names, ..self }
    }

    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        KINDS.iter()
    }

    /// Kind of a typed object.
    pub(crate) fn typed<T: Object>() -> &'static Self {
        let kind = Self::find(T::GROUP, T::VERSION, T::URL_PATH_SEGMENT);
        kind.unwrap_or_else(|| panic!("the embedded API server has no {}", T::KIND))
    }

    pub(crate) fn find(group: &str, version: &str, resource: &str) -> Option<&'static Self> {
        let is_match =
            |kind: &&Self| (kind.group, kind.version, kind.resource) == (group, version, resource);
        KINDS.iter().find(is_match)
    }

    /// Kinds of one group and version.
    pub(crate) fn of_group(group: &str, version: &str) -> impl Iterator<Item = &'static Self> {
        KINDS.iter().filter(move |kind| (kind.group, kind.version) == (group, version))
    }

    /// True if a deletion returns the object instead of a success status (`ReturnDeletedObject`).
    pub(crate) fn deletion_returns_object(&self) -> bool {
        self.group == "resource.k8s.io" || ["pods", "namespaces"].contains(&self.resource)
    }

    /// Qualified resource in error messages, such as `resourceslices.resource.k8s.io`.
    pub(crate) fn qualified(&self) -> String {
        qualify(self.resource, self.group)
    }

    /// `resource.k8s.io/v1`, or `v1`.
    pub(crate) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Round-trips an object through its type, which drops unknown fields.
    pub(crate) fn drop_unknown_fields(&self, object: Value) -> Result<Value, serde_json::Error> {
        (self.round_trip)(object)
    }
}

fn read<T: Object>(object: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(object)?)
}

/// Qualified kind in error messages, such as `ResourceSlice.resource.k8s.io`.
pub(crate) fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}
