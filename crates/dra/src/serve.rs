//! The driver's two sockets: the one on which it serves, and the one by which the kubelet finds it.
//!
//! ```text
//!   off ──offered, something is prepared, or the kubelet has a claim of ours──> serving ──nothing──> off
//!                                                                                │ ^
//!                                                          a socket was deleted  └─┘ bound anew
//! ```
//!
//! The driver's socket is there before the kubelet can find it, and goes after the kubelet no longer can.

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{Duration, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use windlass_config::{DraOffer, DriverName, Policy};
use windlass_host::{
    causes, deadline, directory::DirectoryWatch, files::folder, state_file::Versioned,
};
use windlass_kubelet_api::{
    dated::Dated,
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
    health::{HealthList, HealthService},
    kubelet_record::KubeletRecord,
    record::Records,
    registrar::{Registrar, Standing},
    service::Service,
};

/// Serves while there is something to serve.
pub(super) struct Serving {
    pub(super) driver: DriverName,
    pub(super) sockets: Sockets,
    pub(super) service: Service,
    pub(super) health: HealthList,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    pub(super) records: watch::Receiver<Versioned<Records>>,
    /// What the kubelet still wants released, whether or not anything was prepared.
    pub(super) kubelet_record: KubeletRecord,
    pub(super) standing: watch::Sender<Standing>,
    /// How often sockets are looked at without a reason.
    pub(super) look_interval: Duration,
}

/// Where the sockets are.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    pub(super) driver: PathBuf,
    pub(super) registration: PathBuf,
}

/// Why the driver cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot watch {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("a server of the DRA driver ended")]
    Ended,
}

/// Whether anybody needs the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// Something is offered, or is still to be released.
    Some,
    None,
}

/// A socket that is kept in place.
struct Kept {
    endpoint: Endpoint,
    folder: PathBuf,
    /// Counts the changes of its folder.
    changes: watch::Receiver<u64>,
}

/// The longest message of a kubelet's: as many claims as a call may be for, under the longest names, take 100 KB.
const LONGEST_MESSAGE: usize = 256 * 1024;

/// How long calls under way may take to end.
const DRAIN: Duration = Duration::from_secs(2);

// === impl Serving ===

impl Serving {
    /// Serves whenever there is something to serve, until stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut said = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.comes_to(Demand::Some) => {}
            }
            let Err(error) = self.serve_while_needed(&stop).await else { continue };
            let why = causes(&error);
            if said.as_ref() != Some(&why) {
                tracing::error!(error = why, "the DRA driver is not served for the moment");
                said = Some(why.clone());
            }
            self.standing.send_replace(Standing::Failing(why));
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.look_interval) => {}
            }
        }
    }

    async fn serve_while_needed(&self, stop: &CancellationToken) -> Result<(), ServeError> {
        let end = stop.child_token();
        let mut serving = pin!(self.serve(&end));
        tokio::select! {
            outcome = &mut serving => outcome,
            () = self.comes_to(Demand::None) => {
                end.cancel();
                serving.await
            }
        }
    }

    async fn serve(&self, end: &CancellationToken) -> Result<(), ServeError> {
        let (mut servers, mut helpers) = (JoinSet::new(), JoinSet::new());
        let mut own = self.bind(&self.sockets.driver, &mut helpers)?;
        let incoming = own.endpoint.incoming();
        let calls = self.calls(end, &mut helpers);
        servers.spawn(calls.serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned()));

        let mut registration = self.bind(&self.sockets.registration, &mut helpers)?;
        let incoming = registration.endpoint.incoming();
        let registrar = RegistrationServer::new(self.registrar());
        let calls =
            server().add_service(Dated(registrar.max_decoding_message_size(LONGEST_MESSAGE)));
        servers.spawn(calls.serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned()));

        self.standing.send_replace(Standing::Serving);
        tracing::info!(driver = %self.driver, socket = %own.endpoint.path(), "serving claims");
        let outcome = loop {
            tokio::select! {
                // Servers that were told to end are no failure.
                biased;
                () = end.cancelled() => break Ok(()),
                Ok(()) = own.changes.changed() => own.put_back(),
                Ok(()) = registration.changes.changed() => registration.put_back(),
                Some(_) = servers.join_next() => break Err(ServeError::Ended),
            }
        };
        // No kubelet shall find a driver that goes.
        registration.endpoint.close();
        end.cancel();
        let ended = async { while servers.join_next().await.is_some() {} };
        let _ = deadline::timeout(DRAIN, ended).await;
        own.endpoint.close();
        self.standing.send_replace(Standing::Off);
        outcome
    }

    fn bind(&self, path: &Path, helpers: &mut JoinSet<()>) -> Result<Kept, ServeError> {
        let socket = SocketPath::new(path)?;
        let folder = path.parent().unwrap_or(path).to_owned();
        let refused = |source| ServeError::Folder { path: folder.clone(), source };
        folder::make_all(&folder).map_err(refused)?;
        let watched = DirectoryWatch::new(&folder).map_err(refused)?;
        let (count, changes) = watch::channel(0);
        let endpoint = Endpoint::bind(socket)?;
        helpers.spawn(watched.run(count, self.look_interval));
        Ok(Kept { endpoint, folder, changes })
    }

    /// What the kubelet asks of the driver.
    fn calls(&self, end: &CancellationToken, helpers: &mut JoinSet<()>) -> Router {
        let mut health = self.health.clone();
        let (list, lists) = watch::channel(health.list());
        helpers.spawn(health.run(list, end.clone()));
        let v1 = v1::DraPluginServer::new(self.service.clone());
        let v1beta1 = v1beta1::DraPluginServer::new(self.service.clone());
        let health = DraResourceHealthServer::new(HealthService(lists));
        server()
            .add_service(Dated(v1.max_decoding_message_size(LONGEST_MESSAGE)))
            .add_service(Dated(v1beta1.max_decoding_message_size(LONGEST_MESSAGE)))
            .add_service(Dated(health.max_decoding_message_size(LONGEST_MESSAGE)))
    }

    fn registrar(&self) -> Registrar {
        Registrar {
            driver: self.driver.clone(),
            endpoint: self.sockets.driver.display().to_string(),
            standing: self.standing.clone(),
        }
    }

    /// Whether the kubelet will ask for a claim to be released. A record that cannot be read is read again.
    async fn kubelet_has_ours(&self) -> bool {
        let record = self.kubelet_record.clone();
        let read = spawn_blocking(move || record.has_ours()).await;
        read.expect("reading neither panics nor is cancelled").unwrap_or(false)
    }

    /// Waits until somebody needs the driver, or nobody does.
    async fn comes_to(&self, demand: Demand) {
        let (mut policy, mut records) = (self.policy.clone(), self.records.clone());
        loop {
            let is_offered = policy.borrow_and_update().dra.offer != DraOffer::Off;
            let is_held = !records.borrow_and_update().1.is_empty();
            let is_needed = is_offered || is_held || self.kubelet_has_ours().await;
            let now = if is_needed { Demand::Some } else { Demand::None };
            if now == demand {
                return;
            }
            tokio::select! {
                Ok(()) = policy.changed() => {}
                Ok(()) = records.changed() => {}
                () = sleep(self.look_interval), if !is_offered && !is_held => {}
                // Nothing changes any more.
                else => std::future::pending().await,
            }
        }
    }
}

// === impl Sockets ===

impl Sockets {
    /// As every driver has them.
    pub(super) fn new(kubelet_dir: &Path, driver: &DriverName) -> Self {
        let own = kubelet_dir.join(PLUGINS_DIR).join(driver.as_str());
        let registry = kubelet_dir.join(REGISTRY_DIR);
        Self {
            driver: own.join(dra::socket_name(None)),
            registration: registry.join(pluginregistration::socket_name(driver.as_str(), None)),
        }
    }
}

// === impl Kept ===

impl Kept {
    /// Puts the socket back where somebody deleted it.
    fn put_back(&mut self) {
        if self.endpoint.is_in_place() {
            return;
        }
        // The folder may have gone with it; if it cannot be made the socket says so.
        let _ = folder::make_all(&self.folder);
        let socket = self.endpoint.path().clone();
        match self.endpoint.bind_again() {
            Ok(()) => tracing::info!(%socket, "socket was deleted, serving on a new one"),
            Err(error) => tracing::error!(error = causes(&error), "cannot serve for the moment"),
        }
    }
}
