//! Connections that can be cut at once, as by the death of a process.

use std::io;

use tokio::net::UnixListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::server::Connection;

use crate::authority::Shim;

/// Incoming connections, each behind the shim that Go clients need. The kubelet's end makes them fail.
pub(crate) fn incoming(
    listener: UnixListener,
    ended: CancellationToken,
) -> impl Stream<Item = io::Result<Shim<Connection>>> {
    UnixListenerStream::new(listener).map(move |accepted| {
        let ended = ended.clone().cancelled_owned();
        accepted.map(|stream| Shim::new(Connection::new(stream, ended)))
    })
}
