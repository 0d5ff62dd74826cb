//! Check that a process accepts connections on a Unix socket.

use std::{io, path::Path, time::Duration};

use tokio::{net::UnixStream, time::timeout};

/// Time limit to connect. A socket whose owner hangs accepts no connection once its backlog is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Connects, and closes the connection.
pub(super) async fn connect(path: &Path) -> io::Result<()> {
    let result = timeout(CONNECT_LIMIT, UnixStream::connect(path)).await;
    result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(drop)
}
