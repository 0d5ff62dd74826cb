//! Permissions that `deploy/rbac.yaml` grants the agent, and the permission that a request needs.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

/// Permission, as a rule of a role grants it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Namespace of a role; `None` for a cluster role.
    pub namespace: Option<String>,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource with its subresource: `resourceclaims/status`.
    pub resource: String,
    /// Verb as Kubernetes spells it: `get`, `list`, `deletecollection`.
    pub verb: String,
}

/// Namespace of the agent in the manifests.
const OWN: &str = "windlass-system";

// === impl Right ===

impl Right {
    /// Every permission that the shipped roles grant.
    pub fn shipped() -> Vec<Self> {
        Self::of_manifest("rbac.yaml")
    }

    /// Every permission that the roles of a manifest in `deploy` grant.
    pub fn of_manifest(path: &str) -> Vec<Self> {
        let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy"));
        let text = std::fs::read_to_string(deploy.join(path)).expect("a manifest");
        let documents = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        let documents = documents.map(|read| read.expect("YAML"));
        let roles =
            documents.filter(|it| it["kind"] == "Role" || it["kind"] == "ClusterRole").collect();
        Self::of_roles(roles)
    }

    fn of_roles(roles: Vec<Value>) -> Vec<Self> {
        let mut rights = Vec::new();
        for role in roles {
            let namespace = role["metadata"]["namespace"].as_str();
            for rule in role["rules"].as_array().expect("rules") {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        rights.extend(texts(&rule["verbs"]).map(|verb| Self {
                            namespace: namespace.map(ToOwned::to_owned),
                            group: group.to_owned(),
                            resource: resource.to_owned(),
                            verb: verb.to_owned(),
                        }));
                    }
                }
            }
        }
        rights
    }

    /// Permission that a request needs. Discovery returns `None`: every client may use it.
    pub fn asked(method: &str, path: &str, query: &BTreeMap<String, String>) -> Option<Self> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (resource, has_name) = match rest {
            [] => return None,
            [resource] => ((*resource).to_owned(), false),
            [resource, _name] => ((*resource).to_owned(), true),
            [resource, _name, part @ ..] => (format!("{resource}/{}", part.join("/")), true),
        };
        let watches = query.get("watch").is_some_and(|it| it == "true" || it == "1");
        let verb = match (method, has_name) {
            ("GET", true) => "get",
            ("GET", false) if watches => "watch",
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

    /// True if this permission of a role covers the requested one.
    pub fn gives(&self, asked: &Self) -> bool {
        let within = match (self.namespace.as_deref(), asked.namespace.as_deref()) {
            (None, _) => true,
            // Agents under test run in other namespaces than the shipped one.
            (Some(OWN), Some(asked)) => asked != "default",
            (own, asked) => own == asked,
        };
        within
            && (&self.group, &self.resource, &self.verb)
                == (&asked.group, &asked.resource, &asked.verb)
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}
