//! Authentication and authorization of readers: the API server reviews their tokens and rights.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use windlass_host::{causes, shared::Shared};

use crate::access::REQUEST_TIMEOUT;

/// Time for which a decision is cached.
const CACHE_TTL: Duration = Duration::from_secs(60);
/// Maximum number of cached decisions.
const MAX_CACHED: usize = 1_000;
/// Maximum number of concurrent reviews by the API server.
const MAX_REVIEWS: usize = 4;
/// Resources that the page shows. An account that may list these in all namespaces may read the page. Claims need no
/// right: the page shows only their names, with their pods.
const REQUIRED_RESOURCES: [&str; 2] = ["nodes", "pods"];

/// Access control for readers, with a cache of decisions.
pub(crate) struct Authorizer {
    client: Client,
    /// By keyed hash of the token: tokens themselves are not stored.
    decisions: Shared<HashMap<u64, Decision>>,
    hasher: RandomState,
    /// Limits concurrent reviews.
    reviews: Semaphore,
    /// True if the last review failed, so that only the first failure is logged.
    is_failing: Shared<bool>,
}

/// A decision and its time.
type Decision = (Instant, Result<(), AccessError>);

/// Reason why a reader is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AccessError {
    /// The token is missing or invalid.
    #[error("a token of this cluster is needed")]
    Unauthenticated,
    /// The account may not read.
    #[error("{user} may not list {resource} of all namespaces")]
    Forbidden {
        /// Name of the account.
        user: String,
        /// The first resource that it may not list.
        resource: &'static str,
    },
    /// The review failed.
    #[error("the API server did not review your token: try again")]
    ReviewFailed,
}

// === impl Authorizer ===

impl Authorizer {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            decisions: Shared::default(),
            hasher: RandomState::new(),
            reviews: Semaphore::new(MAX_REVIEWS),
            is_failing: Shared::default(),
        }
    }

    /// Checks that the bearer of a token may read.
    pub(super) async fn check(&self, token: Option<&str>) -> Result<(), AccessError> {
        let token = token.filter(|token| !token.is_empty()).ok_or(AccessError::Unauthenticated)?;
        let key = self.hasher.hash_one(token);
        let now = Instant::now();
        let cached = self.decisions.with_lock(|decisions| decisions.get(&key).cloned());
        if let Some((decided_at, decision)) = cached
            && now - decided_at < CACHE_TTL
        {
            return decision;
        }
        let Ok(decision) = timeout(REQUEST_TIMEOUT, self.review(token)).await else {
            return Err(AccessError::ReviewFailed);
        };
        let decision = decision?;
        // Invalid tokens are not cached, because their number is unbounded.
        if decision == Err(AccessError::Unauthenticated) {
            return decision;
        }
        self.decisions.with_lock(|decisions| {
            if decisions.len() >= MAX_CACHED {
                decisions.retain(|_, (decided_at, _)| now - *decided_at < CACHE_TTL);
            }
            if decisions.len() < MAX_CACHED {
                decisions.insert(key, (now, decision.clone()));
            }
        });
        decision
    }

    /// Reviews a token. Few reviews run at a time, because they use the same API server quota as binds.
    async fn review(&self, token: &str) -> Result<Result<(), AccessError>, AccessError> {
        let _permit = self.reviews.acquire().await.map_err(|_| AccessError::ReviewFailed)?;
        let answer = self.request_reviews(token).await;
        let was_failing =
            self.is_failing.with_lock(|is_failing| std::mem::replace(is_failing, answer.is_err()));
        answer.map_err(|error| {
            if !was_failing {
                tracing::warn!(error = causes(&error), "readers of the page cannot be checked");
            }
            AccessError::ReviewFailed
        })
    }

    /// Asks the API server for the token's user, and for the user's rights.
    async fn request_reviews(&self, token: &str) -> kube::Result<Result<(), AccessError>> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status;
        let status = status.filter(|status| status.authenticated == Some(true));
        let Some(user) = status.and_then(|status| status.user) else {
            return Ok(Err(AccessError::Unauthenticated));
        };
        for resource in REQUIRED_RESOURCES {
            if !self.may_list(&user, resource).await? {
                let user = user.username.unwrap_or_default();
                return Ok(Err(AccessError::Forbidden { user, resource }));
            }
        }
        Ok(Ok(()))
    }

    async fn may_list(&self, user: &UserInfo, resource: &str) -> kube::Result<bool> {
        let attributes = ResourceAttributes {
            resource: Some(resource.to_owned()),
            verb: Some("list".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http_body_util::{BodyExt as _, Full};
    use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use serde_json::{Value, json};
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;

    /// An API server with two accounts: alice may list everything, bob only pods.
    struct Reviews {
        review_count: Arc<AtomicUsize>,
        authorizer: Authorizer,
        _server: JoinSet<()>,
    }

    impl Reviews {
        async fn start() -> Self {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
            let url = format!("http://{}", listener.local_addr().expect("bound"));
            let config = kube::Config::new(url.parse().expect("a URL"));
            let review_count = Arc::new(AtomicUsize::new(0));
            let mut server = JoinSet::new();
            let counter = review_count.clone();
            server.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let counter = counter.clone();
                    let service = service_fn(move |request| review(request, counter.clone()));
                    let serve =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    connections.spawn(async move { drop(serve.await) });
                }
            });
            let client = Client::try_from(config).expect("a client");
            Self { review_count, authorizer: Authorizer::new(client), _server: server }
        }

        async fn check(&self, token: Option<&str>) -> String {
            match self.authorizer.check(token).await {
                Ok(()) => "may read".to_owned(),
                Err(error) => error.to_string(),
            }
        }
    }

    async fn review(
        request: Request<Incoming>,
        review_count: Arc<AtomicUsize>,
    ) -> Result<Response<Full<hyper::body::Bytes>>, hyper::Error> {
        review_count.fetch_add(1, Ordering::Relaxed);
        let body = request.into_body().collect().await?.to_bytes();
        let mut review: Value = serde_json::from_slice(&body).expect("JSON");
        let spec = &review["spec"];
        let status = match review["kind"].as_str() {
            Some("TokenReview") => match spec["token"].as_str() {
                Some(user @ ("alice" | "bob")) => {
                    json!({"authenticated": true, "user": {"username": user, "groups": ["g"]}})
                }
                _ => json!({"authenticated": false}),
            },
            Some("SubjectAccessReview") => {
                assert_eq!(spec["groups"], json!(["g"]), "{spec}");
                let attributes = &spec["resourceAttributes"];
                assert_eq!(attributes["verb"], "list");
                json!({"allowed": spec["user"] == "alice" || attributes["resource"] == "pods"})
            }
            kind => panic!("unexpected kind {kind:?}"),
        };
        review["status"] = status;
        Ok(Response::new(Full::from(review.to_string())))
    }

    #[tokio::test]
    async fn accounts_that_may_list_nodes_and_pods_may_read() {
        let reviews = Reviews::start().await;
        assert_eq!(reviews.check(Some("alice")).await, "may read");
        assert_eq!(reviews.check(Some("bob")).await, "bob may not list nodes of all namespaces");
        for token in [None, Some(""), Some("mallory")] {
            assert_eq!(reviews.check(token).await, "a token of this cluster is needed");
        }
    }

    #[tokio::test]
    async fn a_decision_is_cached_for_a_minute_and_a_failed_review_is_not() {
        let reviews = Reviews::start().await;
        for _ in 0..3 {
            reviews.check(Some("alice")).await;
        }
        assert_eq!(reviews.review_count.load(Ordering::Relaxed), 3, "one token, nodes, pods");
        tokio::time::pause();
        tokio::time::advance(CACHE_TTL).await;
        tokio::time::resume();
        reviews.check(Some("alice")).await;
        assert_eq!(reviews.review_count.load(Ordering::Relaxed), 6);
        let unreachable = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let authorizer = Authorizer::new(Client::try_from(unreachable).expect("a client"));
        assert_eq!(authorizer.check(Some("alice")).await, Err(AccessError::ReviewFailed));
    }
}
