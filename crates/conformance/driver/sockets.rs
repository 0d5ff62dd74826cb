//! The driver's two sockets. Both replace leftover files, and a deleted registration socket is bound again.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::UnixListener, task::JoinSet, time::sleep};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use windlass_kubelet_api::{
    dra::{
        health::dra_resource_health_server::DraResourceHealthServer,
        v1::dra_plugin_server::DraPluginServer,
    },
    pluginregistration::{registration_server::RegistrationServer, socket_name},
    server::{Connection, server},
};

use crate::{BoxError, DRIVER, defect::Defect, services::Services};

/// Interval between checks of the registration socket.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Paths of the driver's sockets.
pub(crate) struct Sockets {
    pub(crate) endpoint: PathBuf,
    registration: PathBuf,
    defect: Defect,
}

// === impl Sockets ===

impl Sockets {
    pub(crate) fn new(kubelet: &Path, defect: Defect) -> Self {
        let name = match defect {
            Defect::PlainSocketName => format!("{DRIVER}-reg.sock"),
            _ => socket_name(DRIVER, None),
        };
        Self {
            endpoint: kubelet.join("plugins").join(DRIVER).join("dra.sock"),
            registration: kubelet.join("plugins_registry").join(name),
            defect,
        }
    }

    /// Serves both sockets until one fails.
    pub(crate) async fn serve(&self, services: Services) -> Result<(), BoxError> {
        let mut servers = JoinSet::new();
        if self.defect == Defect::ServesLate {
            servers.spawn(serve_registration(self.bind(&self.registration)?, services.clone()));
            sleep(Duration::from_secs(2)).await;
        }
        servers.spawn(serve_claims(self.bind(&self.endpoint)?, services.clone()));
        loop {
            if !self.registration.exists() || servers.len() == 1 {
                let listener = self.bind(&self.registration)?;
                servers.spawn(serve_registration(listener, services.clone()));
            }
            if self.defect == Defect::DoesNotWatchItsSocket {
                std::future::pending::<()>().await;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes the registration socket, because the kubelet would dial it.
    pub(crate) fn remove_registration(&self) {
        if self.defect == Defect::IgnoresTheSignal {
            std::thread::sleep(Duration::from_secs(60));
        }
        if self.defect != Defect::LeavesItsSocket {
            let _ = fs::remove_file(&self.registration);
        }
    }

    fn bind(&self, path: &Path) -> Result<UnixListener, BoxError> {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        if self.defect != Defect::KeepsOldSockets {
            let _ = fs::remove_file(path);
        }
        Ok(UnixListener::bind(path)?)
    }
}

async fn serve_registration(listener: UnixListener, services: Services) {
    let server = server().add_service(RegistrationServer::new(services));
    let _ = server.serve_with_incoming(incoming(listener)).await;
}

async fn serve_claims(listener: UnixListener, services: Services) {
    let server = server()
        .add_service(DraPluginServer::new(services.clone()))
        .add_service(DraResourceHealthServer::new(services));
    let _ = server.serve_with_incoming(incoming(listener)).await;
}

fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    UnixListenerStream::new(listener)
        .map(|result| result.map(|stream| Connection::new(stream, std::future::pending())))
}
