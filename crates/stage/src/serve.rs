//! One stage at work: its tasks, and its end.
//!
//! ```text
//!  serving ──(shutdown)──> closing ──(senders end their streams)──> finishing ──(all is passed on)──> ended
//!                             └──────────────(drain_timeout)──────────────────────────────────────────^
//! ```
//!
//! Each step of a drain waits for the one before: readers, join, queue, teller, outlets, and last the server, whose
//! streams carry the receipts.

use std::io;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{address::Address, assembly::Tasks, builder::Builder, listener::Listener};

/// A stage that cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No address was given.
    #[error("stage {0} has no address to listen on")]
    NoAddress(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: Address,
        /// Reason of the system.
        source: io::Error,
    },
    /// A limit of zero lets no item pass.
    #[error("stage {stage}: {limit} is 0: write at least 1")]
    Zero {
        /// Name of the stage.
        stage: String,
        /// Name of the limit.
        limit: &'static str,
    },
    /// The server ended by itself.
    #[error("the server of stage {stage} failed")]
    Server {
        /// Name of the stage.
        stage: String,
        /// Reason.
        source: tonic::transport::Error,
    },
}

/// A stage that listens. Peers wait until it serves.
#[derive(Debug)]
pub struct Bound {
    builder: Builder,
    listener: Listener,
    address: Address,
    gone: CancellationToken,
}

// === impl Builder ===

impl Builder {
    /// Listens, and serves nobody yet.
    pub async fn bind(self) -> Result<Bound, ServeError> {
        Bound::new(self).await
    }

    /// Serves until `shutdown`, then finishes what it has.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        self.bind().await?.serve(shutdown).await
    }
}

// === impl Bound ===

impl Bound {
    async fn new(builder: Builder) -> Result<Self, ServeError> {
        let Some(address) = builder.listen.clone() else {
            return Err(ServeError::NoAddress(builder.name));
        };
        if let Some(limit) = builder.settings.zero() {
            return Err(ServeError::Zero { stage: builder.name, limit });
        }
        let gone = CancellationToken::new();
        let listening = Listener::bind(&address, gone.clone()).await;
        let bound = listening.and_then(|listener| Ok((listener.address()?, listener)));
        match bound {
            Ok((address, listener)) => Ok(Self { builder, listener, address, gone }),
            Err(source) => Err(ServeError::Listen { address, source }),
        }
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `shutdown`, then finishes what it has. A dropped stage looks to its peers like a dead process.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let (name, settings) = (self.builder.name.clone(), self.builder.settings.clone());
        let mut tasks =
            Box::new(Tasks::start(self.builder, self.listener, &self.address, self.gone));
        tokio::select! {
            source = tasks.failure() => return Err(ServeError::Server { stage: name, source }),
            () = shutdown.cancelled() => {}
        }
        tokio::select! {
            () = tasks.drain() => info!(stage = %name, "the stage has finished everything"),
            () = sleep(settings.drain_timeout) => {
                warn!(stage = %name, "the stage ends with items that it could not pass on in time");
            }
        }
        Ok(())
    }
}
