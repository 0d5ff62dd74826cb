//! API request, and the target of its path.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    discovery::Document,
    kind::{Kind, Scope},
    openapi::OpenApiDocument,
    refusal::Refusal,
    review,
};

/// API request as received.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApiRequest {
    /// Method, such as `GET`.
    pub method: String,
    /// Path, such as `/apis/resource.k8s.io/v1/resourceslices`.
    pub path: String,
    /// Query parameters, decoded.
    pub query: BTreeMap<String, String>,
    /// The header `Content-Type`.
    pub content_type: String,
    /// The header `Accept`.
    pub accept: String,
    /// Document of the body; null if it is absent or unreadable.
    pub body: Value,
    /// Error of an unreadable body.
    pub body_error: Option<String>,
}

/// Target of a path.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// `/version`.
    Version,
    /// `/api`, `/apis` and the discovery documents below them.
    Discovery(Document),
    /// `/openapi/v3` and the documents below it.
    OpenApi(OpenApiDocument),
    /// All objects of a kind, or those of one namespace.
    Collection { kind: &'static Kind, namespace: Option<String> },
    /// One object, or its status.
    Object { kind: &'static Kind, id: NamespacedName, part: Part },
    /// The binding of a pod to its node.
    Binding { pod: NamespacedName },
    /// The eviction of a pod.
    Eviction { pod: NamespacedName },
    /// A review of the caller's own permissions.
    Review,
}

/// Identity of an object within its kind. The namespace of a cluster-scoped object is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamespacedName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Main,
    Status,
}

// === impl ApiRequest ===

impl ApiRequest {
    /// Query parameter; empty if it is absent.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.flag("watch").unwrap_or_default()
    }

    /// Boolean parameter, as the real server parses it.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.query.get(name)?;
        Some(!value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// Numeric parameter; `None` if it is absent, empty or 0.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let text = self.parameter(name);
        if text.is_empty() {
            return Ok(None);
        }
        let number: u64 = text.parse().map_err(|_| {
            let reason = format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
            Refusal::bad_request(reason)
        })?;
        Ok(Some(number).filter(|number| *number > 0))
    }

    /// Verb in the terms of RBAC.
    pub(crate) fn verb(&self, target: &Target) -> &'static str {
        match (self.method.as_str(), target) {
            ("GET", Target::Collection { .. }) if self.is_watch() => "watch",
            ("GET", Target::Collection { .. }) => "list",
            ("DELETE", Target::Collection { .. }) => "deletecollection",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ => "get",
        }
    }
}

// === impl Target ===

impl Target {
    pub(crate) fn of(path: &str) -> Result<Self, Refusal> {
        let segments: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["version"] => return Ok(Self::Version),
            review::PATH => return Ok(Self::Review),
            ["openapi", "v3"] => return Ok(Self::OpenApi(OpenApiDocument::Index)),
            ["openapi", "v3", rest @ ..] => {
                return Ok(Self::OpenApi(OpenApiDocument::Version(rest.join("/"))));
            }
            ["api"] => return Ok(Self::Discovery(Document::Core)),
            ["apis"] => return Ok(Self::Discovery(Document::Groups)),
            ["apis", group] => {
                return Ok(Self::Discovery(Document::Group((*group).to_owned())));
            }
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_such_path()),
        };
        let (namespace, rest) = match rest {
            [] => {
                let (group, version) = (group.to_owned(), version.to_owned());
                return Ok(Self::Discovery(Document::Resources { group, version }));
            }
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && *rest != ["status"] => {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let (resource, rest) = rest.split_first().ok_or_else(Refusal::no_such_path)?;
        let kind = Kind::find(group, version, resource).ok_or_else(Refusal::no_such_path)?;
        if namespace.is_some() && kind.scope == Scope::Cluster {
            return Err(Refusal::no_such_path());
        }
        if let ([name, part], Some(namespace), "pods") = (rest, &namespace, kind.resource)
            && let Some(target) = Self::pod_subresource(namespace, name, part)
        {
            return Ok(target);
        }
        let (name, part) = match rest {
            [] => return Ok(Self::Collection { kind, namespace }),
            [name] => (*name, Part::Main),
            [name, "status"] => (*name, Part::Status),
            _ => return Err(Refusal::no_such_path()),
        };
        if namespace.is_none() && kind.scope == Scope::Namespaced {
            return Err(Refusal::no_such_path());
        }
        let id = NamespacedName { namespace: namespace.unwrap_or_default(), name: name.to_owned() };
        Ok(Self::Object { kind, id, part })
    }

    /// A subresource that only pods have.
    fn pod_subresource(namespace: &str, name: &str, subresource: &str) -> Option<Self> {
        let pod = NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() };
        match subresource {
            "binding" => Some(Self::Binding { pod }),
            "eviction" => Some(Self::Eviction { pod }),
            _ => None,
        }
    }
}

/// Parses a query string into decoded keys and values.
pub(crate) fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| (percent_decode(key), percent_decode(value))).collect()
}

/// Decodes percent escapes and `+`.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut encoded = text.bytes();
    while let Some(byte) = encoded.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [encoded.next(), encoded.next()].map(|digit| digit.unwrap_or(b'?'));
                let values = digits.map(|digit| char::from(digit).to_digit(16).unwrap_or(0));
                u8::try_from(values[0] * 16 + values[1]).expect("two digits")
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = query("fieldSelector=spec.driver%3Da%2Cspec.nodeName%3Dn+1&watch=true");
        assert_eq!(query["fieldSelector"], "spec.driver=a,spec.nodeName=n 1");
        assert_eq!(query["watch"], "true");
    }

    #[test]
    fn paths_name_kinds_namespaces_and_objects() {
        for (path, expected) in [
            ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices - -"),
            ("/apis/resource.k8s.io/v1/resourceslices/s", "resourceslices - s"),
            ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims", "resourceclaims a -"),
            ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status", "resourceclaims a c"),
            ("/api/v1/namespaces/a", "namespaces - a"),
            ("/api/v1/nodes/n", "nodes - n"),
            ("/api/v1/namespaces/a/pods/p/binding", "binding a p"),
            ("/api/v1/namespaces/a/pods/p/eviction", "eviction a p"),
        ] {
            let or_dash =
                |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            let description = match Target::of(path).expect("a path") {
                Target::Collection { kind, namespace } => {
                    format!("{} {} -", kind.resource, or_dash(&namespace.unwrap_or_default()))
                }
                Target::Object { kind, id, .. } => {
                    format!("{} {} {}", kind.resource, or_dash(&id.namespace), or_dash(&id.name))
                }
                Target::Binding { pod } => format!("binding {} {}", pod.namespace, pod.name),
                Target::Review => "review".to_owned(),
                Target::Eviction { pod } => format!("eviction {} {}", pod.namespace, pod.name),
                target => format!("{target:?}"),
            };
            assert_eq!(description, expected, "{path}");
        }
        for path in ["/", "/apis/resource.k8s.io/v1/pods", "/api/v1/pods/p", "/api/v1/nodes/n/x"] {
            assert_eq!(Target::of(path).expect_err("no such path").code, 404, "{path}");
        }
    }
}
