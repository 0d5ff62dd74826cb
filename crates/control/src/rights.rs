//! Check of the extender's own rights before it reports ready. Without this check, a missing right would first show
//! when a bind is refused.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};
use tokio::time::sleep;
use windlass_host::shared::Shared;

/// Pause between two checks, while rights are missing or the API server does not answer.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A right, in all namespaces or in one.
pub(crate) struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    is_namespaced: bool,
}

/// Rights of the extender. Those on Leases are for the Lease's namespace.
const REQUIRED: [Right; 9] = [
    Right { verb: "list", group: "", resource: "nodes", subresource: "", is_namespaced: false },
    Right { verb: "watch", group: "", resource: "nodes", subresource: "", is_namespaced: false },
    Right { verb: "get", group: "", resource: "pods", subresource: "", is_namespaced: false },
    Right { verb: "list", group: "", resource: "pods", subresource: "", is_namespaced: false },
    Right { verb: "watch", group: "", resource: "pods", subresource: "", is_namespaced: false },
    Right {
        verb: "create",
        group: "",
        resource: "pods",
        subresource: "binding",
        is_namespaced: false,
    },
    Right::of_lease("get"),
    Right::of_lease("create"),
    Right::of_lease("update"),
];

/// Result of the last check.
#[derive(Debug, Default)]
pub(crate) struct Rights(Shared<CheckResult>);

#[derive(Clone, Debug, Default)]
enum CheckResult {
    #[default]
    Unchecked,
    Missing(Vec<String>),
    Granted,
}

// === impl Right ===

impl Right {
    const fn of_lease(verb: &'static str) -> Self {
        Self::in_namespace(verb, "coordination.k8s.io", "leases", "")
    }

    pub(crate) const fn in_namespace(
        verb: &'static str,
        group: &'static str,
        resource: &'static str,
        subresource: &'static str,
    ) -> Self {
        Self { verb, group, resource, subresource, is_namespaced: true }
    }

    fn review(&self, namespace: &str) -> SelfSubjectAccessReview {
        let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: non_empty(self.verb),
            group: non_empty(self.group),
            resource: non_empty(self.resource),
            subresource: non_empty(self.subresource),
            namespace: non_empty(if self.is_namespaced { namespace } else { "" }),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
    }

    /// The right as text, with verb and resource as in `kubectl auth can-i`.
    fn to_text(&self, namespace: &str) -> String {
        let subresource = Some(self.subresource).filter(|it| !it.is_empty());
        let subresource = subresource.map(|it| format!("/{it}")).unwrap_or_default();
        let scope = if self.is_namespaced { format!(" in {namespace}") } else { String::new() };
        format!("{} {}{subresource}{scope}", self.verb, self.resource)
    }
}

// === impl Rights ===

impl Rights {
    /// Repeats the check until all rights are granted.
    pub(crate) async fn check_until_granted(&self, client: kube::Client, namespace: &str) {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
        loop {
            match missing_rights(&reviews, namespace, &REQUIRED).await {
                Ok(missing) if missing.is_empty() => break,
                Ok(missing) => {
                    let is_changed = self.0.with_lock(|result| {
                        let is_changed =
                            !matches!(result, CheckResult::Missing(last) if *last == missing);
                        *result = CheckResult::Missing(missing.clone());
                        is_changed
                    });
                    if is_changed {
                        let missing = missing.join(", ");
                        tracing::warn!(missing, "not ready: the account lacks rights");
                    }
                }
                // If the API server lacks or refuses reviews, the rights cannot be checked and count as granted.
                Err(kube::Error::Api(status)) if [403, 404, 405].contains(&status.code) => break,
                Err(error) => tracing::debug!(%error, "rights not checked yet"),
            }
            sleep(CHECK_INTERVAL).await;
        }
        self.0.with_lock(|result| *result = CheckResult::Granted);
    }

    /// Reason why the extender is not ready; `None` once it has all rights.
    pub(crate) fn unready_reason(&self) -> Option<String> {
        match self.0.with_lock(|result| result.clone()) {
            CheckResult::Granted => None,
            CheckResult::Unchecked => Some("the account's rights are being checked".to_owned()),
            CheckResult::Missing(missing) => {
                let missing = missing.join(", ");
                Some(format!("the account may not {missing}: apply deploy/scheduler/extender.yaml"))
            }
        }
    }
}

/// Rights that the account lacks, as text.
pub(crate) async fn missing_rights(
    reviews: &Api<SelfSubjectAccessReview>,
    namespace: &str,
    required: &[Right],
) -> kube::Result<Vec<String>> {
    let mut missing = Vec::new();
    for right in required {
        let answer = reviews.create(&PostParams::default(), &right.review(namespace)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(right.to_text(namespace));
        }
    }
    Ok(missing)
}
