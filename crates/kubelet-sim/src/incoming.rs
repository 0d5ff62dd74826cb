//! Incoming connections of the kubelet's servers. One token closes all of them, as the end of a process does.

use std::io;

use tokio::net::UnixListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::server::Connection;

use crate::authority::IncomingAuthorityShim;

/// Accepted connections, usable by Go clients too ([`IncomingAuthorityShim`]). Reads and writes fail once `ended` is
/// cancelled.
pub(crate) fn connections(
    listener: UnixListener,
    ended: CancellationToken,
) -> impl Stream<Item = io::Result<IncomingAuthorityShim<Connection>>> {
    UnixListenerStream::new(listener).map(move |accepted| {
        let ended = ended.clone().cancelled_owned();
        accepted.map(|stream| IncomingAuthorityShim::new(Connection::new(stream, ended)))
    })
}
