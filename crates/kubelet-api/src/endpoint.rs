//! The socket of a server: one gRPC server for life, behind a socket that may be bound anew.
//!
//! A kubelet deletes sockets when it starts, and people do. The server itself goes on: connections that
//! are open stay open, and only the listener is replaced. A kubelet up to 1.36 keeps the connection of every
//! registration, and others forget theirs: of all connections the newest are kept.

use std::{collections::VecDeque, convert::Infallible, io, sync::Arc, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    server::Connection,
    socket::{SocketError, SocketIdentity, SocketPath},
};

/// A bound socket, and the way of its connections into the server. They are cut when it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    path: SocketPath,
    identity: Option<SocketIdentity>,
    listener: watch::Sender<Option<Arc<UnixListener>>>,
    incoming: Option<mpsc::Receiver<io::Result<Connection>>>,
    /// The one task that accepts.
    _accepting: JoinSet<()>,
}

/// The one that accepts, whichever the listener is.
struct Acceptor {
    listener: watch::Receiver<Option<Arc<UnixListener>>>,
    connections: mpsc::Sender<io::Result<Connection>>,
    /// What cuts each connection when it is dropped, the oldest first.
    open: VecDeque<oneshot::Sender<Infallible>>,
}

/// Connections that wait for the server; the kernel's backlog holds more.
const WAITING: usize = 16;

/// Connections that are kept. A kubelet needs the one of its last registration; up to 1.36 it takes the end of an older
/// one's stream for the end of the newest (kubelet reference, trap 1), so that each one beyond these costs it a
/// registration more.
const KEPT: usize = 64;

/// How long nothing is accepted after a refusal of the kernel's.
const PAUSE: Duration = Duration::from_millis(100);

// === impl Endpoint ===

impl Endpoint {
    /// A socket at this path, listened on.
    pub fn bind(path: SocketPath) -> Result<Self, SocketError> {
        let ((connections, incoming), mut accepting) = (mpsc::channel(WAITING), JoinSet::new());
        let listener = watch::Sender::new(None);
        let open = VecDeque::new();
        let acceptor = Acceptor { listener: listener.subscribe(), connections, open };
        accepting.spawn(acceptor.run());
        let (identity, incoming) = (None, Some(incoming));
        let mut endpoint = Self { path, identity, listener, incoming, _accepting: accepting };
        endpoint.bind_again()?;
        Ok(endpoint)
    }

    /// What comes in over the socket, whichever it is at the time; asked for once.
    pub fn incoming(&mut self) -> ReceiverStream<io::Result<Connection>> {
        ReceiverStream::new(self.incoming.take().expect("an endpoint is served once"))
    }

    /// Where it is.
    pub fn path(&self) -> &SocketPath {
        &self.path
    }

    /// Whether the path leads to the socket that is listened on.
    pub fn is_in_place(&self) -> bool {
        self.identity.is_some() && self.path.identity() == self.identity
    }

    /// Listens on a new socket under the same path, in place of the one that was deleted.
    pub fn bind_again(&mut self) -> Result<(), SocketError> {
        let listener = self.path.bind()?;
        self.identity = self.path.identity();
        self.listener.send_replace(Some(Arc::new(listener)));
        Ok(())
    }

    /// Stops to listen, and removes the socket if it is still ours.
    pub fn close(&mut self) {
        self.listener.send_replace(None);
        if self.is_in_place() {
            // A socket that stays is replaced at the next start.
            let _ = std::fs::remove_file(self.path.as_path());
        }
        self.identity = None;
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts until the endpoint is dropped.
    async fn run(mut self) {
        loop {
            let listener = self.listener.borrow_and_update().clone();
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.listener.changed() => if changed.is_err() { return },
                accepted = accepted => match accepted {
                    Ok((stream, _)) => self.pass_on(stream).await,
                    Err(error) => {
                        // Out of descriptors, most likely: others end meanwhile.
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    async fn pass_on(&mut self, stream: UnixStream) {
        self.open.retain(|one| !one.is_closed());
        if self.open.len() >= KEPT {
            tracing::debug!(kept = KEPT, "the oldest connection gives way to a new one");
            self.open.pop_front();
        }
        let (cut, end) = oneshot::channel();
        self.open.push_back(cut);
        let connection = Connection::new(stream, async { _ = end.await });
        // A server that ends takes no more.
        let _ = self.connections.send(Ok(connection)).await;
    }
}
