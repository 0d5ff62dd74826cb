//! Reviews of the caller's own rights. There is no RBAC: everything is allowed unless a fault forbids it.

use serde_json::{Value, json};

use super::{
    answer::Answer,
    fault::{Effect, Fault},
    request::ApiRequest,
    world::World,
};

/// Path of a `SelfSubjectAccessReview`, in its parts.
pub(crate) const PATH: &[&str] =
    &["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"];

impl World {
    /// Answers a review.
    pub(super) fn review(&self, review: &Value) -> Answer {
        let request = reviewed(&review["spec"]["resourceAttributes"]);
        let forbids = |fault: &&Fault| fault.fits(&request) && *fault.effect() == Effect::Forbid;
        let mut answer = review.clone();
        answer["status"] = json!({"allowed": !self.faults.iter().any(|fault| forbids(&fault))});
        Answer::new(201, answer)
    }
}

/// A request that the attributes of a review stand for.
fn reviewed(attributes: &Value) -> ApiRequest {
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
