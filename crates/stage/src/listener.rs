//! The socket on which a stage listens: a port, or a unix socket that replaces a stale one.

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

/// Sockets of one stage's peers. Each is cut when the stage is gone.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    gone: CancellationToken,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, UnixSocket),
}

/// A socket in a folder, told apart from one that replaced it.
#[derive(Debug)]
struct UnixSocket {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

// === impl Listener ===

impl Listener {
    pub(crate) async fn bind(address: &Address, gone: CancellationToken) -> io::Result<Self> {
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
        Ok(Self { socket, gone })
    }

    /// The address with the port that was given.
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
                // Receipts are small, and somebody waits for each.
                stream.set_nodelay(true)?;
                Connection::new(stream, self.gone.clone())
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                Connection::new(stream, self.gone.clone())
            }
        };
        Poll::Ready(Some(Ok(connection)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, socket) = &self.socket
            && identity(&socket.path).is_ok_and(|found| found == socket.identity)
        {
            // The next start replaces a socket that stays.
            drop(std::fs::remove_file(&socket.path));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes a socket to which nobody listens. Another file, or a live socket, makes the bind fail.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        return match std::fs::remove_file(path) {
            // Its owner was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
    }
    Ok(())
}
