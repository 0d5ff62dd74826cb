//! The device plugin: a server and a session with the kubelet for every resource.

mod endpoint;
mod service;
mod session;
mod wire;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
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

// === impl Plugins ===

impl Plugins {
    /// Serves until stopped, or until the state's keeper ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut served = BTreeSet::new();
        let mut servers = JoinSet::new();
        loop {
            let offered: Vec<_> = self.state.borrow_and_update().offers.keys().cloned().collect();
            for resource in offered {
                if served.insert(resource.clone()) {
                    self.start(resource, &mut servers, &stop);
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.state.changed() => if changed.is_err() { break },
            }
        }
        while servers.join_next().await.is_some() {}
    }

    /// A resource that cannot be served is said so, and the others are.
    fn start(&self, resource: ResourceName, servers: &mut JoinSet<()>, stop: &CancellationToken) {
        let span = tracing::info_span!("resource", name = %resource);
        let bound = kubelet_path(&self.dir).and_then(|kubelet| {
            let own = socket_path(&self.dir, &resource)?;
            Ok((Endpoint::bind(own)?, kubelet))
        });
        let (endpoint, kubelet) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                span.in_scope(|| {
                    tracing::error!(error = &error as &dyn std::error::Error, "not served");
                });
                return;
            }
        };
        span.in_scope(|| tracing::info!(socket = %endpoint.path(), "serving"));
        let (streams, stream_events) = tokio::sync::mpsc::unbounded_channel();
        let service = Service {
            resource: resource.clone(),
            state: self.state.clone(),
            device_list: self.device_list,
            host: self.host.clone(),
            streams,
        };
        let session = Session {
            resource,
            kubelet,
            limits: self.limits,
            directory: self.directory.clone(),
            streams: stream_events,
        };
        servers.spawn(endpoint::serve(endpoint, service, session, stop.clone()).instrument(span));
    }
}
