//! Permissions that `deploy/rbac.yaml` grants the agent, and the permission that an API request requires.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

/// Permission of one verb on one resource, as in a rule of a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Namespace of the role or request; `None` for a cluster role or a request for the whole cluster.
    pub namespace: Option<String>,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource with its subresource, if any: `resourceclaims/status`.
    pub resource: String,
    /// Verb of Kubernetes: `get`, `list`, `deletecollection`.
    pub verb: String,
}

/// Namespace of the agent in the manifests.
const AGENT_NAMESPACE: &str = "windlass-system";

// === impl Permission ===

impl Permission {
    /// All permissions that the shipped roles grant.
    pub fn shipped() -> Vec<Self> {
        Self::of_manifest("rbac.yaml")
    }

    /// All permissions that the roles of a manifest in `deploy` grant.
    pub fn of_manifest(path: &str) -> Vec<Self> {
        let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy"));
        let text = std::fs::read_to_string(deploy.join(path)).expect("a manifest");
        let documents = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        let documents = documents.map(|document| document.expect("YAML"));
        let roles =
            documents.filter(|it| it["kind"] == "Role" || it["kind"] == "ClusterRole").collect();
        Self::of_roles(roles)
    }

    fn of_roles(roles: Vec<Value>) -> Vec<Self> {
        let mut permissions = Vec::new();
        for role in roles {
            let namespace = role["metadata"]["namespace"].as_str();
            for rule in role["rules"].as_array().expect("rules") {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        permissions.extend(texts(&rule["verbs"]).map(|verb| Self {
                            namespace: namespace.map(ToOwned::to_owned),
                            group: group.to_owned(),
                            resource: resource.to_owned(),
                            verb: verb.to_owned(),
                        }));
                    }
                }
            }
        }
        permissions
    }

    /// Permission that a request requires; `None` for API discovery, which every client may use.
    pub fn required_by(method: &str, path: &str, query: &BTreeMap<String, String>) -> Option<Self> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, path) = match parts.as_slice() {
            ["api", "v1", path @ ..] => ("", path),
            ["apis", group, _version, path @ ..] => (*group, path),
            _ => return None,
        };
        let (namespace, path) = match path {
            ["namespaces", namespace, path @ ..] if !path.is_empty() => (Some(*namespace), path),
            path => (None, path),
        };
        let (resource, has_name) = match path {
            [] => return None,
            [resource] => ((*resource).to_owned(), false),
            [resource, _name] => ((*resource).to_owned(), true),
            [resource, _name, subresource @ ..] => {
                (format!("{resource}/{}", subresource.join("/")), true)
            }
        };
        let is_watch = query.get("watch").is_some_and(|it| it == "true" || it == "1");
        let verb = match (method, has_name) {
            ("GET", true) => "get",
            ("GET", false) if is_watch => "watch",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => method,
        };
        let [group, verb] = [group, verb].map(ToOwned::to_owned);
        Some(Self { namespace: namespace.map(ToOwned::to_owned), group, resource, verb })
    }

    /// True if this permission of a role covers the required one.
    pub fn covers(&self, required: &Self) -> bool {
        let covers_namespace = match (self.namespace.as_deref(), required.namespace.as_deref()) {
            (None, _) => true,
            // Agents under test run in other namespaces than `AGENT_NAMESPACE`.
            (Some(AGENT_NAMESPACE), Some(required)) => required != "default",
            (granted, required) => granted == required,
        };
        covers_namespace
            && (&self.group, &self.resource, &self.verb)
                == (&required.group, &required.resource, &required.verb)
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}
