//! gRPC server settings, and connections that survive many cancelled calls.
//!
//! A caller cancels a call with `RST_STREAM`. h2 reads all available bytes of a connection before it hands calls to
//! the server. If more than 20 of these calls are cancelled already, h2 closes the connection
//! (`max_pending_accept_reset_streams`, against CVE-2023-44487). A plugin without processor time would lose its
//! `ListAndWatch` stream that way. So this server disables h2's limit, and bounds the queued calls itself: a
//! [`Connection`] is read once per poll.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    task::coop::poll_proceed,
};
use tonic::transport::{Server, server::Connected};

/// Limit of concurrent calls per connection; further calls wait (RFC 9113, section 5.1.2). A kubelet has one
/// `ListAndWatch`, one `Allocate`, and one call per starting pod, of at most 110 pods by default. An open stream takes
/// 10 KB.
pub const MAX_CONCURRENT_CALLS: u32 = 128;

/// Connection that reads once per poll of its task, and closes when a future completes.
pub struct Connection<S = UnixStream> {
    stream: S,
    /// Future that closes the connection when it completes; `None` once closed.
    close: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// gRPC server for [`Connection`]s. The caller adds the services.
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(MAX_CONCURRENT_CALLS)
        .http2_max_pending_accept_reset_streams(Some(usize::MAX))
}

/// Uses up the task's budget. Tokio grants a task a budget of I/O steps per poll. Without budget, all reads and writes
/// of the task return `Pending`, and tokio schedules the next poll at once.
fn exhaust_budget(cx: &mut Context<'_>) {
    for _ in 0..=u8::MAX {
        match poll_proceed(cx) {
            Poll::Ready(step) => step.made_progress(),
            Poll::Pending => return,
        }
    }
}

// === impl Connection ===

impl<S> Connection<S> {
    /// Wraps a stream. When `close` completes, reads and writes fail as after the death of the process.
    pub fn new(stream: S, close: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { stream, close: Some(Box::pin(close)) }
    }

    /// Fails with `ConnectionReset` once `close` has completed.
    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.close.as_mut().is_some_and(|close| close.as_mut().poll(cx).is_pending()) {
            return Ok(());
        }
        self.close = None;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        exhaust_budget(cx);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

impl<S: Connected> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("is_closed", &self.close.is_none())
            .finish_non_exhaustive()
    }
}
