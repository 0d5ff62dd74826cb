//! HTTP/1.1 server of a stage's metrics, one request per connection.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// Listener of the server.
#[derive(Debug)]
pub(super) struct MetricsServer {
    listener: TcpListener,
}

/// Maximum size of a request's head in bytes. Prometheus sends half a kilobyte.
const MAX_HEAD: usize = 8192;

/// Time limit for a client, because one is served at a time.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);

/// Media type of OpenMetrics 1.0, which Prometheus reads since 2.5.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// === impl MetricsServer ===

impl MetricsServer {
    pub(super) async fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self { listener })
    }

    /// Serves one client after another, forever.
    pub(super) async fn serve(self, registry: &Registry) {
        loop {
            match self.listener.accept().await {
                Ok((mut stream, _)) => tokio::select! {
                    // A client that disconnects early needs no answer.
                    _ = answer(&mut stream, registry) => {}
                    () = sleep(CLIENT_LIMIT) => {}
                },
                // The process is most likely out of descriptors. Back off while other connections end.
                Err(_) => sleep(CLIENT_LIMIT).await,
            }
        }
    }
}

async fn answer(stream: &mut TcpStream, registry: &Registry) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, content_type, body) = if head.starts_with(b"GET /metrics ") {
        let mut text = String::new();
        encode(&mut text, registry).map_err(io::Error::other)?;
        ("200 OK", OPENMETRICS, text)
    } else {
        ("404 Not Found", "text/plain", "see /metrics\n".to_owned())
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
