//! Client connection with the `:authority` that Go's gRPC derives from a socket's path.
//!
//! The `http` crate refuses such an authority in a client too. So the client gets a placeholder of the
//! same length, and [`OutgoingAuthorityShim`] replaces the placeholder in the client's bytes. With equal lengths, the
//! HPACK tables of both sides have equal sizes and evict the same entries.

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
const UNESCAPED: &[u8] = b"-_.~!$&'()*+,;=:[]@";

/// Authority that a Go client derives from a socket's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GoAuthority(String);

/// A byte stream that replaces `:authority` in outgoing HTTP/2 requests.
#[derive(Debug)]
pub(crate) struct OutgoingAuthorityShim<S> {
    inner: S,
    rewriter: Rewriter,
    /// Rewritten bytes.
    rewritten: Vec<u8>,
    /// Number of bytes in `rewritten` that the socket consumed already.
    consumed: usize,
}

// === impl GoAuthority ===

impl GoAuthority {
    /// Percent-encodes the path, as grpc-go does.
    pub(crate) fn from_path(path: &Path) -> Self {
        let mut authority = String::new();
        for byte in path.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || UNESCAPED.contains(byte) {
                authority.push(char::from(*byte));
            } else {
                let _ = write!(authority, "%{byte:02X}");
            }
        }
        Self(authority)
    }

    /// URI for the client, with a placeholder of the same length as its authority.
    pub(crate) fn placeholder_uri(&self) -> String {
        format!("http://{}", "a".repeat(self.0.len()))
    }
}

// === impl OutgoingAuthorityShim ===

impl<S> OutgoingAuthorityShim<S> {
    /// Wraps a connection before its first write.
    pub(crate) fn new(inner: S, authority: &GoAuthority) -> Self {
        Self {
            inner,
            rewriter: Rewriter::with_authority(&authority.0),
            rewritten: Vec::new(),
            consumed: 0,
        }
    }
}

impl<S: AsyncWrite + Unpin> OutgoingAuthorityShim<S> {
    /// Writes all rewritten bytes to the socket.
    fn poll_write_rewritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.consumed < self.rewritten.len() {
            let unwritten = &self.rewritten[self.consumed..];
            match ready!(Pin::new(&mut self.inner).poll_write(cx, unwritten))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.consumed += count,
            }
        }
        self.rewritten.clear();
        self.consumed = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OutgoingAuthorityShim<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OutgoingAuthorityShim<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_write_rewritten(cx))?;
        this.rewriter.push(buf, &mut this.rewritten);
        // If the socket is full, the next write or flush sends the rest.
        if let Poll::Ready(Err(error)) = this.poll_write_rewritten(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_rewritten(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_rewritten(cx))?;
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
            let authority = GoAuthority::from_path(Path::new(path));
            assert_eq!(authority.0, expected);
            assert_eq!(authority.placeholder_uri().len(), "http://".len() + expected.len());
        }
    }
}
