//! A request, and what it is about.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    discovery,
    kind::{Kind, Scope},
    openapi,
    refusal::Refusal,
};

/// One request as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// `GET`.
    pub method: String,
    /// `/apis/resource.k8s.io/v1/resourceslices`.
    pub path: String,
    /// What is behind the question mark, decoded.
    pub query: BTreeMap<String, String>,
    /// The header `Content-Type`.
    pub content_type: String,
    /// The header `Accept`.
    pub accept: String,
    /// The document, null where there is none or it cannot be read.
    pub body: Value,
    /// Why the body cannot be read.
    pub problem: Option<String>,
}

/// What a path is about.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// `/version`.
    Version,
    /// `/apis` and what leads to the resources of a version.
    Discovery(discovery::Document),
    /// `/openapi/v3` and what is below it.
    OpenApi(openapi::Document),
    /// All objects of a kind, or those of one namespace.
    Many { kind: &'static Kind, namespace: Option<String> },
    /// One object, or its status.
    One { kind: &'static Kind, id: Id, part: Part },
}

/// Which of its kind an object is. The namespace of a cluster's object is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Which part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Main,
    Status,
}

// === impl Asked ===

impl Asked {
    /// A parameter of the query, empty where there is none.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.flag("watch").unwrap_or_default()
    }

    /// A parameter that is true or false, as the real server reads one.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.query.get(name)?;
        Some(!value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// A parameter that is a number; none where it is absent, empty or 0.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let text = self.parameter(name);
        if text.is_empty() {
            return Ok(None);
        }
        let number: u64 = text.parse().map_err(|_| {
            let why = format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
            Refusal::bad_request(why)
        })?;
        Ok(Some(number).filter(|number| *number > 0))
    }

    /// The verb in words of access rules.
    pub(crate) fn verb(&self, target: &Target) -> &'static str {
        match (self.method.as_str(), target) {
            ("GET", Target::Many { .. }) if self.is_watch() => "watch",
            ("GET", Target::Many { .. }) => "list",
            ("DELETE", Target::Many { .. }) => "deletecollection",
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
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["version"] => return Ok(Self::Version),
            ["openapi", "v3"] => return Ok(Self::OpenApi(openapi::Document::Index)),
            ["openapi", "v3", rest @ ..] => {
                return Ok(Self::OpenApi(openapi::Document::Version(rest.join("/"))));
            }
            ["api"] => return Ok(Self::Discovery(discovery::Document::Core)),
            ["apis"] => return Ok(Self::Discovery(discovery::Document::Groups)),
            ["apis", group] => {
                return Ok(Self::Discovery(discovery::Document::Group((*group).to_owned())));
            }
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_such_path()),
        };
        let (namespace, rest) = match rest {
            [] => {
                let (group, version) = (group.to_owned(), version.to_owned());
                return Ok(Self::Discovery(discovery::Document::Resources { group, version }));
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
        let (name, part) = match rest {
            [] => return Ok(Self::Many { kind, namespace }),
            [name] => (*name, Part::Main),
            [name, "status"] => (*name, Part::Status),
            _ => return Err(Refusal::no_such_path()),
        };
        if namespace.is_none() && kind.scope == Scope::Namespaced {
            return Err(Refusal::no_such_path());
        }
        let id = Id { namespace: namespace.unwrap_or_default(), name: name.to_owned() };
        Ok(Self::One { kind, id, part })
    }
}

/// The pairs of a query.
pub(crate) fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| (decoded(key), decoded(value))).collect()
}

/// `%2C` and `+` as what they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.unwrap_or(b'?'));
                let number = digits.map(|digit| char::from(digit).to_digit(16).unwrap_or(0));
                u8::try_from(number[0] * 16 + number[1]).expect("two digits")
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
    fn paths_are_about_kinds_namespaces_and_names() {
        for (path, expected) in [
            ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices - -"),
            ("/apis/resource.k8s.io/v1/resourceslices/s", "resourceslices - s"),
            ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims", "resourceclaims a -"),
            ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status", "resourceclaims a c"),
            ("/api/v1/namespaces/a", "namespaces - a"),
            ("/api/v1/nodes/n", "nodes - n"),
        ] {
            let or = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            let found = match Target::of(path).expect("a path") {
                Target::Many { kind, namespace } => {
                    format!("{} {} -", kind.resource, or(&namespace.unwrap_or_default()))
                }
                Target::One { kind, id, .. } => {
                    format!("{} {} {}", kind.resource, or(&id.namespace), or(&id.name))
                }
                other => format!("{other:?}"),
            };
            assert_eq!(found, expected, "{path}");
        }
        for path in ["/", "/apis/resource.k8s.io/v1/pods", "/api/v1/pods/p", "/api/v1/nodes/n/x"] {
            assert_eq!(Target::of(path).expect_err("no such path").code, 404, "{path}");
        }
    }
}
