//! Why a request to the API server failed, and what would mend it.

use std::{error::Error, time::Duration};

use kube::core::Status;

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is nobody to ask.
    #[error(
        "no access to an API server: name a kubeconfig, or run as a pod with an account's token"
    )]
    NoAccess(#[source] Box<dyn Error + Send + Sync>),
    /// The request or its answer did not get through.
    #[error("{doing}: the API server cannot be asked")]
    Unreachable {
        /// What was being done.
        doing: String,
        /// What came in between.
        source: kube::Error,
    },
    /// The answer took too long.
    #[error("{doing}: the API server did not answer within {limit:?}")]
    Late {
        /// What was being done.
        doing: String,
        /// How long it had.
        limit: Duration,
    },
    /// The API server said no.
    #[error("{doing}: {}{}", said(.status), advice(.status))]
    Refused {
        /// What was being done.
        doing: String,
        /// Its answer.
        status: Box<Status>,
    },
}

// === impl ClusterError ===

impl ClusterError {
    pub(super) fn of(doing: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { doing, status },
            source => Self::Unreachable { doing, source },
        }
    }

    /// The API server's answer, if there was one.
    pub(super) fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether what was asked for is not there.
    pub(super) fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }
}

/// The answer's own words; what is no API server may have none.
fn said(status: &Status) -> String {
    match status.message.trim() {
        "" => format!("the API server answered {}", status.code),
        message => message.to_owned(),
    }
}

fn advice(status: &Status) -> &'static str {
    let about_nodes = status.details.as_ref().is_some_and(|about| about.kind == "nodes");
    let about_namespace = status.details.as_ref().is_some_and(|about| about.kind == "namespaces");
    match status.code {
        401 => "; its token or certificate is not accepted",
        403 => "; deploy/rbac.yaml has what it takes",
        404 if about_nodes => "; give the node's name with --node-name or NODE_NAME",
        404 if about_namespace => "; give another with --namespace",
        // The API server knows no such group: it answers in plain text, about nothing.
        404 => "; a NodeFeature needs node-feature-discovery in the cluster",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;

    use super::*;

    #[test]
    fn a_refusal_says_what_would_mend_it() {
        let about =
            |kind: &str| StatusDetails { kind: kind.to_owned(), ..StatusDetails::default() };
        for (code, details, message, expected) in [
            (
                401,
                None,
                "Unauthorized",
                "doing: Unauthorized; its token or certificate is not accepted",
            ),
            (403, None, "no", "doing: no; deploy/rbac.yaml has what it takes"),
            (
                404,
                None,
                "404 page not found\n",
                "doing: 404 page not found; a NodeFeature needs node-feature-discovery in the cluster",
            ),
            (
                404,
                Some(about("nodes")),
                "n1 not found",
                "doing: n1 not found; give the node's name with --node-name or NODE_NAME",
            ),
            (
                404,
                Some(about("namespaces")),
                "x not found",
                "doing: x not found; give another with --namespace",
            ),
            (500, None, "", "doing: the API server answered 500"),
        ] {
            let message = message.to_owned();
            let status = Box::new(Status { code, details, message, ..Status::default() });
            let error = ClusterError::of("doing".to_owned(), kube::Error::Api(status));
            assert_eq!(error.to_string(), expected);
        }
    }
}
