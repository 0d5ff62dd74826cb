//! The socket of a server: one gRPC server for life, behind a socket that may be bound anew.
//!
//! A kubelet deletes sockets when it starts, and people do. The server itself goes on: connections that
//! are open stay open, and only the listener is replaced.

use std::io;

use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use windlass_kubelet_api::socket::{SocketError, SocketIdentity, SocketPath};

/// A bound socket, and the way of its connections into the server.
pub(crate) struct Endpoint {
    path: SocketPath,
    identity: Option<SocketIdentity>,
    acceptors: JoinSet<()>,
    connections: mpsc::Sender<io::Result<UnixStream>>,
    incoming: Option<mpsc::Receiver<io::Result<UnixStream>>>,
}

/// Connections that wait for the server; the kernel's backlog holds more.
const WAITING: usize = 16;

/// Calls that a caller may give up before the server has looked at them; with one more the whole connection ends,
/// and the stream of devices with it. 20, which is h2's own limit, is little for a kubelet that gives up on pods
/// while the agent has no processor time. A connection that is only attacked so costs some hundred bytes for each.
const GIVEN_UP: usize = 1024;

/// A server behind an endpoint, without its services.
pub(crate) fn server() -> Server {
    Server::builder().http2_max_pending_accept_reset_streams(Some(GIVEN_UP))
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn bind(path: SocketPath) -> Result<Self, SocketError> {
        let (connections, incoming) = mpsc::channel(WAITING);
        let mut endpoint = Self {
            path,
            identity: None,
            acceptors: JoinSet::new(),
            connections,
            incoming: Some(incoming),
        };
        endpoint.bind_again()?;
        Ok(endpoint)
    }

    /// What comes in over the socket, whichever it is at the time; asked for once.
    pub(crate) fn incoming(&mut self) -> ReceiverStream<io::Result<UnixStream>> {
        ReceiverStream::new(self.incoming.take().expect("an endpoint is served once"))
    }

    pub(crate) fn path(&self) -> &SocketPath {
        &self.path
    }

    /// Whether the path leads to the socket that is listened on.
    pub(crate) fn is_in_place(&self) -> bool {
        self.identity.is_some() && self.path.identity() == self.identity
    }

    /// Listens on a new socket under the same path, in place of the one that was deleted.
    pub(crate) fn bind_again(&mut self) -> Result<(), SocketError> {
        let listener = self.path.bind()?;
        self.identity = self.path.identity();
        self.acceptors.abort_all();
        self.acceptors.spawn(accept(listener, self.connections.clone()));
        Ok(())
    }

    /// Stops to listen, and removes the socket if it is still ours.
    pub(crate) fn close(&mut self) {
        self.acceptors.abort_all();
        if self.is_in_place() {
            // A socket that stays is replaced at the next start.
            let _ = std::fs::remove_file(self.path.as_path());
        }
        self.identity = None;
    }
}

async fn accept(listener: UnixListener, connections: mpsc::Sender<io::Result<UnixStream>>) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                if connections.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: others end meanwhile.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}
