//! Wiring: builds and runs the extender, or the page alone, from a configuration.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Api;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass_host::{clock::Clock, shared::Shared};

use crate::{
    access::{NoAccess, load_kube_config, no_access},
    agents::AgentClient,
    binder::{Binder, WaitLimits},
    extender::Extender,
    fence::Fence,
    index::Index,
    live::LiveIndex,
    metrics::Metrics,
    objects::Objects,
    page::{AccessPolicy, Authorizer, Feed, PageHandler},
    pending_events::PendingEvents,
    rights::Rights,
    server::{
        self, ExtenderHandler, HandlerState, ReloadingAcceptor, ServedPaths, TlsError, TlsFiles,
    },
    watches::{self, Relister},
};

/// Time limit for running binds at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Configuration of the extender.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Address of a second listener, for health and metrics only, without TLS.
    pub metrics: Option<SocketAddr>,
    /// The page, on its own address; `None` serves no page.
    pub page: Option<PageConfig>,
    /// Certificate and key of the server; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Kubeconfig; `None` searches for one as kubectl does, then uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease; `None` stands for the credentials' namespace.
    pub namespace: Option<String>,
    /// Name of the Lease that replicas share.
    pub lease: String,
    /// Holder identity of this replica in the Lease, unique among replicas.
    pub identity: String,
    /// Time within which all pods of a gang must reach their bind: below kube-scheduler's `httpTimeout`, and above its
    /// longest back-off.
    pub gang_wait: Duration,
}

// === impl Config ===

impl Config {
    /// Default of `gang_wait` in seconds: twice kube-scheduler's longest back-off.
    pub const DEFAULT_GANG_WAIT_SECONDS: u64 = 20;
}

/// Configuration of the page that the extender serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// True if readers need no token.
    pub allows_anonymous: bool,
}

/// Reason why the extender cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No credentials.
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    /// The address cannot be bound.
    #[error("cannot listen on {0}: choose another address")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Bound listeners.
struct Listeners {
    extender: TcpListener,
    metrics: Option<TcpListener>,
    page: Option<TcpListener>,
}

// === impl Listeners ===

impl Listeners {
    /// Binds all addresses, so that an unusable address fails before anything starts.
    async fn bind(config: &Config) -> Result<Self, RunError> {
        Ok(Self {
            extender: listen(config.listen).await?,
            metrics: listen_if_set(config.metrics).await?,
            page: listen_if_set(config.page.map(|page| page.listen)).await?,
        })
    }
}

/// Serves kube-scheduler until stopped.
///
/// # Flow
///
/// TLS files, credentials and addresses are checked before anything starts. Then the watches begin, and `/readyz`
/// succeeds once the view is complete and all rights are granted. The page has its own listener. At shutdown open
/// requests are answered, and the Lease is released if all binds have ended.
///
/// # Errors
///
/// See [`RunError`]. If the API server is unreachable, the watches wait for it.
pub async fn run(
    config: Config,
    stop: CancellationToken,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), RunError> {
    let tls = config.tls.clone().map(ReloadingAcceptor::new).transpose()?;
    let kube_config = load_kube_config(config.kubeconfig.clone()).await?;
    let namespace =
        config.namespace.clone().unwrap_or_else(|| kube_config.default_namespace.clone());
    let client = kube::Client::try_from(kube_config).map_err(no_access)?;
    let page_tls = page_tls(config.tls.clone())?;
    let listeners = Listeners::bind(&config).await?;
    ready(listeners.extender.local_addr().unwrap_or(config.listen));

    let index = Arc::new(Shared::new(Index::default()));
    let relister = Arc::new(Relister::new(client.clone(), index.clone()));
    let clock = Clock::starting_at(Timestamp::now());
    let leases = Api::namespaced(client.clone(), &namespace);
    let fence = Arc::new(Fence::new(leases, &config.lease, &config.identity, clock, relister));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, index.clone());
    let limits = WaitLimits { gang_wait: config.gang_wait, stop: stop.clone() };
    let binder = Arc::new(Binder::new(
        client.clone(),
        index.clone(),
        fence.clone(),
        clock,
        metrics.clone(),
        limits,
    ));
    let access_policy = access_policy(config.page, &client);
    let feed = Arc::new(Feed::new(index.clone(), clock));
    let extender = Extender::new(index.clone(), binder.clone(), metrics);
    let events = PendingEvents::new(index.clone(), client.clone(), clock, &config.identity);
    let events = stop.run_until_cancelled(events.run());
    let rights = Arc::new(Rights::default());
    let state =
        Arc::new(HandlerState { extender, index: index.clone(), registry, rights: rights.clone() });
    let rights = stop.run_until_cancelled(rights.check_until_granted(client.clone(), &namespace));
    let watches = stop.run_until_cancelled(watches::watch_all(client, index));
    let handler = ExtenderHandler { state: state.clone(), served_paths: ServedPaths::All };
    let extender = server::serve(listeners.extender, tls, handler, stop.clone());
    let metrics = serve_metrics(listeners.metrics, state, stop.clone());
    let page_handler = PageHandler { feed, access_policy, agents: None, stop: stop.clone() };
    let page = serve_page(listeners.page, page_tls, page_handler);
    tokio::join!(watches, events, rights, extender, metrics, page);
    // An unfinished bind may still take effect, so the Lease is not released before it: no replica takes over early.
    if binder.drain(DRAIN_LIMIT).await {
        fence.release().await;
    }
    Ok(())
}

/// Source of the page's data.
#[derive(Debug)]
pub enum PageSource {
    /// A cluster, with access to its API server as in [`Config::kubeconfig`].
    Cluster(Option<PathBuf>),
    /// A recorded snapshot of objects.
    Recording(Box<Objects>),
}

/// Serves the page to browsers of this machine until stopped. `agents` is the namespace of the agents.
///
/// # Errors
///
/// No credentials, or the address cannot be bound.
pub async fn run_page(
    address: SocketAddr,
    source: PageSource,
    agents: &str,
    stop: CancellationToken,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), RunError> {
    let (index, live_index, agents) = match source {
        PageSource::Cluster(kubeconfig) => {
            let agents = AgentClient::connect(kubeconfig.clone(), agents).await?;
            let live_index = LiveIndex::connect(kubeconfig).await?;
            (live_index.index.clone(), Some(live_index), Some(agents))
        }
        PageSource::Recording(objects) => (Arc::new(Shared::new(objects.to_index())), None, None),
    };
    let listener = listen(address).await?;
    ready(listener.local_addr().unwrap_or(address));
    let clock = Clock::starting_at(Timestamp::now());
    let handler = PageHandler {
        feed: Arc::new(Feed::new(index, clock)),
        access_policy: AccessPolicy::Loopback,
        agents,
        stop: stop.clone(),
    };
    let watches = async {
        if let Some(live_index) = &live_index {
            Box::pin(stop.run_until_cancelled(live_index.run())).await;
        }
    };
    tokio::join!(watches, serve_page(Some(listener), None, handler));
    Ok(())
}

/// TLS for the page: browsers present no client certificate, so none is required.
fn page_tls(files: Option<TlsFiles>) -> Result<Option<ReloadingAcceptor>, TlsError> {
    let files = files.map(|files| TlsFiles { client_ca: None, ..files });
    files.map(ReloadingAcceptor::new).transpose()
}

fn access_policy(page: Option<PageConfig>, client: &kube::Client) -> AccessPolicy {
    match page {
        Some(PageConfig { allows_anonymous: true, .. }) => AccessPolicy::Anonymous,
        _ => AccessPolicy::BearerToken(Box::new(Authorizer::new(client.clone()))),
    }
}

async fn serve_metrics(
    listener: Option<TcpListener>,
    state: Arc<HandlerState>,
    stop: CancellationToken,
) {
    if let Some(listener) = listener {
        let handler = ExtenderHandler { state, served_paths: ServedPaths::Metrics };
        server::serve(listener, None, handler, stop).await;
    }
}

async fn serve_page(
    listener: Option<TcpListener>,
    tls: Option<ReloadingAcceptor>,
    handler: PageHandler,
) {
    let Some(listener) = listener else { return };
    let (feed, stop) = (handler.feed.clone(), handler.stop.clone());
    let history = stop.run_until_cancelled(feed.run());
    tokio::join!(history, server::serve(listener, tls, handler, stop.clone()));
}

async fn listen_if_set(address: Option<SocketAddr>) -> Result<Option<TcpListener>, RunError> {
    match address {
        Some(address) => listen(address).await.map(Some),
        None => Ok(None),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address).await.map_err(|source| RunError::Listen(address, source))
}
