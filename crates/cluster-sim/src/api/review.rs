//! Reviews of the caller's own permissions. There is no RBAC: everything is allowed unless a fault forbids it.

use serde_json::{Value, json};

use super::{
    fault::{Effect, Fault},
    request::ApiRequest,
    response::ApiResponse,
    server_state::ServerState,
};

/// Segments of the path of a `SelfSubjectAccessReview`.
pub(crate) const PATH: &[&str] =
    &["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"];

impl ServerState {
    /// Completes a review with its result.
    pub(super) fn review(&self, review: &Value) -> ApiResponse {
        let request = sample_request(&review["spec"]["resourceAttributes"]);
        let forbids = |fault: &&Fault| fault.matches(&request) && *fault.effect() == Effect::Forbid;
        let mut result = review.clone();
        result["status"] = json!({"allowed": !self.faults.iter().any(|fault| forbids(&fault))});
        ApiResponse::new(201, result)
    }
}

/// A sample request with the attributes of a review.
fn sample_request(attributes: &Value) -> ApiRequest {
    let text = |key: &str| attributes[key].as_str().unwrap_or_default();
    let root = match text("group") {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    let namespace = match text("namespace") {
        "" => String::new(),
        namespace => format!("/namespaces/{namespace}"),
    };
    // `*` stands for the name of any object.
    let subresource = match text("subresource") {
        "" => String::new(),
        subresource => format!("/*/{subresource}"),
    };
    let method = match text("verb") {
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "GET",
    };
    let path = format!("{root}{namespace}/{}{subresource}", text("resource"));
    ApiRequest { method: method.to_owned(), path, ..ApiRequest::default() }
}
