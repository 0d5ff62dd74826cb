//! gRPC channels of the kubelet to the two sockets of a DRA driver.
//!
//! - Registration socket: connected at once, without reconnection. `:authority` is the socket's path.
//! - DRA socket: connected by the first call, and reconnected by the next call after a loss.
//!   `:authority` is `localhost`.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::watch,
};
use tonic::{
    codegen::{Service, http::Uri},
    transport::{Channel, Endpoint, Error},
};

use crate::authority::{GoAuthority, OutgoingAuthorityShim};

/// The kubelet's `:authority` on a DRA socket.
const LOCALHOST: &str = "http://localhost";

type ConnectFuture<S> = Pin<Box<dyn Future<Output = io::Result<TokioIo<S>>> + Send>>;

/// Connects to one socket. Ignores the URI of the request.
struct Connector<F> {
    connect: F,
}

/// A connection that reports while it exists.
struct TrackedStream {
    stream: UnixStream,
    /// True while the connection exists.
    connected: Arc<watch::Sender<bool>>,
}

/// Connects to a registration socket.
pub(super) async fn connect_registration(socket: &Path) -> Result<Channel, Error> {
    let authority = GoAuthority::from_path(socket);
    let endpoint = Endpoint::from_shared(authority.placeholder_uri())?;
    let socket = socket.to_owned();
    let connect = move || {
        let (socket, authority) = (socket.clone(), authority.clone());
        async move {
            let stream = UnixStream::connect(socket).await?;
            Ok(OutgoingAuthorityShim::new(stream, &authority))
        }
    };
    endpoint.connect_with_connector(Connector { connect }).await
}

/// A lazy channel to a DRA socket, and a receiver that is true while the channel is connected.
pub(super) fn lazy_driver_channel(socket: PathBuf) -> (Channel, watch::Receiver<bool>) {
    let (connected, is_connected) = watch::channel(false);
    let connected = Arc::new(connected);
    let connect = move || {
        let (socket, connected) = (socket.clone(), Arc::clone(&connected));
        async move { Ok(TrackedStream::new(UnixStream::connect(socket).await?, connected)) }
    };
    let endpoint = Endpoint::from_static(LOCALHOST);
    (endpoint.connect_with_connector_lazy(Connector { connect }), is_connected)
}

// === impl Connector ===

impl<F, C, S> Service<Uri> for Connector<F>
where
    F: FnMut() -> C,
    C: Future<Output = io::Result<S>> + Send + 'static,
{
    type Response = TokioIo<S>;
    type Error = io::Error;
    type Future = ConnectFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connection = (self.connect)();
        Box::pin(async move { connection.await.map(TokioIo::new) })
    }
}

// === impl TrackedStream ===

impl TrackedStream {
    fn new(stream: UnixStream, connected: Arc<watch::Sender<bool>>) -> Self {
        connected.send_replace(true);
        Self { stream, connected }
    }
}

impl Drop for TrackedStream {
    fn drop(&mut self) {
        self.connected.send_replace(false);
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::net::UnixListener;
    use tonic::Code;
    use windlass_kubelet_api::{
        dra::health::{
            NodeWatchResourcesRequest, dra_resource_health_client::DraResourceHealthClient,
        },
        pluginregistration::{InfoRequest, registration_client::RegistrationClient},
    };

    use super::*;

    fn bind(name: &str) -> (TempDir, PathBuf, UnixListener) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(name);
        let listener = UnixListener::bind(&path).expect("bound");
        (dir, path, listener)
    }

    /// Accepts one connection, and resets two calls on it. Returns the authorities of these calls.
    async fn authorities(listener: UnixListener) -> Vec<String> {
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut server = h2::server::handshake(stream).await.expect("HTTP/2 handshake");
        let mut called_authorities = Vec::new();
        while called_authorities.len() < 2 {
            let (request, mut response) =
                server.accept().await.expect("a call").expect("h2 accepts the authority");
            called_authorities.push(request.uri().authority().expect("an authority").to_string());
            response.send_reset(h2::Reason::REFUSED_STREAM);
        }
        // Serves until the client disconnects, so that the client reads the resets.
        while server.accept().await.is_some() {}
        called_authorities
    }

    #[tokio::test]
    async fn a_registration_socket_is_called_with_its_path_as_authority() {
        let (_dir, path, listener) = bind("gpu.example.com@reg.sock");
        let call = async {
            let channel = connect_registration(&path).await.expect("connected");
            let mut client = RegistrationClient::new(channel);
            for _ in 0..2 {
                let status = client.get_info(InfoRequest {}).await.expect_err("reset");
                assert_eq!(status.code(), Code::Unavailable);
            }
        };
        let (called_authorities, ()) = tokio::join!(authorities(listener), call);
        let expected = path.to_str().expect("a UTF-8 path").replace('/', "%2F");
        assert_eq!(called_authorities, [expected.clone(), expected]);
    }

    #[tokio::test]
    async fn a_dra_socket_is_called_with_localhost_and_its_connection_is_reported() {
        let (_dir, path, listener) = bind("dra.sock");
        let (channel, is_connected) = lazy_driver_channel(path);
        assert!(!*is_connected.borrow(), "no call yet");
        let call = async {
            let mut client = DraResourceHealthClient::new(channel);
            for _ in 0..2 {
                let watch = client.node_watch_resources(NodeWatchResourcesRequest {});
                watch.await.expect_err("reset");
                assert!(*is_connected.borrow());
            }
        };
        let (called_authorities, ()) = tokio::join!(authorities(listener), call);
        assert_eq!(called_authorities, ["localhost"; 2]);
    }
}
