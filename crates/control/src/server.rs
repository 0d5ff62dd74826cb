//! HTTP server of the extender, with optional TLS.
//!
//! | request | answer |
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
    connections::{Site, serve},
    tls::TlsAcceptors,
};
use crate::{extender::Extender, gpushare::Inspection, index::Index, metrics, rights::Rights};

/// Maximum size of a request in bytes. One with the names of 15,000 nodes has about half a million.
const MAX_BODY: usize = 8 << 20;
/// Number of bytes after which reading a too large request is given up.
const MAX_DISCARDED: usize = 64 << 20;

/// State behind the handlers.
pub(crate) struct Pages {
    pub(crate) extender: Extender,
    pub(crate) index: Arc<Shared<Index>>,
    pub(crate) registry: Registry,
    pub(crate) rights: Arc<Rights>,
}

/// Paths that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// All.
    All,
    /// Health and metrics, for clients without a certificate.
    Metrics,
}

/// The extender's answers on one listener.
pub(crate) struct Verbs {
    pub(crate) pages: Arc<Pages>,
    pub(crate) served: Served,
}

pub(crate) type Answer = Response<Full<Bytes>>;

// === impl Verbs ===

impl Site for Verbs {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        answer(&self.pages, self.served, request).await
    }
}

async fn answer(pages: &Pages, served: Served, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let (before, last) = path.rsplit_once('/').unwrap_or(("", &path));
    let extender = &pages.extender;
    let is_open = ["healthz", "readyz", "metrics"].contains(&last);
    if served == Served::Metrics && !is_open {
        return plain(StatusCode::NOT_FOUND, "only health and metrics are served here\n");
    }
    match (request.method(), last) {
        (&Method::POST, "filter") => match read(request).await {
            Ok(args) => json(&extender.filter(&args)),
            Err(answer) => answer,
        },
        (&Method::POST, "prioritize") => match read(request).await {
            Ok(args) => json(&extender.prioritize(&args).await),
            Err(answer) => answer,
        },
        (&Method::POST, "preempt") => match read(request).await {
            Ok(args) => json(&extender.preempt(&args)),
            Err(answer) => answer,
        },
        (&Method::POST, "bind") => match read(request).await {
            Ok(args) => json(&extender.bind(args).await),
            Err(answer) => answer,
        },
        (&Method::GET, "healthz") => plain(StatusCode::OK, "ok\n"),
        (&Method::GET, "readyz") => match obstacle(pages) {
            None => plain(StatusCode::OK, "ok\n"),
            Some(obstacle) => plain(StatusCode::SERVICE_UNAVAILABLE, obstacle + "\n"),
        },
        (&Method::GET, "metrics") => {
            let page = metrics::page(&pages.registry);
            typed("application/openmetrics-text; version=1.0.0; charset=utf-8", page)
        }
        (&Method::GET, "inspect") => json(&pages.index.step(|it| Inspection::of(it, None))),
        (&Method::GET, node) if before.ends_with("/inspect") => {
            json(&pages.index.step(|it| Inspection::of(it, Some(node))))
        }
        _ => plain(StatusCode::NOT_FOUND, "no such page: see `windlass cluster extend --help`\n"),
    }
}

/// Reason why the extender is not ready.
fn obstacle(pages: &Pages) -> Option<String> {
    pages.rights.obstacle().or_else(|| {
        let is_synced = pages.index.step(|index| index.is_synced());
        (!is_synced).then(|| "the cluster's objects are being read".to_owned())
    })
}

/// Reads the body of a verb. A too large body is still read, because a client that is sending would miss an early
/// answer.
async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Answer> {
    let (mut body, mut bytes, mut length) = (request.into_body(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            plain(StatusCode::BAD_REQUEST, format!("the request ended early: {error}\n"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length <= MAX_BODY {
            bytes.extend_from_slice(&data);
        } else if length > MAX_DISCARDED {
            break;
        }
    }
    if length > MAX_BODY {
        let text = format!("the request has more than {MAX_BODY} bytes\n");
        return Err(plain(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        let text = format!("no request of kube-scheduler's extender: {error}\n");
        plain(StatusCode::BAD_REQUEST, text)
    })
}

fn json(document: &impl Serialize) -> Answer {
    typed("application/json", serde_json::to_vec(document).expect("plain data is JSON"))
}

pub(crate) fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = typed("text/plain; charset=utf-8", text.into().into_bytes());
    *answer.status_mut() = status;
    answer
}

pub(crate) fn typed(media: &'static str, body: impl Into<Bytes>) -> Answer {
    let answer = Response::builder().header(CONTENT_TYPE, media);
    answer.body(Full::new(body.into())).expect("a constant header")
}
