//! The device plugin: a server and a session with the kubelet for every resource.

mod endpoint;
mod service;
mod session;
mod wire;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use windlass_core::resource::ResourceName;
use windlass_kubelet_api::{
    deviceplugin::KUBELET_SOCKET,
    socket::{SocketError, SocketPath},
};

use crate::{
    causes,
    config::{DeviceList, SessionLimits},
    host::Host,
    state::NodeState,
};
use endpoint::Endpoint;
use service::Service;
use session::Session;

/// Starts a server for each resource as it appears, and keeps it until the agent stops.
pub(crate) struct Plugins {
    pub(crate) dir: PathBuf,
    pub(crate) host: Host,
    pub(crate) device_list: DeviceList,
    pub(crate) limits: SessionLimits,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) directory: watch::Receiver<u64>,
}

/// Where the server of a resource listens. The name keeps clear of other plugins' sockets.
pub(crate) fn socket_path(dir: &Path, resource: &ResourceName) -> Result<SocketPath, SocketError> {
    let plain = resource.as_str().replace('/', "_");
    SocketPath::new(dir.join(format!("windlass-{plain}.sock")))
}

/// Where the kubelet listens for registrations.
pub(crate) fn kubelet_path(dir: &Path) -> Result<SocketPath, SocketError> {
    SocketPath::new(dir.join(KUBELET_SOCKET))
}

/// A resource that cannot be served now is tried again after this, or when the folder changes.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The servers that run, each of which gives its resource back when it ends.
type Servers = JoinSet<ResourceName>;

// === impl Plugins ===

impl Plugins {
    /// Serves every resource that is offered, until stopped or until the state's keeper ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut known = BTreeSet::new();
        let mut servers = Servers::new();
        loop {
            let complete = self.start_missing(&mut known, &mut servers, &stop);
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.state.changed() => if changed.is_err() { break },
                Some(ended) = servers.join_next() => {
                    let resource = ended.expect("a server neither panics nor is cancelled");
                    tracing::error!(%resource, "the server ended; it is started again");
                    known.remove(&resource);
                    tokio::time::sleep(self.limits.retry_most).await;
                }
                Ok(()) = self.directory.changed(), if !complete => {}
                () = tokio::time::sleep(TRY_AGAIN), if !complete => {}
            }
        }
        while servers.join_next().await.is_some() {}
    }

    /// Starts what is offered and not served. Gives whether all could be.
    fn start_missing(
        &mut self,
        known: &mut BTreeSet<ResourceName>,
        servers: &mut Servers,
        stop: &CancellationToken,
    ) -> bool {
        let state = self.state.borrow_and_update().clone();
        let mut complete = true;
        for resource in state.offers.keys() {
            if known.contains(resource) {
                continue;
            }
            let span = tracing::info_span!("plugin", %resource);
            match span.in_scope(|| self.prepare(resource)) {
                Ok((endpoint, service, session)) => {
                    known.insert(resource.clone());
                    let server = endpoint::serve(endpoint, service, session, stop.clone());
                    let resource = resource.clone();
                    let server = async {
                        server.await;
                        resource
                    };
                    servers.spawn(server.instrument(span));
                }
                Err(error) => {
                    complete = false;
                    tracing::error!(%resource, error = causes(&error), "cannot be served yet");
                }
            }
        }
        complete
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
            device_list: self.device_list,
            host: self.host.clone(),
            streams,
        };
        let session = Session {
            resource: resource.clone(),
            kubelet,
            limits: self.limits,
            directory: self.directory.clone(),
            streams: stream_events,
        };
        Ok((endpoint, service, session))
    }
}
