//! The device plugin: a server and a session with the kubelet for every resource.

pub mod history;
pub mod metrics;
pub mod registration;

mod server;
mod service;
mod session;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use windlass_allocations::{ledger::LedgerDesk, podresources::HoldersDesk};
use windlass_config::SessionLimits;
use windlass_core::resource::ResourceName;
use windlass_host::{Roots, abbreviate::shortened, causes, shared::Shared};
use windlass_kubelet_api::{
    deviceplugin::KUBELET_SOCKET,
    endpoint::Endpoint,
    socket::{MAX_PATH_BYTES, SocketError, SocketPath},
};
use windlass_lifecycle::{cleanup::HandoverDesk, mps::MpsPlaces};
use windlass_resources::NodeState;

use self::{
    history::Teller,
    metrics::PluginMetrics,
    service::{Company, Service},
    session::Session,
};

/// Starts a server for each resource as it appears, and keeps it until the agent stops.
#[derive(Debug)]
pub struct Plugins {
    /// The kubelet's folder for plugins.
    pub dir: PathBuf,
    /// Where device nodes are looked for.
    pub roots: Roots,
    /// Where daemons of MPS have their sockets.
    pub mps: MpsPlaces,
    /// Time limits of the conversation with the kubelet.
    pub limits: SessionLimits,
    /// The node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// What is counted.
    pub metrics: PluginMetrics,
    /// Where choices are noted.
    pub choices: Teller,
    /// Where starts of containers wait for clean devices.
    pub handovers: HandoverDesk,
    /// Who holds what.
    pub ledger: LedgerDesk,
    /// Who holds what, as the kubelet tells when asked.
    pub holders: HoldersDesk,
    /// Counts the notices from the kubelet's folder.
    pub directory: watch::Receiver<u64>,
    /// What was given away last.
    pub company: Together,
}

/// What was given away last, for the servers of all resources.
#[derive(Clone, Debug, Default)]
pub struct Together(Arc<Shared<Company>>);

/// Where the server of a resource listens. The name keeps clear of other plugins' sockets; that of an
/// FPGA's function is longer than the kernel takes, and is cut.
pub fn socket_path(dir: &Path, resource: &ResourceName) -> Result<SocketPath, SocketError> {
    let plain = resource.as_str().replace('/', "_");
    let named = |name: &str| dir.join(format!("windlass-{name}.sock"));
    let over = named(&plain).as_os_str().len().saturating_sub(MAX_PATH_BYTES);
    SocketPath::new(named(&shortened(&plain, plain.len().saturating_sub(over))))
}

/// Where the kubelet listens for registrations.
pub fn kubelet_path(dir: &Path) -> Result<SocketPath, SocketError> {
    SocketPath::new(dir.join(KUBELET_SOCKET))
}

/// The servers that run, each of which gives its resource back when it ends.
type Servers = JoinSet<ResourceName>;

/// Resources that are not served for the moment: until when, and why.
type Resting = BTreeMap<ResourceName, (Instant, String)>;

// === impl Plugins ===

impl Plugins {
    /// Serves every resource that is offered, until stopped or until the reconciler ends. One that
    /// cannot be served is tried again at the interval of the regular looks.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut served, mut resting) = (BTreeSet::new(), Resting::new());
        let mut servers = Servers::new();
        loop {
            for resource in self.missing(&served, &resting) {
                match self.start(&resource, &mut servers, &stop) {
                    Ok(()) => {
                        resting.remove(&resource);
                        served.insert(resource);
                    }
                    Err(error) => self.rest(resource, causes(&error), &mut resting),
                }
            }
            // What is no longer offered is not waited for.
            resting.retain(|name, _| self.state.borrow().offers.contains_key(name));
            let wake = resting.values().map(|(until, _)| *until).min();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.state.changed() => if changed.is_err() { break },
                Some(ended) = servers.join_next() => {
                    let resource = ended.expect("a server neither panics nor is cancelled");
                    served.remove(&resource);
                    self.rest(resource, "its server ended".to_owned(), &mut resting);
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
        while servers.join_next().await.is_some() {}
    }

    /// What is offered, not served, and not resting.
    fn missing(&mut self, served: &BTreeSet<ResourceName>, resting: &Resting) -> Vec<ResourceName> {
        let (state, now) = (self.state.borrow_and_update().clone(), Instant::now());
        let rests = |name: &ResourceName| resting.get(name).is_some_and(|(until, _)| now < *until);
        let missing = state.offers.keys().filter(|name| !served.contains(*name) && !rests(name));
        missing.cloned().collect()
    }

    /// Tries again later; says why when the reason is a new one.
    fn rest(&self, resource: ResourceName, why: String, resting: &mut Resting) {
        if resting.get(&resource).is_none_or(|(_, known)| *known != why) {
            tracing::error!(%resource, why, "not served for the moment");
        }
        resting.insert(resource, (Instant::now() + self.limits.look_interval, why));
    }

    fn start(
        &self,
        resource: &ResourceName,
        servers: &mut Servers,
        stop: &CancellationToken,
    ) -> Result<(), SocketError> {
        let span = tracing::info_span!("plugin", %resource);
        let (endpoint, service, session) = span.in_scope(|| self.prepare(resource))?;
        let server = server::serve(endpoint, service, session, stop.clone());
        let resource = resource.clone();
        let server = async {
            server.await;
            resource
        };
        servers.spawn(server.instrument(span));
        Ok(())
    }

    fn prepare(
        &self,
        resource: &ResourceName,
    ) -> Result<(Endpoint, Service, Session), SocketError> {
        let kubelet = kubelet_path(&self.dir)?;
        let endpoint = Endpoint::bind(socket_path(&self.dir, resource)?)?;
        tracing::info!(socket = %endpoint.path(), "serving");
        let (streams, stream_events) = tokio::sync::mpsc::unbounded_channel();
        let service = Service {
            resource: resource.clone(),
            state: self.state.clone(),
            roots: self.roots.clone(),
            mps: self.mps.clone(),
            metrics: self.metrics.rpc(resource),
            placements: self.metrics.placements(resource),
            choices: self.choices.clone(),
            company: self.company.0.clone(),
            handovers: self.handovers.clone(),
            ledger: self.ledger.clone(),
            holders: self.holders.clone(),
            streams,
            newest: watch::Sender::default(),
        };
        let session = Session {
            resource: resource.clone(),
            socket: endpoint.path().file_name().to_owned(),
            kubelet,
            limits: self.limits,
            state: self.state.clone(),
            directory: self.directory.clone(),
            streams: stream_events,
            metrics: self.metrics.registration(resource),
        };
        Ok((endpoint, service, session))
    }
}
