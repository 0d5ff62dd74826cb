//! Wiring: from the configuration to a serving extender.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Api;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use windlass_host::{clock::Clock, shared::Shared};

use crate::{
    access::{access, no_access},
    binder::Binder,
    extender::Extender,
    fence::Fence,
    index::Index,
    metrics::Metrics,
    server::{self, Pages, Served, TlsAcceptors, TlsError, TlsFiles},
    watches::{self, Refresh},
};

/// Time for binds at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Configuration of the extender.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Address of health and metrics alone, without TLS.
    pub metrics: Option<SocketAddr>,
    /// Identity of the server; without it, plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Access to the API server; without it, as kubectl finds one, else the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease; without it, the account's.
    pub namespace: Option<String>,
    /// Name of the Lease that replicas share.
    pub lease: String,
    /// Name of this replica, different from the others'.
    pub identity: String,
}

/// Reason why the extender cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No credentials.
    #[error("no access to the API server: give --kubeconfig, or run in a pod with an account")]
    NoAccess(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address cannot be bound.
    #[error("cannot listen on {0}: choose another with --listen")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Serves kube-scheduler until stopped.
///
/// # Flow
///
/// Everything that can be wrong is found before anything starts: TLS files, credentials, address. Then the watches
/// begin, and `/readyz` says when the view is complete. At the end open requests are answered, and the Lease is given
/// up.
///
/// # Errors
///
/// As [`RunError`]. An API server that is away is none: it is waited for.
pub async fn run(
    config: Config,
    stop: CancellationToken,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), RunError> {
    let tls = config.tls.clone().map(TlsAcceptors::new).transpose()?;
    let access = access(config.kubeconfig.clone()).await?;
    let namespace = config.namespace.clone().unwrap_or_else(|| access.default_namespace.clone());
    let client = kube::Client::try_from(access).map_err(no_access)?;
    let listener = server::listen(config.listen).await;
    let listener = listener.map_err(|source| RunError::Listen(config.listen, source))?;
    let metrics_listener = match config.metrics {
        None => None,
        Some(address) => {
            let listener = server::listen(address).await;
            Some(listener.map_err(|source| RunError::Listen(address, source))?)
        }
    };
    ready(listener.local_addr().unwrap_or(config.listen));

    let index = Arc::new(Shared::new(Index::default()));
    let refresh = Arc::new(Refresh::new(client.clone(), index.clone()));
    let clock = Clock::starting_at(Timestamp::now());
    let leases = Api::namespaced(client.clone(), &namespace);
    let fence = Arc::new(Fence::new(leases, &config.lease, &config.identity, clock, refresh));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, index.clone());
    let binder = Arc::new(Binder::new(client.clone(), index.clone(), fence.clone(), clock));
    let extender = Extender::new(index.clone(), binder.clone(), metrics);
    let pages = Arc::new(Pages { extender, index: index.clone(), registry });
    let watches = stop.run_until_cancelled(watches::follow(client, index));
    let verbs = server::serve(listener, tls, (pages.clone(), Served::All), stop.clone());
    let metrics = async {
        if let Some(listener) = metrics_listener {
            server::serve(listener, None, (pages, Served::Metrics), stop.clone()).await;
        }
    };
    tokio::join!(watches, verbs, metrics);
    // A bind that is under way could have its effect after another replica has taken over.
    if binder.drain(DRAIN).await {
        fence.give_up().await;
    }
    Ok(())
}
