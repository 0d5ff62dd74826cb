//! Rights of the extender's account, asked before it says that it is ready: a bind that the API server refuses is found
//! too late.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};
use tokio::time::sleep;
use windlass_host::shared::Shared;

/// Pause before the rights are asked for again, while some are missing or the API server does not answer.
const PAUSE: Duration = Duration::from_secs(5);

/// A right that the extender needs, in all namespaces or in that of its Lease.
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    of_lease: bool,
}

const NEEDED: [Right; 9] = [
    Right { verb: "list", group: "", resource: "nodes", subresource: "", of_lease: false },
    Right { verb: "watch", group: "", resource: "nodes", subresource: "", of_lease: false },
    Right { verb: "get", group: "", resource: "pods", subresource: "", of_lease: false },
    Right { verb: "list", group: "", resource: "pods", subresource: "", of_lease: false },
    Right { verb: "watch", group: "", resource: "pods", subresource: "", of_lease: false },
    Right { verb: "create", group: "", resource: "pods", subresource: "binding", of_lease: false },
    Right::of_lease("get"),
    Right::of_lease("create"),
    Right::of_lease("update"),
];

/// The rights, if known.
#[derive(Debug, Default)]
pub(crate) struct Rights(Shared<Known>);

#[derive(Clone, Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Missing(Vec<String>),
    All,
}

// === impl Right ===

impl Right {
    const fn of_lease(verb: &'static str) -> Self {
        let (group, resource) = ("coordination.k8s.io", "leases");
        Self { verb, group, resource, subresource: "", of_lease: true }
    }

    fn review(&self, namespace: &str) -> SelfSubjectAccessReview {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: some(self.verb),
            group: some(self.group),
            resource: some(self.resource),
            subresource: some(self.subresource),
            namespace: some(if self.of_lease { namespace } else { "" }),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
    }

    /// As `kubectl auth can-i` takes it.
    fn in_words(&self, namespace: &str) -> String {
        let subresource = Some(self.subresource).filter(|it| !it.is_empty());
        let subresource = subresource.map(|it| format!("/{it}")).unwrap_or_default();
        let place = if self.of_lease { format!(" in {namespace}") } else { String::new() };
        format!("{} {}{subresource}{place}", self.verb, self.resource)
    }
}

// === impl Rights ===

impl Rights {
    /// Asks until all rights are there, and keeps what is known.
    pub(crate) async fn follow(&self, client: kube::Client, namespace: &str) {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
        loop {
            match missing(&reviews, namespace).await {
                Ok(missing) if missing.is_empty() => break,
                Ok(missing) => {
                    let is_news = self.0.step(|known| {
                        let is_news =
                            !matches!(known, Known::Missing(before) if *before == missing);
                        *known = Known::Missing(missing.clone());
                        is_news
                    });
                    if is_news {
                        let missing = missing.join(", ");
                        tracing::warn!(missing, "not ready: the account lacks rights");
                    }
                }
                // A server that serves no reviews, or refuses them, cannot say more.
                Err(kube::Error::Api(status)) if [403, 404, 405].contains(&status.code) => break,
                Err(error) => tracing::debug!(%error, "rights not known yet"),
            }
            sleep(PAUSE).await;
        }
        self.0.step(|known| *known = Known::All);
    }

    /// Reason why the extender is not ready; none once it has all rights.
    pub(crate) fn obstacle(&self) -> Option<String> {
        match self.0.step(|known| known.clone()) {
            Known::All => None,
            Known::Nothing => Some("the account's rights are being asked for".to_owned()),
            Known::Missing(missing) => {
                let missing = missing.join(", ");
                Some(format!("the account may not {missing}: apply deploy/scheduler/extender.yaml"))
            }
        }
    }
}

/// Rights that the account lacks, in words.
async fn missing(
    reviews: &Api<SelfSubjectAccessReview>,
    namespace: &str,
) -> kube::Result<Vec<String>> {
    let mut missing = Vec::new();
    for right in &NEEDED {
        let answer = reviews.create(&PostParams::default(), &right.review(namespace)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(right.in_words(namespace));
        }
    }
    Ok(missing)
}
