//! The server's side of a socket, with a bound on what one connection may ask of it at once.
//!
//! A caller may give a call up (`RST_STREAM`). h2 reads a connection until nothing more is there, and passes calls on
//! afterwards. Those that were given up by then wait among the others, and with more than twenty of them h2 ends the
//! connection (`max_pending_accept_reset_streams`, against CVE-2023-44487). A plugin would lose its device list so, only
//! because its kubelet gave up on pods while it had no processor time. Here a connection is read once each time that the
//! server comes round to it: what one read holds bounds what can wait, and the guard is not needed.

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

/// Calls that a connection may have open; a caller waits with more (RFC 9113, section 5.1.2). A kubelet has one stream
/// of devices, one Allocate, and one call for each pod that starts, of which it runs 110 unless it is told otherwise.
/// An open stream takes 10 KB.
pub const OPEN_CALLS: u32 = 128;

/// A connection that is read once each time that its server comes round to it, and that can be cut.
pub struct Connection<S = UnixStream> {
    stream: S,
    /// When it is cut; nothing once it is.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// A server for [`Connection`]s, without its services.
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(OPEN_CALLS)
        .http2_max_pending_accept_reset_streams(Some(usize::MAX))
}

/// Has everything that the task reads or writes wait until it runs again, which is at once. Tokio gives a task so many
/// steps each time.
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
    /// A connection that is cut when a future comes to its end, as if the process had died.
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
