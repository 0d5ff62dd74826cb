//! Outgoing bytes of a client with the `:authority` that Go's gRPC derives from a socket's path.
//!
//! The `http` crate refuses such an authority in a client too. So the client gets another one of
//! the same length, replaced on its way out. The dynamic tables of both sides stay equally full,
//! and evict the same entries.

use std::{
    fmt::Write as _,
    io,
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Rewriter;

/// Characters besides letters and digits that `encodeAuthority` of grpc-go leaves unescaped
/// (`clientconn.go`).
const PLAIN: &[u8] = b"-_.~!$&'()*+,;=:[]@";

/// Authority of a Go client that dials a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorityOf(String);

/// A byte stream that replaces the authority on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing<S> {
    inner: S,
    rewriter: Rewriter,
    /// Rewritten bytes that the socket has yet to take.
    ready: Vec<u8>,
    taken: usize,
}

// === impl AuthorityOf ===

impl AuthorityOf {
    /// Percent-encodes the path.
    pub(crate) fn path(path: &Path) -> Self {
        let mut authority = String::new();
        for byte in path.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || PLAIN.contains(byte) {
                authority.push(char::from(*byte));
            } else {
                let _ = write!(authority, "%{byte:02X}");
            }
        }
        Self(authority)
    }

    /// Authority for the client, of the same length.
    pub(crate) fn stand_in(&self) -> String {
        format!("http://{}", "a".repeat(self.0.len()))
    }
}

// === impl Outgoing ===

impl<S> Outgoing<S> {
    /// Wraps a connection before its first write.
    pub(crate) fn new(inner: S, authority: &AuthorityOf) -> Self {
        Self { inner, rewriter: Rewriter::to(&authority.0), ready: Vec::new(), taken: 0 }
    }
}

impl<S: AsyncWrite + Unpin> Outgoing<S> {
    /// Ready when the socket took all rewritten bytes.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken < self.ready.len() {
            let waiting = &self.ready[self.taken..];
            match ready!(Pin::new(&mut self.inner).poll_write(cx, waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.taken += count,
            }
        }
        self.ready.clear();
        self.taken = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outgoing<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Outgoing<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        this.rewriter.push(buf, &mut this.ready);
        // The next write or the flush brings the rest.
        if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_escaped_as_grpc_go_escapes_it() {
        for (path, expected) in [
            ("/var/lib/x-reg.sock", "%2Fvar%2Flib%2Fx-reg.sock"),
            ("/k/gpu.example.com@reg.sock", "%2Fk%2Fgpu.example.com@reg.sock"),
            ("/a b/ü", "%2Fa%20b%2F%C3%BC"),
        ] {
            let authority = AuthorityOf::path(Path::new(path));
            assert_eq!(authority.0, expected);
            assert_eq!(authority.stand_in().len(), "http://".len() + expected.len());
        }
    }
}
