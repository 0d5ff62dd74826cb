//! Errors of requests to the API server, with their remedies.

use std::{error::Error, time::Duration};

use kube::core::Status;
use windlass_host::abbreviate::prefix;

/// Error of a request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No API server is configured.
    #[error(
        "no access to an API server: name a kubeconfig, or run as a pod with an account's token"
    )]
    NoAccess(#[source] Box<dyn Error + Send + Sync>),
    /// The request or its answer was lost.
    #[error("{0}: the API server is not reachable")]
    Unreachable(String, #[source] kube::Error),
    /// The answer has an unexpected form.
    #[error("{0}: the API server's answer cannot be read")]
    InvalidResponse(String, #[source] kube::Error),
    /// The answer took too long.
    #[error("{0}: the API server did not answer within {1:?}")]
    DeadlineExceeded(String, Duration),
    /// The API server is too old.
    #[error("{0}: the API server has no resource.k8s.io/v1, which came with Kubernetes 1.34")]
    NoSuchApi(String),
    /// The API server refused.
    #[error("{0}: {message}{advice}", message = message(.1), advice = advice(.1))]
    Refused(String, Box<Status>),
}

/// Longest quoted message, in bytes. Messages of an API server are shorter; a proxy's page may be longer.
const MAX_MESSAGE_BYTES: usize = 500;

// === impl ClusterError ===

impl ClusterError {
    pub(super) fn of(context: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(context, status),
            source @ kube::Error::SerdeError(_) => Self::InvalidResponse(context, source),
            source => Self::Unreachable(context, source),
        }
    }

    /// The API server's answer, if it refused.
    pub(super) fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(_, status) => Some(status),
            _ => None,
        }
    }

    /// HTTP status of a refusal. It is set even if a proxy, or a server without the API, gives no reason.
    pub(super) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// True if the requested object does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }
}

/// True if a watch is too old to be resumed (HTTP 410).
pub(super) fn is_gone(status: &Status) -> bool {
    status.code == 410
}

/// True if another writer changed or created the object first.
pub(super) fn is_write_conflict(status: &Status) -> bool {
    status.is_conflict() || status.is_already_exists()
}

/// The answer's message. A proxy may send no message, or a whole page.
fn message(status: &Status) -> String {
    match status.message.trim() {
        "" => format!("the API server answered {}", status.code),
        message => prefix(message, MAX_MESSAGE_BYTES).to_owned(),
    }
}

fn advice(status: &Status) -> &'static str {
    let about_nodes = status.details.as_ref().is_some_and(|details| details.kind == "nodes");
    let about_namespace =
        status.details.as_ref().is_some_and(|details| details.kind == "namespaces");
    match status.code {
        401 => "; its token or certificate is not accepted",
        403 => "; apply deploy/rbac.yaml",
        404 if about_nodes => "; give the node's name with --node-name or NODE_NAME",
        404 if about_namespace => "; give another with --namespace",
        // An API server without the group `nfd.k8s-sigs.io` answers in plain text, without details.
        404 => "; a NodeFeature needs node-feature-discovery in the cluster",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(code: u16, about: &str, message: &str) -> String {
        let status = json!({"code": code, "message": message, "details": {"kind": about}});
        let status = serde_json::from_value(status).expect("a status");
        ClusterError::of("doing".to_owned(), kube::Error::Api(Box::new(status))).to_string()
    }

    #[test]
    fn a_refusal_names_its_remedy() {
        for (code, about, message, expected) in [
            (401, "", "Unauthorized", "Unauthorized; its token or certificate is not accepted"),
            (403, "nodes", "no", "no; apply deploy/rbac.yaml"),
            (
                404,
                "",
                "404 page not found\n",
                "404 page not found; a NodeFeature needs node-feature-discovery in the cluster",
            ),
            (404, "nodes", "n1?", "n1?; give the node's name with --node-name or NODE_NAME"),
            (404, "namespaces", "x?", "x?; give another with --namespace"),
            (500, "", "", "the API server answered 500"),
        ] {
            assert_eq!(refused(code, about, message), format!("doing: {expected}"));
        }
    }

    #[test]
    fn a_long_error_page_is_truncated() {
        assert_eq!(refused(502, "", &"ä".repeat(10_000)), format!("doing: {}", "ä".repeat(250)));
    }
}
