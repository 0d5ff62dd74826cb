//! `OpenAPI` 3, as far as clients ask which parameters and patches a kind takes. Schemas are left out.

use serde_json::{Value, json};

use super::{
    kind::{Kind, Scope},
    media::PATCHES,
    refusal::Refusal,
};

/// `/openapi/v3`, or the document of one version behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    Index,
    /// `apis/resource.k8s.io/v1`.
    Version(String),
}

/// The parameters of writes, in which a client looks for what the server can do.
const PARAMETERS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

// === impl Document ===

impl Document {
    pub(crate) fn answer(&self) -> Result<Value, Refusal> {
        match self {
            Self::Index => {
                let path = |kind: &Kind| {
                    let path = root(kind);
                    // What is behind the path changes with the program only, so that nobody needs a hash of it.
                    (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}")}))
                };
                let paths: serde_json::Map<_, _> = Kind::all().map(path).collect();
                Ok(json!({"paths": paths}))
            }
            Self::Version(wanted) => {
                let kinds: Vec<_> = Kind::all().filter(|kind| root(kind) == *wanted).collect();
                if kinds.is_empty() {
                    return Err(Refusal::no_such_path());
                }
                let paths: serde_json::Map<_, _> = kinds.into_iter().map(object).collect();
                Ok(json!({
                    "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0"},
                    "paths": paths, "components": {"schemas": {}},
                }))
            }
        }
    }
}

/// `apis/resource.k8s.io/v1`, or `api/v1`.
fn root(kind: &Kind) -> String {
    match kind.group {
        "" => format!("api/{}", kind.version),
        group => format!("apis/{group}/{}", kind.version),
    }
}

/// The path of an object, with its patches.
fn object(kind: &Kind) -> (String, Value) {
    let namespace = if kind.scope == Scope::Namespaced { "namespaces/{namespace}/" } else { "" };
    let place = format!("/{}/{namespace}{}/{{name}}", root(kind), kind.resource);
    let parameter = |name| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    let bodies: serde_json::Map<_, _> =
        PATCHES.iter().map(|media| ((*media).to_owned(), json!({}))).collect();
    let patch = json!({
        "operationId": format!("patch{}", kind.name), "responses": {"200": {"description": "OK"}},
        "parameters": PARAMETERS.map(parameter), "requestBody": {"content": bodies},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind":
            {"group": kind.group, "version": kind.version, "kind": kind.name},
    });
    (place, json!({"patch": patch}))
}
