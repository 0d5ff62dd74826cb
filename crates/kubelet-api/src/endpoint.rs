//! Unix socket endpoint of one gRPC server, whose listener can be replaced.
//!
//! Kubelets delete sockets when they start. The server and its open connections survive, and only the listener is
//! replaced. A kubelet up to 1.36 keeps the connection of every registration, and other clients leak theirs, so only
//! the newest connections are kept.

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

/// Bound socket that feeds connections to a server. Dropping it closes them.
#[derive(Debug)]
pub struct Endpoint {
    path: SocketPath,
    identity: Option<SocketIdentity>,
    listener: watch::Sender<Option<Arc<UnixListener>>>,
    incoming: Option<mpsc::Receiver<io::Result<Connection>>>,
    /// Task that accepts connections.
    _accepting: JoinSet<()>,
}

/// State of the accepting task, across listeners.
struct Acceptor {
    listener: watch::Receiver<Option<Arc<UnixListener>>>,
    connections: mpsc::Sender<io::Result<Connection>>,
    /// Guards of the connections, oldest first; dropping one closes its connection.
    open: VecDeque<oneshot::Sender<Infallible>>,
}

/// Connections that wait for the server; the kernel's backlog holds more.
const WAITING: usize = 16;

/// Limit of open connections. A kubelet needs the connection of its latest registration; up to 1.36 it takes the end of
/// an older stream for the end of the newest (Kubernetes PR 135437), so each connection beyond the
/// limit costs a registration.
const KEPT: usize = 64;

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

// === impl Endpoint ===

impl Endpoint {
    /// Binds the socket and listens.
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

    /// Connections from all listeners. May be called once.
    pub fn incoming(&mut self) -> ReceiverStream<io::Result<Connection>> {
        ReceiverStream::new(self.incoming.take().expect("an endpoint is served once"))
    }

    /// Path of the socket.
    pub fn path(&self) -> &SocketPath {
        &self.path
    }

    /// True if the path leads to the socket of the listener.
    pub fn is_in_place(&self) -> bool {
        self.identity.is_some() && self.path.identity() == self.identity
    }

    /// Listens on a new socket under the same path, after the old one was deleted.
    pub fn bind_again(&mut self) -> Result<(), SocketError> {
        let listener = self.path.bind()?;
        self.identity = self.path.identity();
        self.listener.send_replace(Some(Arc::new(listener)));
        Ok(())
    }

    /// Stops listening, and removes the socket if it is still ours.
    pub fn close(&mut self) {
        self.listener.send_replace(None);
        if self.is_in_place() {
            // The next start replaces a remaining socket.
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
                        // Most likely out of descriptors; other connections end meanwhile.
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
        // The server has ended.
        let _ = self.connections.send(Ok(connection)).await;
    }
}
