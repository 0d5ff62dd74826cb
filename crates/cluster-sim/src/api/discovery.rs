//! Discovery of groups, versions and resources, as single or aggregated documents.

use serde_json::{Value, json};

use super::{
    kind::{Kind, Scope, Status},
    refusal::Refusal,
};

/// Discovery document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// `/api`: the versions of the core group.
    Core,
    /// `/apis`: the other groups.
    Groups,
    /// `/apis/resource.k8s.io`: one group.
    Group(String),
    /// `/apis/resource.k8s.io/v1`: the resources of one version.
    Resources { group: String, version: String },
}

/// Media type of an aggregated document.
pub(crate) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

// === impl Document ===

impl Document {
    pub(crate) fn render(&self) -> Result<Value, Refusal> {
        match self {
            Self::Core => Ok(json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            })),
            Self::Groups => {
                let groups: Vec<_> = groups().into_iter().map(group).collect();
                Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
            }
            Self::Group(name) => {
                let entry = groups().into_iter().find(|(group, _)| group == name);
                let mut group = group(entry.ok_or_else(Refusal::no_such_path)?);
                group["kind"] = "APIGroup".into();
                group["apiVersion"] = "v1".into();
                Ok(group)
            }
            Self::Resources { group, version } => resources(group, version),
        }
    }

    /// Aggregated form of this document; only `/api` and `/apis` have one.
    pub(crate) fn aggregated(&self) -> Option<Value> {
        let groups = match self {
            Self::Core => vec![("", "v1")],
            Self::Groups => groups(),
            Self::Group(_) | Self::Resources { .. } => return None,
        };
        let items: Vec<_> = groups.into_iter().map(aggregated).collect();
        Some(json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {}, "items": items,
        }))
    }
}

/// All groups except the core, each with its version.
fn groups() -> Vec<(&'static str, &'static str)> {
    let mut groups: Vec<_> = Kind::all().map(|kind| (kind.group, kind.version)).collect();
    groups.retain(|(group, _)| !group.is_empty());
    groups.dedup();
    groups
}

fn group((group, version): (&str, &str)) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, version: &str) -> Result<Value, Refusal> {
    let mut resources = Vec::new();
    for kind in Kind::of_group(group, version) {
        let is_namespaced = kind.scope == Scope::Namespaced;
        let mut resource = json!({
            "name": kind.resource, "singularName": kind.name.to_lowercase(),
            "namespaced": is_namespaced, "kind": kind.name, "verbs": VERBS,
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = kind.short_names.into();
        }
        resources.push(resource);
        if kind.status == Status::Subresource {
            resources.push(json!({
                "name": format!("{}/status", kind.resource), "singularName": "",
                "namespaced": is_namespaced, "kind": kind.name, "verbs": STATUS_VERBS,
            }));
        }
    }
    if resources.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
        "resources": resources,
    }))
}

fn aggregated((group, version): (&str, &str)) -> Value {
    let resources: Vec<_> = Kind::of_group(group, version).map(aggregated_resource).collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    let version = json!({"version": version, "resources": resources, "freshness": "Current"});
    json!({"metadata": metadata, "versions": [version]})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response = json!({"group": kind.group, "version": kind.version, "kind": kind.name});
    let scope = if kind.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" };
    let mut resource = json!({
        "resource": kind.resource, "responseKind": response, "scope": scope,
        "singularResource": kind.name.to_lowercase(), "verbs": VERBS,
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = kind.short_names.into();
    }
    if kind.status == Status::Subresource {
        resource["subresources"] =
            json!([{"subresource": "status", "responseKind": response, "verbs": STATUS_VERBS}]);
    }
    resource
}
