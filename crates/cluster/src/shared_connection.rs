//! A connection that requests share until one of them fails.

use std::{fmt, sync::Arc};

use windlass_host::shared::Shared;

use super::{Client, ClusterError, client::Connection};

/// A client with its last connection. Clones share the connection.
#[derive(Clone)]
pub(super) struct SharedConnection {
    client: Client,
    connection: Arc<Shared<Option<Connection>>>,
}

// === impl SharedConnection ===

impl SharedConnection {
    pub(super) fn new(client: Client) -> Self {
        Self { client, connection: Arc::default() }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The last connection, or a new one.
    pub(super) async fn connect(&self) -> Result<Connection, ClusterError> {
        if let Some(connection) = self.connection.with_lock(|cached| cached.clone()) {
            return Ok(connection);
        }
        let connection = self.client.connect().await?;
        self.connection.with_lock(|cached| *cached = Some(connection.clone()));
        Ok(connection)
    }

    /// Drops a failed connection: a new one reads new credentials.
    pub(super) fn reset(&self) {
        self.connection.with_lock(|cached| *cached = None);
    }
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConnection").field("client", &self.client).finish_non_exhaustive()
    }
}
