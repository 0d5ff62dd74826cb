//! HTTP server of the extender, with optional TLS.
//!
//! | request | response |
//! | --- | --- |
//! | POST `…/filter`, `…/prioritize`, `…/preempt`, `…/bind` | a verb of the extender, under any prefix |
//! | GET `…/inspect`, `…/inspect/NODE` | gpushare's document of all nodes, or of one |
//! | GET `/healthz`, `/readyz` | alive; view complete and all rights granted |
//! | GET `/metrics` | OpenMetrics |

mod connections;
mod tls;
mod write_limit;

use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
};
use prometheus_client::registry::Registry;
use serde::{Serialize, de::DeserializeOwned};
use windlass_host::shared::Shared;

pub use self::tls::{TlsError, TlsFiles};
pub(crate) use self::{
    connections::{Handler, serve},
    tls::ReloadingAcceptor,
};
use crate::{extender::Extender, gpushare::Inspection, index::Index, metrics, rights::Rights};

/// Maximum size of a request in bytes. A request with the names of 15,000 nodes has about 500,000.
const MAX_BODY_BYTES: usize = 8 << 20;
/// Number of bytes after which the server stops reading a request that is too large.
const MAX_DISCARDED_BYTES: usize = 64 << 20;

/// State that the handlers share.
pub(crate) struct HandlerState {
    pub(crate) extender: Extender,
    pub(crate) index: Arc<Shared<Index>>,
    pub(crate) registry: Registry,
    pub(crate) rights: Arc<Rights>,
}

/// Paths that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedPaths {
    /// All paths.
    All,
    /// Only health and metrics, for clients without a certificate.
    Metrics,
}

/// The extender's handler of one listener.
pub(crate) struct ExtenderHandler {
    pub(crate) state: Arc<HandlerState>,
    pub(crate) served_paths: ServedPaths,
}

pub(crate) type HttpResponse = Response<Full<Bytes>>;

// === impl ExtenderHandler ===

impl Handler for ExtenderHandler {
    async fn respond(&self, request: Request<Incoming>) -> HttpResponse {
        let response = respond(&self.state, self.served_paths, request).await;
        response.unwrap_or_else(|refusal| refusal)
    }
}

/// The response to a request, or the refusal of its body.
async fn respond(
    state: &HandlerState,
    served: ServedPaths,
    request: Request<Incoming>,
) -> Result<HttpResponse, HttpResponse> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let (parent, last) = path.rsplit_once('/').unwrap_or(("", &path));
    let extender = &state.extender;
    let is_public = ["healthz", "readyz", "metrics"].contains(&last);
    if served == ServedPaths::Metrics && !is_public {
        return Ok(plain(StatusCode::NOT_FOUND, "only health and metrics are served here\n"));
    }
    Ok(match (request.method(), last) {
        (&Method::POST, "filter") => json(&extender.filter(&read_body(request).await?)),
        (&Method::POST, "prioritize") => {
            json(&extender.prioritize(&read_body(request).await?).await)
        }
        (&Method::POST, "preempt") => json(&extender.preempt(&read_body(request).await?)),
        (&Method::POST, "bind") => json(&extender.bind(read_body(request).await?).await),
        (&Method::GET, "healthz") => plain(StatusCode::OK, "ok\n"),
        (&Method::GET, "readyz") => match unready_reason(state) {
            None => plain(StatusCode::OK, "ok\n"),
            Some(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
        },
        (&Method::GET, "metrics") => {
            let text = metrics::encode(&state.registry);
            typed("application/openmetrics-text; version=1.0.0; charset=utf-8", text)
        }
        (&Method::GET, "inspect") => json(&state.index.with_lock(|it| Inspection::of(it, None))),
        (&Method::GET, node) if parent.ends_with("/inspect") => {
            json(&state.index.with_lock(|it| Inspection::of(it, Some(node))))
        }
        _ => plain(StatusCode::NOT_FOUND, "no such page: see `windlass cluster extend --help`\n"),
    })
}

/// Reason why the extender is not ready.
fn unready_reason(state: &HandlerState) -> Option<String> {
    state.rights.unready_reason().or_else(|| {
        let is_synced = state.index.with_lock(|index| index.is_synced());
        (!is_synced).then(|| "the cluster's objects are being read".to_owned())
    })
}

/// Reads the body of a verb. A body above `MAX_BODY_BYTES` is refused, but read up to `MAX_DISCARDED_BYTES`: a client
/// that is still sending would miss an early answer.
async fn read_body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, HttpResponse> {
    let (mut body, mut bytes, mut length) = (request.into_body(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            plain(StatusCode::BAD_REQUEST, format!("the request ended early: {error}\n"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&data);
        } else if length > MAX_DISCARDED_BYTES {
            break;
        }
    }
    if length > MAX_BODY_BYTES {
        let text = format!("the request has more than {MAX_BODY_BYTES} bytes\n");
        return Err(plain(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        let text = format!("no request of kube-scheduler's extender: {error}\n");
        plain(StatusCode::BAD_REQUEST, text)
    })
}

fn json(document: &impl Serialize) -> HttpResponse {
    typed("application/json", serde_json::to_vec(document).expect("plain data is JSON"))
}

pub(crate) fn plain(status: StatusCode, text: impl Into<String>) -> HttpResponse {
    let mut response = typed("text/plain; charset=utf-8", text.into().into_bytes());
    *response.status_mut() = status;
    response
}

pub(crate) fn typed(media_type: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let builder = Response::builder().header(CONTENT_TYPE, media_type);
    builder.body(Full::new(body.into())).expect("a constant header")
}
