//! The socket on which a stage listens: a port, or a unix socket that replaces a stale one.

use std::{
    io,
    os::unix::fs::FileTypeExt as _,
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
    Unix(UnixListener, PathBuf),
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
                Socket::Unix(UnixListener::bind(path)?, path.clone())
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
            Socket::Unix(_, path) => Ok(Address::Unix(path.clone())),
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
        if let Socket::Unix(_, path) = &self.socket {
            // The next start replaces a socket that stays.
            drop(std::fs::remove_file(path));
        }
    }
}

/// Removes a socket to which nobody listens. Another file, or a live socket, makes the bind fail.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
