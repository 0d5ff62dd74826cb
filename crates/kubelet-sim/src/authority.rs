//! A shim that lets Go's gRPC talk to hyper over a unix socket.
//!
//! A Go client sends the socket's path as `:authority`, raw or percent-encoded; the `http` crate
//! takes neither, and h2 answers `PROTOCOL_ERROR` before any service sees the request. Here the
//! value is replaced on its way in:
//!
//! ```text
//!  bytes ─> Rewriter: preface ─> frame header ─┬─ HEADERS, CONTINUATION ─> header block ─┐
//!                                   ^          └─ any other frame: passed through        │
//!                                   └──────────────────────────────────────── rewritten ─┘
//! ```
//!
//! Header blocks are walked representation by representation (RFC 7541 section 6) without decoding
//! anything: strings are skipped by their length. That is enough, because a value is only ever
//! replaced by one that is not longer: the receiver's dynamic table holds the same entries as the
//! sender's, some a little smaller, so none is evicted before the sender believes it is, and
//! indices count from the newest.
//!
//! The other way round, `outgoing` gives the embedded kubelet the authority of a Go client.

mod frames;
mod hpack;
mod outgoing;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

pub use frames::Rewriter;
pub(crate) use outgoing::{AuthorityOf, Outgoing};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// How much is read from the socket at once.
const READ_BYTES: usize = 16 * 1024;

/// A byte stream whose incoming `:authority` values are made harmless.
#[derive(Debug)]
pub struct Shim<S> {
    inner: S,
    rewriter: Rewriter,
    /// Rewritten bytes that the reader has not taken yet.
    ready: Vec<u8>,
    taken: usize,
}

// === impl Shim ===

impl<S> Shim<S> {
    /// Wraps a connection that has not been read from.
    pub fn new(inner: S) -> Self {
        Self { inner, rewriter: Rewriter::default(), ready: Vec::new(), taken: 0 }
    }

    fn hand_out(&mut self, buf: &mut ReadBuf<'_>) {
        let waiting = &self.ready[self.taken..];
        let count = waiting.len().min(buf.remaining());
        buf.put_slice(&waiting[..count]);
        self.taken += count;
        if self.taken == self.ready.len() {
            self.ready.clear();
            self.taken = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Shim<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut incoming = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut incoming))?;
            if incoming.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(incoming.filled(), &mut this.ready);
        }
        this.hand_out(buf);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Shim<S> {
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

impl<S: Connected> Connected for Shim<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}
