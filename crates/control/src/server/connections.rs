//! Accept loop of a listener, with one task per connection.

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

use super::{HttpResponse, tls::ReloadingAcceptor, write_limit::WriteLimit};
use crate::facts::MAX_WAITING;

/// Maximum number of connections of a listener. Each pod that waits for its gang has one, kube-scheduler keeps a few
/// more, and each reader of the page has one or two.
const MAX_CONNECTIONS: usize = MAX_WAITING + 256;
/// Time limit for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for an answer, from its first write that blocks: enough for ten megabytes over a slow line. Until then, a
/// client that does not read keeps its version of the page's document in memory.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// Pause after a failed accept. Without free file descriptors, an immediate retry would fail too.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Time limit for open requests at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Request handler of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn respond(&self, request: Request<Incoming>) -> impl Future<Output = HttpResponse> + Send;
}

/// Serves connections until stopped, then completes open requests within `DRAIN_LIMIT`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<ReloadingAcceptor>,
    handler: impl Handler,
    stop: CancellationToken,
) {
    let (slots, tls) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), tls.map(Arc::new));
    let handler = Arc::new(handler);
    let mut connections = JoinSet::new();
    loop {
        let result = tokio::select! {
            () = stop.cancelled() => break,
            result = listener.accept() => result,
        };
        while connections.try_join_next().is_some() {}
        let stream = match result {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        // Above the limit a connection is closed at once.
        let Ok(permit) = slots.clone().try_acquire_owned() else { continue };
        let (tls, handler, stop) = (tls.clone(), handler.clone(), stop.clone());
        connections.spawn(async move {
            match tls {
                None => serve_connection(stream, handler, stop).await,
                Some(tls) => match timeout(HEAD_LIMIT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve_connection(stream, handler, stop).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake too slow"),
                },
            }
            drop(permit);
        });
    }
    let _ = timeout(DRAIN_LIMIT, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<impl Handler>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(handler.respond(request).await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(WriteLimit::new(stream, WRITE_LIMIT)), service)
    );
    tokio::select! {
        ended = connection.as_mut() => drop(ended),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::{Response, body::Bytes};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    /// A handler that serves one document.
    struct Document(Bytes);

    impl Handler for Document {
        async fn respond(&self, _: Request<Incoming>) -> HttpResponse {
            Response::new(Full::new(self.0.clone()))
        }
    }

    const READERS: usize = 20;
    const MIB: usize = 1 << 20;

    /// Clients that have sent a request, and the tasks of their connections.
    async fn request_document(document: &Bytes) -> (Vec<DuplexStream>, JoinSet<()>) {
        let handler = Arc::new(Document(document.clone()));
        let (mut readers, mut connections) = (Vec::new(), JoinSet::new());
        for _ in 0..READERS {
            let (mut reader, stream) = duplex(1 << 10);
            reader.write_all(b"GET /state HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
            connections.spawn(serve_connection(stream, handler.clone(), CancellationToken::new()));
            readers.push(reader);
        }
        (readers, connections)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let document = Bytes::from(vec![b'x'; MIB]);
        let start = Instant::now();
        let (readers, mut connections) = request_document(&document).await;
        while connections.join_next().await.is_some() {}
        assert_eq!(start.elapsed(), WRITE_LIMIT);
        assert!(document.is_unique(), "no connection holds the document");
        drop(readers);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_served_and_a_stalling_one_is_not() {
        for (pause, is_served) in [(Duration::from_millis(10), true), (HEAD_LIMIT / 10, false)] {
            let document = Bytes::from(vec![b'x'; MIB]);
            let (mut readers, mut connections) = request_document(&document).await;
            let (mut reader, mut received, mut buffer) =
                (readers.pop().expect("at least one reader"), 0, [0_u8; 1 << 10]);
            drop(readers);
            while received < MIB {
                sleep(pause).await;
                match reader.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => received += count,
                }
            }
            assert_eq!(received >= MIB, is_served, "{received} bytes");
            drop(reader);
            while connections.join_next().await.is_some() {}
            assert!(document.is_unique());
        }
    }
}
