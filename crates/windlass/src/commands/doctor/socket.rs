//! Sockets on which somebody answers.

use std::{io, path::Path, time::Duration};

use tokio::{net::UnixStream, time::timeout};

/// Time for a connection: a socket whose owner hangs takes none once its queue is full.
const LIMIT: Duration = Duration::from_secs(2);

/// Connects.
pub(super) async fn connect(path: &Path) -> io::Result<()> {
    let connected = timeout(LIMIT, UnixStream::connect(path)).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(drop)
}
