//! HTTP server of the extender, with TLS where it is configured.
//!
//! | request | answer |
//! | --- | --- |
//! | POST `…/filter`, `…/prioritize`, `…/preempt`, `…/bind` | a verb of the extender, under any prefix |
//! | GET `…/inspect`, `…/inspect/NODE` | gpushare's document of all nodes, or of one |
//! | GET `/healthz`, `/readyz` | the process lives; its view is complete |
//! | GET `/metrics` | OpenMetrics |

mod tls;

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_host::shared::Shared;

pub(crate) use self::tls::TlsAcceptors;
pub use self::tls::{TlsError, TlsFiles};
use crate::{extender::Extender, gpushare::Inspection, index::Index, metrics};

/// Most bytes of a request: 15,000 names of nodes have half a million.
const MAX_BODY: usize = 8 << 20;
/// Most bytes that are read of a request that is too long.
const MAX_DISCARDED: usize = 64 << 20;
/// Most connections at a time; kube-scheduler keeps a few.
const MAX_CONNECTIONS: usize = 256;
/// Time for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: without descriptors the next one fails too.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Time for open requests at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Everything that pages are made from.
pub(crate) struct Pages {
    pub(crate) extender: Extender,
    pub(crate) index: Arc<Shared<Index>>,
    pub(crate) registry: Registry,
}

/// Pages of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// All.
    All,
    /// Health and metrics, for clients without a certificate.
    Metrics,
}

type Answer = Response<Full<Bytes>>;

/// Serves connections until stopped, then lets open requests end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptors>,
    pages: (Arc<Pages>, Served),
    stop: CancellationToken,
) {
    let (room, tls) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), tls.map(Arc::new));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        // Beyond the limit a connection is closed at once.
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (tls, pages, stop) = (tls.clone(), pages.clone(), stop.clone());
        connections.spawn(async move {
            match tls {
                None => converse(stream, pages, stop).await,
                Some(tls) => match timeout(HEAD_LIMIT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, pages, stop).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake too slow"),
                },
            }
            drop(permit);
        });
    }
    let _ = timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (pages, served): (Arc<Pages>, Served),
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(answer(&pages, served, request).await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        ended = connection.as_mut() => drop(ended),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
    }
}

async fn answer(pages: &Pages, served: Served, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let (before, last) = path.rsplit_once('/').unwrap_or(("", &path));
    let extender = &pages.extender;
    let is_open = ["healthz", "readyz", "metrics"].contains(&last);
    if served == Served::Metrics && !is_open {
        return plain(StatusCode::NOT_FOUND, "health and metrics alone are served here\n");
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
        (&Method::GET, "readyz") if pages.index.step(|index| index.is_synced()) => {
            plain(StatusCode::OK, "ok\n")
        }
        (&Method::GET, "readyz") => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "the cluster's objects are being read\n")
        }
        (&Method::GET, "metrics") => {
            let page = metrics::page(&pages.registry);
            typed("application/openmetrics-text; version=1.0.0; charset=utf-8", page.into())
        }
        (&Method::GET, "inspect") => json(&pages.index.step(|it| Inspection::of(it, None))),
        (&Method::GET, node) if before.ends_with("/inspect") => {
            json(&pages.index.step(|it| Inspection::of(it, Some(node))))
        }
        _ => plain(StatusCode::NOT_FOUND, "no such page: see `windlass cluster extend --help`\n"),
    }
}

/// Reads the body of a verb. One that is too long is read to its end, lest the client miss the answer while it sends.
async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Answer> {
    let (mut body, mut bytes, mut length) = (request.into_body(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            plain(StatusCode::BAD_REQUEST, format!("the request broke off: {error}\n"))
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

fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = typed("text/plain; charset=utf-8", text.into().into_bytes());
    *answer.status_mut() = status;
    answer
}

fn typed(media: &'static str, body: Vec<u8>) -> Answer {
    let answer = Response::builder().header(CONTENT_TYPE, media);
    answer.body(Full::new(Bytes::from(body))).expect("a constant header")
}

/// Binds the address, so that a wrong one fails before anything starts.
pub(crate) async fn listen(address: std::net::SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}
