//! Device plugin API: one gRPC server and one kubelet session per resource.

pub mod history;
pub mod metrics;
pub mod registration;
pub mod shares;

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
use windlass_allocations::{ledger::SharedLedger, podresources::PodResourcesCache};
use windlass_cdi::memory_limits::ReplicaLimits;
use windlass_config::KubeletLimits;
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_host::{Roots, abbreviate::shortened, causes, shared::Shared};
use windlass_kubelet_api::{
    deviceplugin::KUBELET_SOCKET,
    endpoint::Endpoint,
    socket::{MAX_PATH_BYTES, SocketError, SocketPath},
};
use windlass_lifecycle::{cleanup::CleanupHandle, mps::MpsFolders};
use windlass_resources::NodeState;

use self::{
    history::HistorySender,
    metrics::PluginMetrics,
    service::{AllocationGroup, Service},
    session::Session,
    shares::ShareHandle,
};

/// Whole GPUs that the cluster half decided: one set for each bound pod that the kubelet has not admitted yet, in the
/// order of binding.
pub type ClusterDecisions = Vec<Vec<DeviceId>>;

/// Supervisor of the servers: starts one for each offered resource.
#[derive(Debug)]
pub struct PluginSupervisor {
    /// Device plugin folder of the kubelet.
    pub dir: PathBuf,
    /// Roots of the host's file systems, for device nodes.
    pub roots: Roots,
    /// Socket folders of the MPS daemons.
    pub mps: MpsFolders,
    /// Memory limits of replicas.
    pub replica_limits: ReplicaLimits,
    /// Timeouts of the kubelet session.
    pub limits: KubeletLimits,
    /// Snapshots of the node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// Counters of all servers.
    pub metrics: PluginMetrics,
    /// Sender to the allocation history.
    pub choices: HistorySender,
    /// Cleanup requests before a container starts.
    pub cleanup: CleanupHandle,
    /// Allocations of this agent.
    pub ledger: SharedLedger,
    /// Holders from the kubelet's pod resources API.
    pub holders: PodResourcesCache,
    /// Counter of changes in the kubelet's folder.
    pub directory: watch::Receiver<u64>,
    /// Latest allocations. Allocations close in time probably belong to one container.
    pub recent: RecentAllocations,
    /// Requests to bind shares, before a container starts.
    pub shares: ShareHandle,
    /// Decisions of the cluster half.
    pub decisions: watch::Receiver<Arc<ClusterDecisions>>,
}

/// Latest allocations, shared by the servers of all resources.
#[derive(Clone, Debug, Default)]
pub struct RecentAllocations(Arc<Shared<AllocationGroup>>);

/// Socket path of a resource's server. The prefix avoids collisions with other plugins. Names that exceed
/// the kernel's limit, such as those of FPGA functions, are shortened.
pub fn socket_path(dir: &Path, resource: &ResourceName) -> Result<SocketPath, SocketError> {
    let resource_name = resource.as_str().replace('/', "_");
    let path_with = |name: &str| dir.join(format!("windlass-{name}.sock"));
    let excess = path_with(&resource_name).as_os_str().len().saturating_sub(MAX_PATH_BYTES);
    SocketPath::new(path_with(&shortened(
        &resource_name,
        resource_name.len().saturating_sub(excess),
    )))
}

/// Socket path of the kubelet's registration service.
pub fn kubelet_path(dir: &Path) -> Result<SocketPath, SocketError> {
    SocketPath::new(dir.join(KUBELET_SOCKET))
}

/// Running servers; each returns its resource when it ends.
type Servers = JoinSet<ResourceName>;

/// Resources that wait for another attempt: time and reason.
type PendingRetries = BTreeMap<ResourceName, (Instant, String)>;

// === impl PluginSupervisor ===

impl PluginSupervisor {
    /// Serves every offered resource until stopped or until the reconciler ends. A failed server is started
    /// again after `check_interval`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut served = BTreeSet::new();
        let mut pending_retries = PendingRetries::new();
        let mut servers = Servers::new();
        loop {
            for resource in self.unserved_resources(&served, &pending_retries) {
                match self.start(&resource, &mut servers, &stop) {
                    Ok(()) => {
                        pending_retries.remove(&resource);
                        served.insert(resource);
                    }
                    Err(error) => self.retry_later(resource, causes(&error), &mut pending_retries),
                }
            }
            // Withdrawn resources need no retry.
            pending_retries.retain(|name, _| self.state.borrow().offers.contains_key(name));
            let retry_at = pending_retries.values().map(|(time, _)| *time).min();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.state.changed() => if changed.is_err() { break },
                Some(result) = servers.join_next() => {
                    let resource = result.expect("a server neither panics nor is cancelled");
                    served.remove(&resource);
                    self.retry_later(resource, "its server ended".to_owned(), &mut pending_retries);
                }
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
            }
        }
        while servers.join_next().await.is_some() {}
    }

    /// Offered resources that have no server and no pending retry.
    fn unserved_resources(
        &mut self,
        served: &BTreeSet<ResourceName>,
        pending_retries: &PendingRetries,
    ) -> Vec<ResourceName> {
        let (state, now) = (self.state.borrow_and_update().clone(), Instant::now());
        let has_pending_retry =
            |name: &ResourceName| pending_retries.get(name).is_some_and(|(time, _)| now < *time);
        let unserved =
            state.offers.keys().filter(|name| !served.contains(*name) && !has_pending_retry(name));
        unserved.cloned().collect()
    }

    /// Schedules another attempt; logs the reason if it is new.
    fn retry_later(
        &self,
        resource: ResourceName,
        reason: String,
        pending_retries: &mut PendingRetries,
    ) {
        if pending_retries.get(&resource).is_none_or(|(_, last_reason)| *last_reason != reason) {
            tracing::error!(%resource, why = reason, "resource not served, trying again");
        }
        pending_retries.insert(resource, (Instant::now() + self.limits.check_interval, reason));
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
            limits: self.replica_limits.clone(),
            metrics: self.metrics.rpc(resource),
            placements: self.metrics.placements(resource),
            choices: self.choices.clone(),
            recent: self.recent.0.clone(),
            cleanup: self.cleanup.clone(),
            ledger: self.ledger.clone(),
            holders: self.holders.clone(),
            shares: self.shares.clone(),
            decisions: self.decisions.clone(),
            streams,
            newest_list: watch::Sender::default(),
        };
        let session = Session {
            resource: resource.clone(),
            socket_name: endpoint.path().file_name().to_owned(),
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
