//! The listening socket of a stage: a TCP port, or a unix socket that replaces a stale one.

use std::{
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use crate::{address::Address, connection::Connection};

/// Listening socket as a stream of connections. Every connection fails when the token is cancelled.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    disconnect: CancellationToken,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, UnixSocket),
}

/// A unix socket with its identity, to detect a replacement by another process.
#[derive(Debug)]
struct UnixSocket {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

// === impl Listener ===

impl Listener {
    pub(crate) async fn bind(address: &Address, disconnect: CancellationToken) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp { host, port } => {
                Socket::Tcp(TcpListener::bind((host.as_str(), *port)).await?)
            }
            Address::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                let (path, identity) = (path.clone(), identity(path)?);
                Socket::Unix(listener, UnixSocket { path, identity })
            }
        };
        Ok(Self { socket, disconnect })
    }

    /// The bound address, with the port that the system chose.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Address::Tcp { host: address.ip().to_string(), port: address.port() })
            }
            Socket::Unix(_, socket) => Ok(Address::Unix(socket.path.clone())),
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let connection = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                // Receipts are small and must not be delayed by Nagle's algorithm.
                stream.set_nodelay(true)?;
                Connection::new(stream, self.disconnect.clone())
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                Connection::new(stream, self.disconnect.clone())
            }
        };
        Poll::Ready(Some(Ok(connection)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, socket) = &self.socket
            && identity(&socket.path)
                .is_ok_and(|current_identity| current_identity == socket.identity)
        {
            // An error is harmless: the next start replaces a stale socket.
            drop(std::fs::remove_file(&socket.path));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a socket without a listener. Any other file, or a live socket, makes the following bind fail.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        return match std::fs::remove_file(path) {
            // The owner has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        };
    }
    Ok(())
}
