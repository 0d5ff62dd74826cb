//! The driver's two sockets: one for DRA calls, and one by which the kubelet registers the driver.
//!
//! ```text
//!   off ──offered, a claim is prepared, or the kubelet has a claim of this driver──> serving ──none of these──> off
//!                                                                                           │ ^
//!                                                                     a socket was deleted  └─┘ bound again
//! ```
//!
//! The socket for calls exists before the socket for registration, and is removed after it.

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Duration, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use windlass_config::{DraOffer, DriverName, Policy};
use windlass_host::{
    blocking, causes, deadline, directory::DirectoryWatch, files::folder, state_file::Versioned,
};
use windlass_kubelet_api::{
    dated::WithDateHeader,
    dra::{
        self, PLUGINS_DIR, health::dra_resource_health_server::DraResourceHealthServer,
        v1::dra_plugin_server as v1, v1beta1::dra_plugin_server as v1beta1,
    },
    endpoint::Endpoint,
    pluginregistration::{self, REGISTRY_DIR, registration_server::RegistrationServer},
    server::server,
    socket::{SocketError, SocketPath},
};

use super::{
    health::{HealthPublisher, HealthService},
    kubelet_checkpoint::KubeletCheckpoint,
    record::Records,
    registrar::{Registrar, RegistrationState},
    service::Service,
};

/// Serves while the driver is needed.
pub(super) struct Server {
    pub(super) driver: DriverName,
    pub(super) sockets: Sockets,
    pub(super) service: Service,
    pub(super) health: HealthPublisher,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    pub(super) records: watch::Receiver<Versioned<Records>>,
    /// The kubelet may call the driver to release claims that were never prepared.
    pub(super) kubelet_checkpoint: KubeletCheckpoint,
    pub(super) registration: watch::Sender<RegistrationState>,
    /// Interval of checks of the sockets without an event.
    pub(super) check_interval: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Sockets {
    pub(super) driver: PathBuf,
    pub(super) registration: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot watch {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("a server of the DRA driver ended")]
    ServerEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Devices are offered, or claims have to be released.
    Needed,
    /// The driver has nothing to serve.
    NotNeeded,
}

/// A socket that is bound again after its deletion.
struct WatchedSocket {
    endpoint: Endpoint,
    folder: PathBuf,
    /// Counts changes of the folder.
    changes: watch::Receiver<u64>,
}

/// Size limit of the kubelet's messages. A call with the most claims and the longest names takes 100 KB.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Shutdown deadline of running calls.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

// === impl Server ===

impl Server {
    /// Serves whenever the driver is needed, until stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut logged = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait_for(Need::Needed) => {}
            }
            let Err(error) = self.serve_while_needed(&stop).await else { continue };
            let message = causes(&error);
            if logged.replace(message.clone()).as_ref() != Some(&message) {
                tracing::error!(error = message, "DRA driver not serving, retrying");
            }
            self.registration.send_replace(RegistrationState::Failing(message));
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.check_interval) => {}
            }
        }
    }

    async fn serve_while_needed(&self, stop: &CancellationToken) -> Result<(), ServeError> {
        let end = stop.child_token();
        let mut serving = pin!(self.serve(&end));
        tokio::select! {
            outcome = &mut serving => outcome,
            () = self.wait_for(Need::NotNeeded) => {
                end.cancel();
                serving.await
            }
        }
    }

    async fn serve(&self, end: &CancellationToken) -> Result<(), ServeError> {
        let (mut servers, mut helpers) = (JoinSet::new(), JoinSet::new());
        let mut driver_socket = self.bind(&self.sockets.driver, &mut helpers)?;
        let incoming = driver_socket.endpoint.incoming();
        let router = self.router(end, &mut helpers);
        servers.spawn(router.serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned()));

        let mut registration = self.bind(&self.sockets.registration, &mut helpers)?;
        let incoming = registration.endpoint.incoming();
        let registrar = RegistrationServer::new(self.registrar());
        let router = server()
            .add_service(WithDateHeader(registrar.max_decoding_message_size(MAX_MESSAGE_BYTES)));
        servers.spawn(router.serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned()));

        self.registration.send_replace(RegistrationState::Serving);
        tracing::info!(driver = %self.driver, socket = %driver_socket.endpoint.path(), "DRA driver serving");
        let outcome = loop {
            tokio::select! {
                // Servers that end on request are no failure.
                biased;
                () = end.cancelled() => break Ok(()),
                Ok(()) = driver_socket.changes.changed() => driver_socket.ensure_bound(),
                Ok(()) = registration.changes.changed() => registration.ensure_bound(),
                Some(_) = servers.join_next() => break Err(ServeError::ServerEnded),
            }
        };
        // The kubelet must not find a driver that ends.
        registration.endpoint.close();
        end.cancel();
        let drained = async { while servers.join_next().await.is_some() {} };
        let _ = deadline::timeout(DRAIN_TIMEOUT, drained).await;
        driver_socket.endpoint.close();
        self.registration.send_replace(RegistrationState::Off);
        outcome
    }

    fn bind(&self, path: &Path, helpers: &mut JoinSet<()>) -> Result<WatchedSocket, ServeError> {
        let socket = SocketPath::new(path)?;
        let folder = path.parent().unwrap_or(path).to_owned();
        let folder_error = |source| ServeError::Folder { path: folder.clone(), source };
        folder::create_dir_all(&folder).map_err(folder_error)?;
        let folder_watch = DirectoryWatch::new(&folder).map_err(folder_error)?;
        let (change_sender, changes) = watch::channel(0);
        let endpoint = Endpoint::bind(socket)?;
        helpers.spawn(folder_watch.run(change_sender, self.check_interval));
        Ok(WatchedSocket { endpoint, folder, changes })
    }

    /// gRPC services for the kubelet's calls.
    fn router(&self, end: &CancellationToken, helpers: &mut JoinSet<()>) -> Router {
        let mut health = self.health.clone();
        let (snapshot_sender, snapshots) = watch::channel(health.snapshot());
        helpers.spawn(health.run(snapshot_sender, end.clone()));
        let v1 = v1::DraPluginServer::new(self.service.clone());
        let v1beta1 = v1beta1::DraPluginServer::new(self.service.clone());
        let health = DraResourceHealthServer::new(HealthService(snapshots));
        server()
            .add_service(WithDateHeader(v1.max_decoding_message_size(MAX_MESSAGE_BYTES)))
            .add_service(WithDateHeader(v1beta1.max_decoding_message_size(MAX_MESSAGE_BYTES)))
            .add_service(WithDateHeader(health.max_decoding_message_size(MAX_MESSAGE_BYTES)))
    }

    fn registrar(&self) -> Registrar {
        Registrar {
            driver: self.driver.clone(),
            endpoint: self.sockets.driver.display().to_string(),
            state: self.registration.clone(),
        }
    }

    /// True if the kubelet will release a claim. An unreadable checkpoint is read again later.
    async fn kubelet_has_claims(&self) -> bool {
        let checkpoint = self.kubelet_checkpoint.clone();
        blocking(move || checkpoint.has_claims()).await.unwrap_or(false)
    }

    /// Waits until the driver is needed, or no longer needed.
    async fn wait_for(&self, need: Need) {
        let (mut policy, mut records) = (self.policy.clone(), self.records.clone());
        loop {
            let is_offered = policy.borrow_and_update().dra.offer != DraOffer::Off;
            let is_held = !records.borrow_and_update().1.is_empty();
            let is_needed = is_offered || is_held || self.kubelet_has_claims().await;
            let current_need = if is_needed { Need::Needed } else { Need::NotNeeded };
            if current_need == need {
                return;
            }
            tokio::select! {
                Ok(()) = policy.changed() => {}
                Ok(()) = records.changed() => {}
                () = sleep(self.check_interval), if !is_offered && !is_held => {}
                // The agent ends.
                else => std::future::pending().await,
            }
        }
    }
}

// === impl Sockets ===

impl Sockets {
    pub(super) fn new(kubelet_dir: &Path, driver: &DriverName) -> Self {
        let plugin_dir = kubelet_dir.join(PLUGINS_DIR).join(driver.as_str());
        let registry = kubelet_dir.join(REGISTRY_DIR);
        Self {
            driver: plugin_dir.join(dra::socket_name(None)),
            registration: registry.join(pluginregistration::socket_name(driver.as_str(), None)),
        }
    }
}

// === impl WatchedSocket ===

impl WatchedSocket {
    /// Binds the socket again if it was deleted.
    fn ensure_bound(&mut self) {
        if self.endpoint.is_in_place() {
            return;
        }
        // The folder may have been deleted too; if it cannot be made, binding fails.
        let _ = folder::create_dir_all(&self.folder);
        let socket = self.endpoint.path().clone();
        match self.endpoint.rebind() {
            Ok(()) => tracing::info!(%socket, "DRA socket was deleted and is bound again"),
            Err(error) => tracing::error!(
                error = causes(&error),
                "cannot bind DRA socket again: the kubelet cannot reach the driver"
            ),
        }
    }
}
