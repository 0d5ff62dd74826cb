//! Life cycle of a stage: bind, serve, drain.
//!
//! ```text
//!  serving ──(shutdown)──> closing ──(senders end their streams)──> finishing ──(all items passed)──> ended
//!                             └──────────────(drain_timeout)──────────────────────────────────────────^
//! ```
//!
//! A drain ends the tasks in this order: readers, join, queue, publisher, outlets, and last the server: its streams
//! carry the receipts that tell the senders about their items.

use std::io;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{address::Address, assembly::Tasks, builder::Builder, listener::Listener};

/// Reason that a stage cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The builder has no address.
    #[error("stage {0} has no address to listen on")]
    NoAddress(String),
    /// Binding the address failed.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: Address,
        /// Error of the system.
        source: io::Error,
    },
    /// A limit is zero, so no item could pass.
    #[error("stage {stage}: {limit} is 0: write at least 1")]
    ZeroLimit {
        /// Name of the stage.
        stage: String,
        /// Name of the limit.
        limit: &'static str,
    },
    /// The gRPC server failed.
    #[error("the server of stage {stage} failed")]
    Server {
        /// Name of the stage.
        stage: String,
        /// Error of the server.
        source: tonic::transport::Error,
    },
}

/// A stage with a bound socket. Connections wait until it serves.
#[derive(Debug)]
pub struct BoundStage {
    builder: Builder,
    listener: Listener,
    address: Address,
    disconnect: CancellationToken,
}

// === impl Builder ===

impl Builder {
    /// Binds the address without serving yet. Fails without an address, with a limit of zero, or if the bind fails.
    pub async fn bind(self) -> Result<BoundStage, ServeError> {
        BoundStage::new(self).await
    }

    /// Serves until `shutdown` is cancelled, then drains for at most `drain_timeout`.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        self.bind().await?.serve(shutdown).await
    }
}

// === impl BoundStage ===

impl BoundStage {
    async fn new(builder: Builder) -> Result<Self, ServeError> {
        let Some(address) = builder.listen.clone() else {
            return Err(ServeError::NoAddress(builder.name));
        };
        if let Some(limit) = builder.settings.zero_limit() {
            return Err(ServeError::ZeroLimit { stage: builder.name, limit });
        }
        let disconnect = CancellationToken::new();
        let listening = Listener::bind(&address, disconnect.clone()).await;
        let bound = listening.and_then(|listener| Ok((listener.address()?, listener)));
        match bound {
            Ok((address, listener)) => Ok(Self { builder, listener, address, disconnect }),
            Err(source) => Err(ServeError::Listen { address, source }),
        }
    }

    /// The bound address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `shutdown` is cancelled, then drains for at most `drain_timeout`. If the future is dropped,
    /// its connections fail, so that the peers treat the stage as dead.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let (name, settings) = (self.builder.name.clone(), self.builder.settings.clone());
        let mut tasks =
            Box::new(Tasks::start(self.builder, self.listener, &self.address, self.disconnect));
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
