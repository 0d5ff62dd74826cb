//! How the kubelet's gRPC clients reach a driver's two sockets.
//!
//! The registration socket is dialled once per attempt, with its path as authority; the DRA socket is
//! dialled when it is needed, with `localhost`, and again after the connection was lost.

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

use crate::authority::{AuthorityOf, Outgoing};

/// What the kubelet sends as `:authority` to a DRA socket.
const LOCALHOST: &str = "http://localhost";

type Connecting<S> = Pin<Box<dyn Future<Output = io::Result<TokioIo<S>>> + Send>>;

/// Makes connections, whatever address they are asked for.
struct Connector<F> {
    connect: F,
}

/// A connection that shows whether it exists.
struct Shown {
    stream: UnixStream,
    connected: Arc<watch::Sender<bool>>,
}

/// Connects to a registration socket, once.
pub(super) async fn registration(socket: &Path) -> Result<Channel, Error> {
    let authority = AuthorityOf::path(socket);
    let endpoint = Endpoint::from_shared(authority.stand_in())?;
    let socket = socket.to_owned();
    let connect = move || {
        let (socket, authority) = (socket.clone(), authority.clone());
        async move { Ok(Outgoing::new(UnixStream::connect(socket).await?, &authority)) }
    };
    endpoint.connect_with_connector(Connector { connect }).await
}

/// A channel to a DRA socket, which connects when it is used, and whether it is connected.
pub(super) fn driver(socket: PathBuf) -> (Channel, watch::Receiver<bool>) {
    let (connected, shown) = watch::channel(false);
    let connected = Arc::new(connected);
    let connect = move || {
        let (socket, connected) = (socket.clone(), Arc::clone(&connected));
        async move { Ok(Shown::new(UnixStream::connect(socket).await?, connected)) }
    };
    let endpoint = Endpoint::from_static(LOCALHOST);
    (endpoint.connect_with_connector_lazy(Connector { connect }), shown)
}

// === impl Connector ===

impl<F, C, S> Service<Uri> for Connector<F>
where
    F: FnMut() -> C,
    C: Future<Output = io::Result<S>> + Send + 'static,
{
    type Response = TokioIo<S>;
    type Error = io::Error;
    type Future = Connecting<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = (self.connect)();
        Box::pin(async move { connecting.await.map(TokioIo::new) })
    }
}

// === impl Shown ===

impl Shown {
    fn new(stream: UnixStream, connected: Arc<watch::Sender<bool>>) -> Self {
        connected.send_replace(true);
        Self { stream, connected }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.connected.send_replace(false);
    }
}

impl AsyncRead for Shown {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Shown {
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
