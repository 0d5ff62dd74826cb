//! A peer's connection that fails once the stage is dropped, so that the peer treats the stage as dead.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A bidirectional byte stream.
trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Duplex for S {}

/// A connection that fails once a token is cancelled.
pub(crate) struct Connection {
    stream: Pin<Box<dyn Duplex>>,
    /// `None` once the connection has failed.
    disconnect: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

// === impl Connection ===

impl Connection {
    pub(crate) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        disconnect: CancellationToken,
    ) -> Self {
        Self { stream: Box::pin(stream), disconnect: Some(Box::pin(disconnect.cancelled_owned())) }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self
            .disconnect
            .as_mut()
            .is_some_and(|disconnect| disconnect.as_mut().poll(cx).is_pending())
        {
            return Ok(());
        }
        self.disconnect = None;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        self.stream.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        self.stream.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
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
        self.stream.as_mut().poll_write_vectored(cx, bufs)
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("is_disconnected", &self.disconnect.is_none())
            .finish_non_exhaustive()
    }
}
