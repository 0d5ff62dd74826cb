//! HTTP handlers of the page.

use std::{net::IpAddr, sync::Arc};

use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HOST, HeaderName, HeaderValue,
        IF_NONE_MATCH, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
};
use tokio_util::sync::CancellationToken;
use windlass_host::causes;
use windlass_page::{Asset, Revision};

use super::{Authorizer, Feed, gate::AccessError};
use crate::{
    agents::{AgentClient, AgentError},
    server::{Handler, HttpResponse, plain, typed},
};

/// Access policy for readers.
pub(crate) enum AccessPolicy {
    /// Readers on this machine. The `Host` header must name this machine, which prevents DNS rebinding.
    Loopback,
    /// Readers whose token the API server accepts.
    BearerToken(Box<Authorizer>),
    /// All readers.
    Anonymous,
}

/// Request handler of the page.
pub(crate) struct PageHandler {
    pub(crate) feed: Arc<Feed>,
    pub(crate) access_policy: AccessPolicy,
    /// Access to agents, for details of a node; `Some` only in `windlass cluster page`. Requests to agents use the
    /// rights of this process, and only that command serves the user who started the process.
    pub(crate) agents: Option<AgentClient>,
    pub(crate) stop: CancellationToken,
}

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 3] = [
    (CONTENT_SECURITY_POLICY, windlass_page::CONTENT_SECURITY_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

// === impl PageHandler ===

impl Handler for PageHandler {
    async fn respond(&self, request: Request<Incoming>) -> HttpResponse {
        let mut response = self.page(&request).await;
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl PageHandler {
    async fn page(&self, request: &Request<Incoming>) -> HttpResponse {
        if request.method() != Method::GET {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "the page is read-only\n");
        }
        if matches!(self.access_policy, AccessPolicy::Loopback)
            && !has_loopback_host(request.headers())
        {
            return plain(
                StatusCode::FORBIDDEN,
                "open the page as http://localhost or http://127.0.0.1\n",
            );
        }
        let name = request.uri().path().trim_start_matches('/');
        if name == "state" {
            let after = request.uri().query().and_then(Revision::in_query);
            return self.state(request.headers(), after).await;
        }
        if let Some(node) = name.strip_prefix("node/").and_then(|it| it.strip_suffix("/state")) {
            return self.node(node).await;
        }
        match Asset::find(name) {
            Some(asset) => file(asset, request.headers()),
            None => plain(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    /// The state document of a node's agent.
    async fn node(&self, node: &str) -> HttpResponse {
        let Some(agents) = &self.agents else {
            return plain(
                StatusCode::NOT_FOUND,
                "details of a node are served only by `windlass cluster page`\n",
            );
        };
        match agents.state(node).await {
            Ok(text) => typed("application/json", text),
            Err(error @ AgentError::InvalidNode(_)) => {
                plain(StatusCode::NOT_FOUND, causes(&error) + "\n")
            }
            Err(error) => plain(StatusCode::BAD_GATEWAY, causes(&error) + "\n"),
        }
    }

    /// The cluster's state document: complete, or the changes after a revision. With a revision, waits for a change.
    async fn state(&self, headers: &HeaderMap, after: Option<&str>) -> HttpResponse {
        if let AccessPolicy::BearerToken(authorizer) = &self.access_policy
            && let Err(error) = authorizer.check(bearer(headers)).await
        {
            return refusal(&error);
        }
        if !self.feed.is_ready() {
            return retry_later("the cluster's objects are being read\n");
        }
        let document = self.feed.document(after, &self.stop).await;
        let mut response = typed("application/json", document);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// True if the `Host` header names this machine.
fn has_loopback_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn file(asset: &Asset, headers: &HeaderMap) -> HttpResponse {
    let etag = asset.etag();
    let cached = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if cached == Some(etag.as_str()) {
        let not_modified = Response::builder().status(StatusCode::NOT_MODIFIED);
        not_modified.body(Full::default()).expect("a constant status")
    } else {
        typed(asset.media_type, asset.text)
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, HeaderValue::try_from(etag).expect("hexadecimal digits"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn refusal(error: &AccessError) -> HttpResponse {
    let text = format!("{error}\n");
    match error {
        AccessError::Unauthenticated => {
            let mut response = plain(StatusCode::UNAUTHORIZED, text);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        AccessError::Forbidden { .. } => plain(StatusCode::FORBIDDEN, text),
        AccessError::ReviewFailed => retry_later(text),
    }
}

fn retry_later(text: impl Into<String>) -> HttpResponse {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    response
}
