//! The device plugin: a server and a session with the kubelet for every resource.

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
use windlass_core::resource::ResourceName;
use windlass_kubelet_api::{
    deviceplugin::KUBELET_SOCKET,
    socket::{MAX_PATH_BYTES, SocketError, SocketPath},
};

use crate::{
    causes, choices::Teller, config::SessionLimits, endpoint::Endpoint, handover::HandoverDesk,
    holders::HoldersDesk, host::Roots, ledger::LedgerDesk, metrics::Instruments, mps::MpsPlaces,
    shortened::shortened, state::NodeState,
};
use service::{Company, Service};
use session::Session;

/// Starts a server for each resource as it appears, and keeps it until the agent stops.
pub(crate) struct Plugins {
    pub(crate) dir: PathBuf,
    pub(crate) roots: Roots,
    pub(crate) mps: MpsPlaces,
    pub(crate) limits: SessionLimits,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) instruments: Instruments,
    pub(crate) choices: Teller,
    pub(crate) handovers: HandoverDesk,
    pub(crate) ledger: LedgerDesk,
    pub(crate) holders: HoldersDesk,
    pub(crate) directory: watch::Receiver<u64>,
    pub(crate) company: Together,
}

/// What was given away last, for the servers of all resources.
#[derive(Clone, Debug)]
pub(crate) struct Together(watch::Sender<Company>);

/// Where the server of a resource listens. The name keeps clear of other plugins' sockets; that of an
/// FPGA's function is longer than the kernel takes, and is cut.
pub(crate) fn socket_path(dir: &Path, resource: &ResourceName) -> Result<SocketPath, SocketError> {
    let plain = resource.as_str().replace('/', "_");
    let named = |name: &str| dir.join(format!("windlass-{name}.sock"));
    let over = named(&plain).as_os_str().len().saturating_sub(MAX_PATH_BYTES);
    SocketPath::new(named(&shortened(&plain, plain.len().saturating_sub(over))))
}

/// Where the kubelet listens for registrations.
pub(crate) fn kubelet_path(dir: &Path) -> Result<SocketPath, SocketError> {
    SocketPath::new(dir.join(KUBELET_SOCKET))
}

/// The servers that run, each of which gives its resource back when it ends.
type Servers = JoinSet<ResourceName>;

/// Resources that are not served for the moment: until when, and why.
type Resting = BTreeMap<ResourceName, (Instant, String)>;

// === impl Together ===

impl Default for Together {
    fn default() -> Self {
        Self(watch::Sender::new(Company::default()))
    }
}

// === impl Plugins ===

impl Plugins {
    /// Serves every resource that is offered, until stopped or until the state's keeper ends. One that
    /// cannot be served is tried again at the interval of the regular looks.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
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
            metrics: self.instruments.rpc(resource),
            placements: self.instruments.placements(resource),
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
            metrics: self.instruments.registration(resource),
        };
        Ok((endpoint, service, session))
    }
}
