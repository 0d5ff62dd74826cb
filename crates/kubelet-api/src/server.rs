//! gRPC server settings, with a limit on concurrent calls per connection.
//!
//! Callers may cancel calls (`RST_STREAM`). h2 reads a connection until it is empty and passes calls on afterwards.
//! Cancelled calls wait among the others, and more than twenty of them make h2 close the connection
//! (`max_pending_accept_reset_streams`, against CVE-2023-44487). A plugin without processor time would lose its device
//! list that way. Here each poll reads the connection once, which bounds the waiting calls, so the guard is off.

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

/// Limit of open calls per connection; further calls wait (RFC 9113, section 5.1.2). A kubelet has one device stream,
/// one Allocate, and one call per starting pod, with a default of 110 pods. An open stream takes 10 KB.
pub const OPEN_CALLS: u32 = 128;

/// Connection that is read once per poll and can be closed by a future.
pub struct Connection<S = UnixStream> {
    stream: S,
    /// Future that closes the connection; `None` once closed.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Server for [`Connection`]s, without services.
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(OPEN_CALLS)
        .http2_max_pending_accept_reset_streams(Some(usize::MAX))
}

/// Makes all reads and writes of the task wait until its next poll, which follows at once. Tokio grants a task a budget
/// of steps per poll.
fn pause(cx: &mut Context<'_>) {
    for _ in 0..=u8::MAX {
        match poll_proceed(cx) {
            Poll::Ready(step) => step.made_progress(),
            Poll::Pending => return,
        }
    }
}

// === impl Connection ===

impl<S> Connection<S> {
    /// Connection that is closed when `end` completes, as if the process had died.
    pub fn new(stream: S, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { stream, end: Some(Box::pin(end)) }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_pending()) {
            return Ok(());
        }
        self.end = None;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        pause(cx);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
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
        self.check(cx)?;
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
        f.debug_struct("Connection").field("is_cut", &self.end.is_none()).finish_non_exhaustive()
    }
}
