//! The server of one resource: one gRPC server for life, behind a socket that may be bound anew.
//!
//! A kubelet deletes every socket when it starts. The server itself goes on: connections that are
//! open stay open, and only the listener is replaced.

use std::io;

use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use windlass_kubelet_api::{
    deviceplugin::device_plugin_server::DevicePluginServer,
    socket::{SocketError, SocketIdentity, SocketPath},
};

use super::{service::Service, session::Session};
use crate::causes;

/// A bound socket, and the way of its connections into the server.
pub(super) struct Endpoint {
    path: SocketPath,
    identity: Option<SocketIdentity>,
    acceptors: JoinSet<()>,
    connections: mpsc::Sender<io::Result<UnixStream>>,
    incoming: Option<mpsc::Receiver<io::Result<UnixStream>>>,
}

/// Connections that wait for the server; the kernel's backlog holds more.
const WAITING: usize = 16;

/// How long open calls may take to end when the agent stops. Streams end at once, since the state's
/// keeper has ended before.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(2);

/// Serves, and keeps the resource registered, until stopped; removes the socket at the end.
pub(super) async fn serve(
    mut endpoint: Endpoint,
    service: Service,
    session: Session,
    stop: CancellationToken,
) {
    let incoming = endpoint.incoming.take().expect("an endpoint is served once");
    let server = Server::builder()
        .add_service(DevicePluginServer::new(service))
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), stop.cancelled());
    let session = async {
        session.run(&mut endpoint, &stop).await;
        endpoint.close();
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        outcome = server => {
            if let Err(error) = outcome {
                tracing::error!(error = causes(&error), "the server failed");
            }
        }
        () = session => {}
    }
    endpoint.close();
}

// === impl Endpoint ===

impl Endpoint {
    pub(super) fn bind(path: SocketPath) -> Result<Self, SocketError> {
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

    pub(super) fn path(&self) -> &SocketPath {
        &self.path
    }

    /// Whether the path leads to the socket that is listened on.
    pub(super) fn is_in_place(&self) -> bool {
        self.identity.is_some() && self.path.identity() == self.identity
    }

    /// Listens on a new socket under the same path, in place of the one that was deleted.
    pub(super) fn bind_again(&mut self) -> Result<(), SocketError> {
        let listener = self.path.bind()?;
        self.identity = self.path.identity();
        self.acceptors.abort_all();
        self.acceptors.spawn(accept(listener, self.connections.clone()));
        Ok(())
    }

    /// Stops to listen, and removes the socket if it is still ours.
    fn close(&mut self) {
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
