//! Unix socket of one gRPC server. The socket can be bound again without a restart of the server.
//!
//! A starting kubelet deletes plugin sockets. The server and its open connections survive; only the listener is
//! replaced. A kubelet up to 1.36 never closes the connections of earlier registrations, and other clients leak
//! connections too. So the endpoint closes the oldest connection beyond a limit.

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

/// Bound socket that passes its connections to a server. Dropping the endpoint closes the connections.
#[derive(Debug)]
pub struct Endpoint {
    path: SocketPath,
    identity: Option<SocketIdentity>,
    listener: watch::Sender<Option<Arc<UnixListener>>>,
    incoming: Option<mpsc::Receiver<io::Result<Connection>>>,
    /// Owns the task that accepts connections.
    _accept_task: JoinSet<()>,
}

/// State of the task that accepts connections. The state outlives each listener.
struct Acceptor {
    listener: watch::Receiver<Option<Arc<UnixListener>>>,
    connections: mpsc::Sender<io::Result<Connection>>,
    /// One guard per open connection, oldest first. Dropping a guard closes its connection.
    open: VecDeque<oneshot::Sender<Infallible>>,
}

/// Accepted connections that may wait for the server. Further ones wait in the kernel's backlog.
const ACCEPT_QUEUE: usize = 16;

/// Limit of open connections. A kubelet needs only the connection of its latest registration. But a kubelet up to 1.36
/// disconnects the newest plugin when any older stream ends (Kubernetes PR 135437). So each connection that this
/// limit closes costs one more registration.
const MAX_CONNECTIONS: usize = 64;

/// Pause after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

// === impl Endpoint ===

impl Endpoint {
    /// Binds the socket and listens.
    pub fn bind(path: SocketPath) -> Result<Self, SocketError> {
        let (connections, incoming) = mpsc::channel(ACCEPT_QUEUE);
        let mut accept_task = JoinSet::new();
        let listener = watch::Sender::new(None);
        let open = VecDeque::new();
        let acceptor = Acceptor { listener: listener.subscribe(), connections, open };
        accept_task.spawn(acceptor.run());
        let (identity, incoming) = (None, Some(incoming));
        let mut endpoint = Self { path, identity, listener, incoming, _accept_task: accept_task };
        endpoint.rebind()?;
        Ok(endpoint)
    }

    /// Connections from the current listener and all later ones.
    ///
    /// # Panics
    ///
    /// The method was called before.
    pub fn incoming(&mut self) -> ReceiverStream<io::Result<Connection>> {
        ReceiverStream::new(self.incoming.take().expect("an endpoint is served once"))
    }

    /// Path of the socket.
    pub fn path(&self) -> &SocketPath {
        &self.path
    }

    /// True while the file at the path is the listener's socket.
    pub fn is_in_place(&self) -> bool {
        self.identity.is_some() && self.path.identity() == self.identity
    }

    /// Binds a new socket at the same path and listens on it. The old listener closes; open connections stay.
    pub fn rebind(&mut self) -> Result<(), SocketError> {
        let listener = self.path.bind()?;
        self.identity = self.path.identity();
        self.listener.send_replace(Some(Arc::new(listener)));
        Ok(())
    }

    /// Stops listening. Removes the socket file if it is still the listener's.
    pub fn close(&mut self) {
        self.listener.send_replace(None);
        if self.is_in_place() {
            // After a failure, the next start replaces the remaining file.
            let _ = std::fs::remove_file(self.path.as_path());
        }
        self.identity = None;
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts connections until the endpoint is dropped.
    async fn run(mut self) {
        loop {
            let listener = self.listener.borrow_and_update().clone();
            let accept = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.listener.changed() => if changed.is_err() { return },
                result = accept => match result {
                    Ok((stream, _)) => self.forward(stream).await,
                    Err(error) => {
                        // The likely cause is the descriptor limit. Connections may close during the pause.
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
    }

    /// Passes a connection to the server. At the limit, closes the oldest one first.
    async fn forward(&mut self, stream: UnixStream) {
        self.open.retain(|guard| !guard.is_closed());
        if self.open.len() >= MAX_CONNECTIONS {
            tracing::debug!(limit = MAX_CONNECTIONS, "closing the oldest connection");
            self.open.pop_front();
        }
        let (guard, closed) = oneshot::channel();
        self.open.push_back(guard);
        let connection = Connection::new(stream, async { _ = closed.await });
        // Sending fails only after the end of the server.
        let _ = self.connections.send(Ok(connection)).await;
    }
}
