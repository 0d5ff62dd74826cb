//! NVIDIA GPUs and their MIG instances, through NVML.
//!
//! ```text
//!            library loads, driver answers
//!   Absent ─────────────────────────────────> Connected ──┐ probes, events
//!     ^  every probe interval: try again          │       │
//!     └───────────────────────────────────────────┘ <─────┘
//!         driver gone, replaced, or other GPUs: NVML is initialised again
//! ```
//!
//! NVML calls may hang, so they run on blocking threads. A call past its deadline makes its GPU unresponsive;
//! a late answer starts the recovery. A GPU with a hanging call is not called again. Known devices stay in
//! the snapshot, since the kubelet must not lose an id.

mod baseline;
mod conditions;
mod connection;
mod describe;
mod events;
mod fabric;
mod facts;
mod partition;
mod probe;
mod procfs;
mod samples;
mod tracked;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use windlass_config::HostPaths;
use windlass_core::{device::SourceName, health::Reason, inventory::SourceState};
use windlass_host::{
    Host, NVML, Roots, blocking, causes, clock::Clock, deadline, nvidia_smi::NvidiaSmi,
};
use windlass_nvml::{LoadError, Nvml, NvmlError};

pub(super) use describe::resource;

use self::{
    baseline::Baselines,
    connection::{Connection, Driver, EventListener},
    events::EventWatch,
    facts::DriverFacts,
    samples::TelemetryReader,
    tracked::TrackedDevices,
};
use super::{DriverPolicyWatch, Publisher, SourceSnapshot};
use crate::{
    health_store::{HealthFile, HealthRecords},
    live_driver::LiveDriver,
    mig::{
        self, MigHandle, MigNotice, MigWorker, NvmlShutdownGuard, NvmlShutdownHandle,
        NvmlShutdownRequests, grant_until_dropped,
    },
    telemetry::{Telemetry, TelemetryReceiver},
};

/// Source of NVIDIA GPUs and MIG instances.
pub(super) struct Nvidia {
    /// Configured path of NVML.
    library: Option<PathBuf>,
    policy: DriverPolicyWatch,
    roots: Roots,
    tracked: TrackedDevices,
    /// Baselines for the next initialisation.
    baselines: Baselines,
    state: SourceState,
    simulated: Option<String>,
    /// Connection attempt that has not returned; at most one.
    attempt: JoinSet<Result<Driver, ConnectError>>,
    health_file: HealthFile,
    /// Health records to write.
    records: watch::Sender<HealthRecords>,
    /// Time after which NVML is initialised again for a lost GPU.
    lost_gpu_delay: Duration,
    telemetry: watch::Sender<Arc<Telemetry>>,
    /// NVML while it is initialised, for the MIG worker and [`LiveDriver`].
    initialised_nvml: watch::Sender<Option<Nvml>>,
    /// Notices of finished MIG tasks.
    mig_notices: mpsc::Receiver<MigNotice>,
    mig_notice_sender: mpsc::Sender<MigNotice>,
    /// Requests to shut NVML down.
    shutdown_requests: NvmlShutdownRequests,
    shutdown_handle: NvmlShutdownHandle,
}

/// Reason for no connection to the driver.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no libnvidia-ml.so.1 in {searched}: install the driver or set --nvml-library")]
    NoLibrary { searched: String },
    #[error("no NVIDIA GPU on the PCI bus and no {NVML}")]
    NoGpu,
    #[error("no {NVML}, and the PCI bus is unreadable: {0}")]
    UnreadableBus(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("a call to the driver failed")]
    Call(#[from] NvmlError),
    #[error("cannot start a thread for the driver's events")]
    Thread(#[from] std::io::Error),
    #[error("the driver did not answer within {0:?}")]
    Timeout(Duration),
}

/// Reason for the end of a connection.
enum ConnectionEnd {
    Stopped,
    /// The driver or its set of GPUs changed.
    DriverChanged,
    /// A GPU stays lost. NVML finds the GPU again only after a reset of the GPU and a new initialisation of NVML.
    GpuLost,
    /// A GPU is to be reset, which needs all handles closed.
    ShutdownRequested(oneshot::Sender<NvmlShutdownGuard>),
}

/// PCI vendor id of NVIDIA.
const VENDOR: &str = "10de";

/// Upper limit of the delay before NVML is initialised again for a lost GPU. The delay doubles each time.
const MAX_LOST_GPU_DELAY: Duration = Duration::from_secs(600);

/// Channel capacity of MIG notices. If one is dropped, the next regular probe finds the change.
const MAX_NOTICES: usize = 64;

/// Driver calls that the limit of a MIG task allows for: two to create an instance and two to revert it. The rest is
/// time for another task before it.
const CALLS_PER_MIG_TASK: u32 = 4;

// === impl Nvidia ===

impl Nvidia {
    pub(super) fn new(
        paths: &HostPaths,
        policy: DriverPolicyWatch,
        host: Host,
        clock: Clock,
    ) -> Self {
        let quiet_period = policy.current().health.quiet_period;
        let (mig_notice_sender, mig_notices) = mpsc::channel(MAX_NOTICES);
        let (shutdown_handle, shutdown_requests) = NvmlShutdownHandle::new();
        Self {
            library: paths.nvml_library.clone(),
            roots: paths.driver.roots(host.clone()),
            policy,
            tracked: TrackedDevices::new(quiet_period, clock),
            baselines: Baselines::new(),
            state: SourceState::Starting,
            simulated: None,
            attempt: JoinSet::new(),
            health_file: HealthFile::new(&paths.state_dir, "nvidia", host),
            records: watch::Sender::new(HealthRecords::new()),
            lost_gpu_delay: quiet_period,
            telemetry: watch::Sender::default(),
            initialised_nvml: watch::Sender::default(),
            mig_notices,
            mig_notice_sender,
            shutdown_requests,
            shutdown_handle,
        }
    }

    pub(super) fn mig_channel(&self) -> (MigHandle, MigWorker) {
        let timeout = self.policy.current().health.call_deadline * CALLS_PER_MIG_TASK;
        let source_channels = (self.mig_notice_sender.clone(), self.shutdown_handle.clone());
        let (library, smi) = (self.initialised_nvml.subscribe(), NvidiaSmi::new(&self.roots));
        mig::channel(timeout, library, smi, source_channels)
    }

    /// The driver library while it is initialised.
    pub(super) fn live_driver(&self) -> LiveDriver {
        let library = self.initialised_nvml.subscribe();
        LiveDriver::new(self.roots.clone(), self.library.clone(), library)
    }

    /// Telemetry of the GPUs, read while a receiver exists.
    pub(super) fn telemetry(&self) -> TelemetryReceiver {
        self.telemetry.subscribe()
    }

    /// Writes health records until stopped. A dry run does not start this task.
    pub(super) fn persist_records(
        &self,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        self.health_file.clone().persist(self.records.subscribe(), stop)
    }

    /// Loads the health records of an earlier agent process.
    async fn load_records(&mut self) {
        let (health_file, now) = (self.health_file.clone(), self.tracked.now());
        self.tracked.set_earlier_records(blocking(move || health_file.load(now)).await);
        self.publish_records();
    }

    fn publish_records(&self) {
        let records = self.tracked.records();
        windlass_host::watch::publish_if_changed(&self.records, records);
    }

    /// Connects to the driver, publishes its GPUs while connected, and reconnects, until stopped.
    pub(super) async fn run(mut self, publisher: Publisher, stop: CancellationToken) {
        self.load_records().await;
        loop {
            let attempt = tokio::select! {
                () = stop.cancelled() => return,
                attempt = self.connect() => attempt,
            };
            match attempt {
                Ok(connection) => match self.serve(connection, &publisher, &stop).await {
                    ConnectionEnd::Stopped => return,
                    ConnectionEnd::DriverChanged | ConnectionEnd::GpuLost => continue,
                    ConnectionEnd::ShutdownRequested(request) => {
                        self.hold_nvml_shutdown(request, &stop).await;
                        continue;
                    }
                },
                Err(error) => self.publish_unconnected(&error, &publisher),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.policy.current().health.probe_interval) => {}
                Some(request) = self.shutdown_requests.recv() => self.hold_nvml_shutdown(request, &stop).await,
                () = self.policy.changed() => self.tracked.set_quiet_period(self.quiet_period()),
            }
        }
    }

    /// Keeps NVML shut down until all guards are dropped, or the agent stops.
    async fn hold_nvml_shutdown(
        &mut self,
        first: oneshot::Sender<NvmlShutdownGuard>,
        stop: &CancellationToken,
    ) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = grant_until_dropped(first, &mut self.shutdown_requests) => {}
        }
    }

    /// Loads NVML and reads the driver's facts, on a thread that may never return. If an attempt hangs, the next call
    /// waits for that attempt instead of starting a second one.
    async fn connect(&mut self) -> Result<Connection, ConnectError> {
        if self.attempt.is_empty() {
            let (library, roots) = (self.library.clone(), self.roots.clone());
            let event_wait = self.policy.current().health.event_wait;
            self.attempt.spawn_blocking(move || load(library, &roots, event_wait));
        }
        let deadline = self.policy.current().health.call_deadline;
        match deadline::timeout(deadline, self.attempt.join_next()).await {
            Ok(Some(Ok(driver))) => {
                let policy = self.policy.current();
                let telemetry_reader = TelemetryReader::new(self.telemetry.clone());
                let baselines = self.baselines.clone();
                Ok(Connection::new(
                    driver?,
                    &self.roots,
                    policy,
                    self.lost_gpu_delay,
                    baselines,
                    telemetry_reader,
                ))
            }
            Ok(Some(Err(_)) | None) | Err(_) => Err(ConnectError::Timeout(deadline)),
        }
    }

    async fn serve(
        &mut self,
        mut connection: Connection,
        publisher: &Publisher,
        stop: &CancellationToken,
    ) -> ConnectionEnd {
        let driver = connection.driver();
        let DriverFacts { version, cuda, simulated } = driver;
        tracing::info!(version, cuda, simulated, "NVIDIA driver found");
        let ready_state = SourceState::Ready(describe_driver(driver));
        self.simulated = simulated.clone().or_else(|| self.roots.host.simulated());
        self.initialised_nvml.send_replace(Some(connection.nvml()));
        let end = self.process_events(&mut connection, &ready_state, publisher, stop).await;
        self.initialised_nvml.send_replace(None);
        self.baselines = connection.baselines();
        match end {
            ConnectionEnd::Stopped => {
                connection.abandon();
                return ConnectionEnd::Stopped;
            }
            ConnectionEnd::DriverChanged => {
                tracing::info!("NVIDIA driver or GPUs changed; initialising NVML again");
                self.lost_gpu_delay = self.quiet_period();
            }
            ConnectionEnd::ShutdownRequested(_) => {
                tracing::info!("NVML is shut down while a GPU is reset");
            }
            ConnectionEnd::GpuLost => {
                let delay = self.lost_gpu_delay;
                tracing::info!(after = ?delay, "a GPU stays lost; initialising NVML again");
                self.lost_gpu_delay = (self.lost_gpu_delay * 2).min(MAX_LOST_GPU_DELAY);
            }
        }
        shut_down(connection, end, stop).await
    }

    /// Handles events and publishes snapshots until the connection ends.
    async fn process_events(
        &mut self,
        connection: &mut Connection,
        ready_state: &SourceState,
        publisher: &Publisher,
        stop: &CancellationToken,
    ) -> ConnectionEnd {
        loop {
            let end = tokio::select! {
                () = stop.cancelled() => Some(ConnectionEnd::Stopped),
                () = self.policy.changed() => {
                    self.tracked.set_quiet_period(self.quiet_period());
                    connection.apply_policy(self.policy.current());
                    None
                }
                Some(notice) = self.mig_notices.recv() => {
                    match notice {
                        MigNotice::TaskDone(gpu) => connection.probe_again(&gpu, &self.tracked),
                        MigNotice::Removed(device) => self.tracked.mark_removed(&device),
                    }
                    None
                }
                Some(request) = self.shutdown_requests.recv() =>
                    Some(ConnectionEnd::ShutdownRequested(request)),
                end = connection.step(&mut self.tracked) => end,
            };
            if let Some(end) = end {
                return end;
            }
            if connection.has_seen_every_gpu() {
                if connection.reset_lost_gpu_delay(self.quiet_period()) {
                    self.lost_gpu_delay = self.quiet_period();
                }
                let failing = |error: &str| SourceState::Failing(error.to_owned());
                self.state = connection.error().map_or_else(|| ready_state.clone(), failing);
                self.publish(publisher);
            }
        }
    }

    fn quiet_period(&self) -> Duration {
        self.policy.current().health.quiet_period
    }

    /// Marks all tracked devices as unhealthy without a connection, and logs a new error.
    fn publish_unconnected(&mut self, error: &ConnectError, publisher: &Publisher) {
        let reason = causes(error);
        let is_absent = error.is_absence();
        let state =
            if is_absent { SourceState::Absent } else { SourceState::Failing }(reason.clone());
        if self.state != state && is_absent {
            tracing::info!(why = reason, "no NVIDIA driver: GPUs appear once it is installed");
        } else if self.state != state {
            tracing::warn!(
                why = reason,
                "NVIDIA driver failing, trying again: fix the cause or reboot"
            );
        }
        self.state = state;
        self.tracked.fail_all(Reason::DriverGone, &reason);
        self.publish(publisher);
    }

    fn publish(&self, publisher: &Publisher) {
        self.publish_records();
        let devices = self.tracked.devices();
        let simulated = self.simulated.clone();
        let states = [(SourceName::NVIDIA, self.state.clone())].into();
        publisher.publish(SourceSnapshot { states, simulated, devices });
    }
}

/// Shuts NVML down before the next initialisation, unless the agent stops first.
async fn shut_down(
    connection: Connection,
    end: ConnectionEnd,
    stop: &CancellationToken,
) -> ConnectionEnd {
    tokio::select! {
        () = stop.cancelled() => ConnectionEnd::Stopped,
        () = connection.shut_down() => end,
    }
}

// === impl ConnectError ===

impl ConnectError {
    /// True if there is no driver, as opposed to a failing one.
    fn is_absence(&self) -> bool {
        match self {
            Self::NoLibrary { .. } | Self::NoGpu => true,
            Self::Load(LoadError::Open(path, _)) => {
                path.is_absolute() && matches!(path.try_exists(), Ok(false))
            }
            Self::Load(LoadError::Init(_, source)) => source.is_driver_absent(),
            Self::Load(LoadError::Truncated { .. })
            | Self::UnreadableBus(_)
            | Self::Call(_)
            | Self::Thread(_)
            | Self::Timeout(_) => false,
        }
    }

    /// Error of a library that does not load. A missing library is no failure on a machine without NVIDIA GPUs.
    fn from_load_error(error: LoadError, host: &Host) -> Self {
        match &error {
            LoadError::Open(path, _) if path.is_relative() => match host.has_pci_vendor(VENDOR) {
                Ok(true) => Self::Load(error),
                Ok(false) => Self::NoGpu,
                Err(detail) => Self::UnreadableBus(detail),
            },
            _ => Self::Load(error),
        }
    }
}

/// Loads NVML from its configured path or from the first path found. May block forever.
fn load(
    library: Option<PathBuf>,
    roots: &Roots,
    event_wait: Duration,
) -> Result<Driver, ConnectError> {
    let host = &roots.host;
    let library_path = roots.nvml_library(library);
    let library = library_path
        .ok_or_else(|| ConnectError::NoLibrary { searched: searched_folders(roots) })?;
    // Read before NVML is loaded, so that a driver change during loading is noticed.
    let fingerprint = procfs::fingerprint(host);
    let nvml = Nvml::load(&library).map_err(|error| ConnectError::from_load_error(error, host))?;
    let facts = DriverFacts::read(&nvml)?;
    let listener = start_listener(&nvml, event_wait)?;
    tracing::debug!(library = %library.display(), "NVML loaded");
    Ok(Driver { nvml, facts, listener, fingerprint })
}

/// Searched folders: the driver root's, then the host's.
fn searched_folders(roots: &Roots) -> String {
    let (driver, host) = (roots.driver.nvml_folders(), roots.host.nvml_folders());
    if driver == host { host } else { format!("{driver}, {host}") }
}

/// Creates an event set and its waiting thread. Blocks.
fn start_listener(nvml: &Nvml, event_wait: Duration) -> Result<EventListener, ConnectError> {
    let set = Arc::new(nvml.event_set()?);
    Ok(EventListener { watch: EventWatch::start(set.clone(), event_wait)?, set })
}

fn describe_driver(driver: &DriverFacts) -> String {
    match &driver.cuda {
        Some(cuda) => format!("driver {}, CUDA {cuda}", driver.version),
        None => format!("driver {}", driver.version),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_library_is_a_failure_only_with_a_gpu_or_an_unreadable_bus() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        let absence = || {
            // A library under the driver's real name may already be loaded in this process.
            let error = Nvml::load("libnvidia-nowhere.so.1".as_ref()).expect_err("no such library");
            let error = ConnectError::from_load_error(error, &host);
            (error.is_absence(), causes(&error))
        };
        let (is_absent, reason) = absence();
        assert!(is_absent && reason.starts_with("no NVIDIA GPU on the PCI bus"), "{reason}");

        let bus = root.path().join("sys/bus/pci");
        let plug = |address: &str, vendor: &str| {
            let folder = bus.join("devices").join(address);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("vendor"), vendor).expect("written");
        };
        plug("0000:00:1f.0", "0x8086\n");
        assert!(absence().0, "another vendor's function");
        plug("0000:01:00.0", "0x10de\n");
        let (is_absent, reason) = absence();
        assert!(!is_absent && reason.starts_with("cannot load libnvidia-nowhere.so.1"), "{reason}");

        fs::remove_dir_all(bus.join("devices")).expect("removed");
        // A file in place of the folder makes the bus unreadable even for root.
        fs::write(bus.join("devices"), "").expect("written");
        let (is_absent, reason) = absence();
        assert!(!is_absent && reason.contains("cannot read /sys/bus/pci/devices: "), "{reason}");
    }
}
