//! Life cycle of the plugin: it serves, registers, registers again, and exits.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use windlass_kubelet_api::{
    deviceplugin::{
        self as wire, VERSION, device_plugin_server::DevicePluginServer,
        registration_client::RegistrationClient,
    },
    server::server,
    socket::SocketPath,
};

use crate::{connections, defect::Defect, devices::Devices, service::Service};

/// Interval between checks of the plugin's and the kubelet's socket.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Delay of the exit after SIGTERM, with the defect of lingering streams. Longer than streams may stay open (a fifth of
/// the stop limit), and shorter than the stop limit, which the test sets to two seconds.
const EXIT_DELAY: Duration = Duration::from_millis(1200);

/// Plugin of one resource.
pub(crate) struct Plugin {
    resource: String,
    socket: PathBuf,
    folder: PathBuf,
    fault_file: PathBuf,
    service: Service,
    defect: Defect,
}

// === impl Plugin ===

impl Plugin {
    pub(crate) fn new(
        devices: (&'static str, usize),
        folder: &Path,
        scratch: &Path,
        defect: Defect,
    ) -> Self {
        let name = devices.0;
        let parent =
            if defect == Defect::SocketElsewhere { folder.join("..") } else { folder.to_owned() };
        Self {
            resource: format!("example.com/{name}"),
            socket: parent.join(format!("{name}.sock")),
            folder: folder.to_owned(),
            fault_file: scratch.join("fail"),
            service: Service::new(Devices::new(devices, defect), defect),
            defect,
        }
    }

    /// Serves, and registers again after each loss. Returns only because of a defect.
    pub(crate) async fn run(&self) {
        let mut servers = JoinSet::new();
        loop {
            if self.defect == Defect::RegistersBeforeServing {
                let _ = self.register(VERSION).await;
            }
            if self.defect == Defect::KeepsOldSocket && self.socket.exists() {
                return;
            }
            servers.shutdown().await;
            let _ = fs::remove_file(&self.socket);
            let Ok(listener) = UnixListener::bind(&self.socket) else {
                sleep(POLL_INTERVAL).await;
                continue;
            };
            servers.spawn(serve(listener, self.service.clone()));
            if !self.register_until_accepted().await {
                return;
            }
            self.wait_until_lost().await;
        }
    }

    /// Removes the plugin's socket.
    pub(crate) fn remove_socket(&self) {
        if self.defect != Defect::LeavesItsSocket {
            let _ = fs::remove_file(&self.socket);
        }
    }

    /// Registers until the kubelet accepts. Returns `false` if a defect gives up.
    async fn register_until_accepted(&self) -> bool {
        if self.defect == Defect::RegistersWithAWrongVersion {
            let _ = self.register("v1alpha").await;
        }
        loop {
            self.service
                .shared
                .health_and_registration
                .send_modify(|(_, registration)| *registration += 1);
            if self.defect == Defect::LeaksDescriptors {
                let leak = || fs::File::open("/dev/null").map(std::mem::forget);
                let _ = (0..3).map(|_| leak()).collect::<Result<Vec<()>, _>>();
            }
            let waits_when_refused = self.defect == Defect::GivesUpWhenRefused;
            let attempt = async {
                tokio::select! {
                    result = self.register(VERSION) => Some(result.is_ok()),
                    // The kubelet would dial a deleted socket for 10 s.
                    () = self.wait_until_deleted(), if !waits_when_refused => None,
                }
            };
            match timeout(Duration::from_secs(30), attempt).await {
                Ok(None | Some(true)) => return true,
                Ok(Some(false)) if waits_when_refused => {
                    std::future::pending::<()>().await;
                }
                Ok(Some(false)) if self.defect == Defect::EndsWithoutKubelet => return false,
                Ok(Some(false)) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    async fn wait_until_deleted(&self) {
        while self.socket.exists() {
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn register(
        &self,
        version: &str,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let channel = SocketPath::new(self.folder.join("kubelet.sock"))?.dial().await?;
        let name = self.socket.file_name().unwrap_or_default().display();
        let prefix = if self.defect == Defect::SocketElsewhere { "../" } else { "" };
        let request = wire::RegisterRequest {
            version: version.to_owned(),
            endpoint: format!("{prefix}{name}"),
            resource_name: self.resource.clone(),
            options: None,
        };
        RegistrationClient::new(channel).register(request).await?;
        Ok(())
    }

    /// Polls until there is a reason to register again.
    async fn wait_until_lost(&self) {
        let (identity, socket) = (self.kubelet_identity(), self.socket.clone());
        let (mut has_streamed, mut polls) = (false, 0_u32);
        loop {
            sleep(POLL_INTERVAL).await;
            polls += 1;
            let is_broken = self.fault_file.exists();
            self.service.shared.health_and_registration.send_if_modified(|(was_broken, _)| {
                let is_changed =
                    *was_broken != is_broken && (is_broken || self.defect != Defect::NeverRecovers);
                *was_broken = if is_changed { is_broken } else { *was_broken };
                is_changed
            });
            let streams = *self.service.shared.streams.borrow();
            has_streamed |= streams > 0;
            let is_cut =
                has_streamed && streams == 0 && self.defect != Defect::DoesNotWatchItsStream;
            let is_deleted = !socket.exists() && self.defect != Defect::DoesNotWatchItsSocket;
            let is_new_kubelet =
                self.kubelet_identity() != identity && self.kubelet_identity().is_some();
            let is_heartbeat = self.defect == Defect::Heartbeat && polls.is_multiple_of(20);
            let is_lost = is_cut || is_deleted || is_new_kubelet || is_heartbeat;
            if is_lost && self.defect != Defect::NeverRegistersAgain {
                return;
            }
        }
    }

    /// Identity of the kubelet's socket file: inode and time of change.
    fn kubelet_identity(&self) -> Option<(u64, i64, i64)> {
        let metadata = fs::symlink_metadata(self.folder.join("kubelet.sock")).ok()?;
        Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    }
}

async fn serve(listener: UnixListener, service: Service) {
    let (sender, connections) = mpsc::channel(1);
    let defect = service.shared.defect;
    let trace = move |request: &tonic::codegen::http::Request<()>| {
        let is_unknown = request.uri().path().ends_with("NoSuchCall");
        if is_unknown && defect == Defect::ExitsOnUnknownCalls {
            std::process::exit(1);
        }
        tracing::Span::none()
    };
    let server = server().trace_fn(trace).add_service(DevicePluginServer::new(service));
    let serving = server.serve_with_incoming(ReceiverStream::new(connections));
    tokio::select! {
        () = connections::accept(listener, sender, defect) => {}
        // The server returns when the stream of connections ends.
        _ = serving => {}
    }
}

/// Removes all files of the folder except the kubelet's socket.
pub(crate) fn delete_other_files(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name() != "kubelet.sock" {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Waits for SIGTERM. Two defects never return.
pub(crate) async fn wait_for_sigterm(defect: Defect) {
    if defect != Defect::HasNoSigtermHandler {
        let mut sigterm = signal(SignalKind::terminate()).expect("a handler");
        sigterm.recv().await;
    }
    if defect == Defect::LingersWithOpenStreams {
        sleep(EXIT_DELAY).await;
    }
    if [Defect::IgnoresTheSignal, Defect::HasNoSigtermHandler].contains(&defect) {
        std::future::pending::<()>().await;
    }
}

/// Busy loop.
pub(crate) async fn busy_loop() {
    loop {
        tokio::task::yield_now().await;
    }
}
