//! The page of a stage's metrics: one answer to every request, over HTTP/1.1.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// A page that listens.
#[derive(Debug)]
pub(super) struct Page {
    listener: TcpListener,
}

/// Longest head of a request; Prometheus' has half a kilobyte.
const MAX_HEAD: usize = 8192;

/// Longest time of a client, since one is answered at a time.
const PATIENCE: Duration = Duration::from_secs(2);

/// OpenMetrics 1.0, which Prometheus reads since 2.5.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// === impl Page ===

impl Page {
    pub(super) async fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self { listener })
    }

    /// Answers one client after the other.
    pub(super) async fn serve(self, registry: &Registry) {
        loop {
            match self.listener.accept().await {
                Ok((mut stream, _)) => tokio::select! {
                    // A client that leaves early needs no answer.
                    _ = answer(&mut stream, registry) => {}
                    () = sleep(PATIENCE) => {}
                },
                // Most likely out of descriptors; other connections end meanwhile.
                Err(_) => sleep(PATIENCE).await,
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
    let (status, kind, body) = if head.starts_with(b"GET /metrics ") {
        let mut text = String::new();
        encode(&mut text, registry).map_err(io::Error::other)?;
        ("200 OK", TYPE, text)
    } else {
        ("404 Not Found", "text/plain", "see /metrics\n".to_owned())
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
