//! `:authority` of Go's gRPC over unix sockets, which hyper does not accept.
//!
//! A Go client sends the socket's path as `:authority`, raw or percent-encoded. The `http` crate
//! accepts neither: h2 answers `PROTOCOL_ERROR` before any service gets the request. So [`IncomingAuthorityShim`]
//! replaces the value in the incoming bytes of a connection:
//!
//! ```text
//!  bytes ─> Rewriter: preface ─> frame header ─┬─ HEADERS, CONTINUATION ─> header block ─┐
//!                                   ^          └─ any other frame: unchanged             │
//!                                   └──────────────────────────────────────── rewritten ─┘
//! ```
//!
//! The rewriter reads a header block field by field (RFC 7541 section 6). It skips strings by their
//! length, and does not track HPACK's dynamic table. This is safe, because a replacement is never longer
//! than the original value:
//!
//! - The receiver's table has the same entries as the sender's, some of them smaller.
//! - So the receiver evicts no entry before the sender does.
//! - Indices count from the newest entry, so entries that the receiver evicts later do no harm.
//!
//! In the other direction, `outgoing` lets the embedded kubelet send the authority of a Go client.

mod frames;
mod hpack;
mod outgoing;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

pub use frames::Rewriter;
pub(crate) use outgoing::{GoAuthority, OutgoingAuthorityShim};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Bytes per read of the socket.
const READ_BYTES: usize = 16 * 1024;

/// A byte stream that replaces `:authority` in incoming HTTP/2 requests by a value that hyper accepts.
#[derive(Debug)]
pub struct IncomingAuthorityShim<S> {
    inner: S,
    rewriter: Rewriter,
    /// Rewritten bytes.
    rewritten: Vec<u8>,
    /// Number of bytes in `rewritten` that the reader consumed already.
    consumed: usize,
}

// === impl IncomingAuthorityShim ===

impl<S> IncomingAuthorityShim<S> {
    /// Wraps a connection before its first read.
    pub fn new(inner: S) -> Self {
        Self { inner, rewriter: Rewriter::default(), rewritten: Vec::new(), consumed: 0 }
    }

    /// Copies rewritten bytes to the reader's buffer, as many as fit.
    fn copy_rewritten(&mut self, buf: &mut ReadBuf<'_>) {
        let unread = &self.rewritten[self.consumed..];
        let count = unread.len().min(buf.remaining());
        buf.put_slice(&unread[..count]);
        self.consumed += count;
        if self.consumed == self.rewritten.len() {
            self.rewritten.clear();
            self.consumed = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IncomingAuthorityShim<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.rewritten.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut incoming = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut incoming))?;
            if incoming.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(incoming.filled(), &mut this.rewritten);
        }
        this.copy_rewritten(buf);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IncomingAuthorityShim<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }
}

impl<S: Connected> Connected for IncomingAuthorityShim<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}
