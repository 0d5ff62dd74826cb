//! Connections of a listener, each with one task.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Answer, tls::TlsAcceptors};

/// Most connections of a listener at a time; kube-scheduler keeps a few, and each reader of the page one or two.
const MAX_CONNECTIONS: usize = 256;
/// Time for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted: without descriptors the next one fails too.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Time for open requests at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Answers of a listener.
pub(crate) trait Site: Send + Sync + 'static {
    /// Answers one request.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Answer> + Send;
}

/// Serves connections until stopped, then lets open requests end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptors>,
    site: impl Site,
    stop: CancellationToken,
) {
    let (room, tls) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), tls.map(Arc::new));
    let site = Arc::new(site);
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
        let (tls, site, stop) = (tls.clone(), site.clone(), stop.clone());
        connections.spawn(async move {
            match tls {
                None => converse(stream, site, stop).await,
                Some(tls) => match timeout(HEAD_LIMIT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, site, stop).await,
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
    site: Arc<impl Site>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(request).await) }
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
