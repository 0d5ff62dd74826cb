//! `OpenAPI` 3 documents: the parameters and patch types of each kind, for clients' discovery. They have no schemas.

use serde_json::{Value, json};

use super::{
    kind::{Kind, Scope},
    media::PATCHES,
    refusal::Refusal,
};

/// `/openapi/v3`, or the document of one version below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenApiDocument {
    Index,
    /// Path of a version, such as `apis/resource.k8s.io/v1`.
    Version(String),
}

/// Parameters of writes, from which a client derives the server's features.
const PARAMETERS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

// === impl OpenApiDocument ===

impl OpenApiDocument {
    pub(crate) fn render(&self) -> Result<Value, Refusal> {
        match self {
            Self::Index => {
                let entry = |kind: &Kind| {
                    let path = root(kind);
                    // The documents are constant, so their URLs need no hash.
                    (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}")}))
                };
                let paths: serde_json::Map<_, _> = Kind::all().map(entry).collect();
                Ok(json!({"paths": paths}))
            }
            Self::Version(path) => {
                let kinds: Vec<_> = Kind::all().filter(|kind| root(kind) == *path).collect();
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

/// Path of a kind's version: `apis/resource.k8s.io/v1`, or `api/v1`.
fn root(kind: &Kind) -> String {
    match kind.group {
        "" => format!("api/{}", kind.version),
        group => format!("apis/{group}/{}", kind.version),
    }
}

/// Path item of an object, with its patches.
fn object(kind: &Kind) -> (String, Value) {
    let namespace = if kind.scope == Scope::Namespaced { "namespaces/{namespace}/" } else { "" };
    let path = format!("/{}/{namespace}{}/{{name}}", root(kind), kind.resource);
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
    (path, json!({"patch": patch}))
}
