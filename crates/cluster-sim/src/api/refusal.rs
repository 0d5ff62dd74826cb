//! Refusals: a `Status` with the wording of the real server.

use std::fmt;

use serde_json::{Value, json};

use super::{
    kind::{Kind, qualify},
    request::Part,
};

/// Refusal of a request: the fields of the `Status` that answers it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP code.
    pub code: u16,
    /// Short reason, such as `Conflict`.
    pub reason: &'static str,
    /// Full message.
    pub message: String,
    /// `details` of the `Status`; `null` if it has none.
    details: Value,
    /// Continue token for a list that has expired.
    continue_token: Option<Box<str>>,
}

/// A field with its problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) field: String,
    pub(crate) problem: Problem,
}

/// Problem of a field, with the parts of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The detail, which may be empty.
    Required(&'static str),
    /// The value as JSON, and the detail.
    Invalid(String, String),
    /// The value, and the supported values.
    Unsupported(String, &'static [&'static str]),
    /// The value as JSON.
    Duplicate(String),
    /// The detail.
    Forbidden(&'static str),
    /// The maximum in bytes.
    TooLong(usize),
    /// The number of items, and the maximum.
    TooMany(usize, usize),
}

// === impl Refusal ===

impl Refusal {
    /// Creates a refusal, such as one that a test injects.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, continue_token: None }
    }

    /// The server cannot serve any request at the moment.
    pub fn unavailable() -> Self {
        let message = "the server is currently unable to handle the request";
        Self::new(503, "ServiceUnavailable", message)
    }

    /// The server throttles the client, which may try again after a second.
    pub fn too_many_requests() -> Self {
        let refusal =
            Self::new(429, "TooManyRequests", "too many requests, please try again later");
        Self { details: json!({"retryAfterSeconds": 1}), ..refusal }
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::for_object(404, "NotFound", message, kind, name)
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::for_object(409, "AlreadyExists", message, kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, detail: &str) -> Self {
        let qualified = kind.qualified();
        let message = format!("Operation cannot be fulfilled on {qualified} {name:?}: {detail}");
        Self::for_object(409, "Conflict", message, kind, name)
    }

    /// A pod that cannot be bound. The message names the subresource.
    pub(crate) fn unbindable(pod: &str, detail: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods/binding {pod:?}: {detail}");
        let details = json!({"name": pod, "kind": "pods/binding"});
        Self { details, ..Self::new(409, "Conflict", message) }
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let detail = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(kind, name, detail)
    }

    /// A watch from a version that the history no longer has.
    pub(crate) fn expired(requested: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {requested} ({oldest})"))
    }

    /// A list at a version that the history no longer has.
    pub(crate) fn expired_list() -> Self {
        Self::new(410, "Expired", "The resourceVersion for the provided list is too old.")
    }

    /// A page of a list whose version the history no longer has. The token continues with current objects.
    pub(crate) fn expired_page(token: &str) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can \
                       start a new list without the continue parameter, or use the continue token in this \
                       response to retrieve the remainder of the results. Continuing with the provided token \
                       results in an inconsistent list - objects that were created, modified, or deleted between \
                       the time the first chunk was returned and now may show up in the list.";
        Self { continue_token: Some(token.into()), ..Self::new(410, "Expired", message) }
    }

    /// A list or a watch at a version that the server has not reached.
    pub(crate) fn too_large_version(requested: u64, current: u64) -> Self {
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        let cause = json!({
            "reason": "ResourceVersionTooLarge", "message": "Too large resource version",
        });
        let details = json!({"causes": [cause], "retryAfterSeconds": 1});
        Self { details, ..Self::new(504, "Timeout", message) }
    }

    pub(crate) fn not_acceptable(accepted: &str) -> Self {
        let message = format!("only the following media types are accepted: {accepted}");
        Self::new(406, "NotAcceptable", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// Conflict of an apply with fields of other managers. `fields` has pairs of manager and field.
    pub(crate) fn apply_conflict(part: Part, fields: &[(String, String)]) -> Self {
        let suffix = if part == Part::Status { " with subresource \"status\"" } else { "" };
        let conflict_with = |manager: &str| format!("conflict with {manager:?}{suffix}");
        let line =
            |(manager, field): &(String, String)| format!("{}: {field}", conflict_with(manager));
        let lines: Vec<_> = fields.iter().map(line).collect();
        let message = match lines.as_slice() {
            [line] => format!("Apply failed with 1 conflict: {line}"),
            lines => format!("Apply failed with {} conflicts: {}", lines.len(), lines.join("\n")),
        };
        let cause = |(manager, field): &(String, String)| {
            let message = conflict_with(manager);
            json!({"reason": "FieldManagerConflict", "message": message, "field": field})
        };
        let causes: Vec<_> = fields.iter().map(cause).collect();
        Self { details: json!({"causes": causes}), ..Self::new(409, "Conflict", message) }
    }

    /// An apply without a field manager.
    pub(crate) fn no_manager() -> Self {
        let cause = Cause::required("fieldManager", "is required for apply patch");
        Self::invalid_object(("meta.k8s.io", "PatchOptions"), "", &[cause])
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_object((kind.group, kind.name), name, causes)
    }

    /// A list or a watch with contradicting parameters.
    pub(crate) fn invalid_options(causes: &[Cause]) -> Self {
        Self::invalid_object(("meta.k8s.io", "ListOptions"), "", causes)
    }

    fn invalid_object((group, kind): (&str, &str), name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<_> = causes.iter().map(ToString::to_string).collect();
        let text = if let [text] = texts.as_slice() {
            text.clone()
        } else {
            format!("[{}]", texts.join(", "))
        };
        let qualified = qualify(kind, group);
        let message = format!("{qualified} {name:?} is invalid: {text}");
        let causes: Vec<_> = causes.iter().map(Cause::to_json).collect();
        let details = json!({"name": name, "group": group, "kind": kind, "causes": causes});
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    /// A request without permission. The server authenticates no client, so the user is always the same.
    pub(crate) fn forbidden(verb: &str, kind: &Kind, namespace: &str, name: &str) -> Self {
        let scope = match namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let quoted_name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!(
            "{}{quoted_name} is forbidden: User \"system:serviceaccount:windlass:windlass\" cannot {verb} \
             resource {:?} in API group {:?} {scope}",
            kind.qualified(),
            kind.resource,
            kind.group,
        );
        Self::for_object(403, "Forbidden", message, kind, name)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn no_such_verb() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    fn for_object(
        code: u16,
        reason: &'static str,
        message: String,
        kind: &Kind,
        name: &str,
    ) -> Self {
        let details = json!({"name": name, "group": kind.group, "kind": kind.resource});
        Self { details, ..Self::new(code, reason, message) }
    }

    /// The `Status` on the wire.
    pub(crate) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.as_ref().into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

// === impl Cause ===

impl Cause {
    pub(crate) fn required(field: impl Into<String>, detail: &'static str) -> Self {
        Self { field: field.into(), problem: Problem::Required(detail) }
    }

    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        let problem = Problem::Invalid(value.into().to_string(), detail.into());
        Self { field: field.into(), problem }
    }

    pub(crate) fn immutable(field: impl Into<String>, value: &Value) -> Self {
        Self::invalid(field, value.clone(), "field is immutable")
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { field: field.into(), problem: Problem::Duplicate(value.into().to_string()) }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &'static str) -> Self {
        Self { field: field.into(), problem: Problem::Forbidden(detail) }
    }

    fn to_json(&self) -> Value {
        let reason = match self.problem {
            Problem::Required(_) => "FieldValueRequired",
            Problem::Invalid(..) => "FieldValueInvalid",
            Problem::Unsupported(..) => "FieldValueNotSupported",
            Problem::Duplicate(_) => "FieldValueDuplicate",
            Problem::Forbidden(_) => "FieldValueForbidden",
            Problem::TooLong(_) => "FieldValueTooLong",
            Problem::TooMany(..) => "FieldValueTooMany",
        };
        json!({"reason": reason, "message": self.problem.to_string(), "field": self.field})
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required("") => f.write_str("Required value"),
            Self::Required(detail) => write!(f, "Required value: {detail}"),
            Self::Invalid(value, detail) => write!(f, "Invalid value: {value}: {detail}"),
            Self::Unsupported(value, supported) => {
                let supported: Vec<_> = supported.iter().map(|name| format!("{name:?}")).collect();
                write!(
                    f,
                    "Unsupported value: {value:?}: supported values: {}",
                    supported.join(", ")
                )
            }
            Self::Duplicate(value) => write!(f, "Duplicate value: {value}"),
            Self::Forbidden(detail) => write!(f, "Forbidden: {detail}"),
            Self::TooLong(max) => write!(f, "Too long: may not be more than {max} bytes"),
            Self::TooMany(count, max) => {
                write!(f, "Too many: {count}: must have at most {max} items")
            }
        }
    }
}
