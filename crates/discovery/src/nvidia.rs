//! NVIDIA GPUs and their MIG instances, through NVML.
//!
//! ```text
//!            library loads, driver answers
//!   Absent ─────────────────────────────────> Connected ──┐ probes, events
//!     ^  every probe interval: try again          │       │
//!     └───────────────────────────────────────────┘ <─────┘
//!         driver gone, replaced, or other GPUs: NVML is initialised anew
//! ```
//!
//! NVML calls may hang, so all of them run on blocking threads; an answer that is overdue makes its
//! GPU unresponsive, and a late answer starts its recovery. A GPU whose call still hangs is not asked
//! again. What was ever seen stays in the snapshot, since the kubelet must not lose sight of an id.

mod conditions;
mod connection;
mod describe;
mod events;
mod fabric;
mod facts;
mod known;
mod partition;
mod probe;
mod procfs;
mod question;
mod samples;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use windlass_config::Places;
use windlass_core::{device::SourceName, health::Reason, inventory::SourceState};
use windlass_host::{Host, NVML, Roots, causes, clock::Clock, deadline, nvidia_smi::NvidiaSmi};
use windlass_nvml::{LoadError, Nvml, NvmlError};

pub use describe::PROFILE;
pub(super) use describe::resource;

use self::{
    connection::{Connection, Driver, Listening},
    events::EventWatch,
    facts::DriverFacts,
    known::Known,
    samples::Samples,
};
use super::{PolicyWatch, Publisher, SourceSnapshot};
use crate::{
    health_store::{EvidenceFile, Records},
    mig::{self, Cut, Cutter, PartitionDesk, Recess, RecessDesk, Recesses, rest},
    telemetry::{Telemetry, TelemetryReceiver},
};

/// The source.
pub(super) struct Nvidia {
    library: Option<PathBuf>,
    policy: PolicyWatch,
    roots: Roots,
    known: Known,
    state: SourceState,
    simulated: Option<String>,
    attempt: JoinSet<Result<Driver, ConnectError>>,
    evidence: EvidenceFile,
    /// What is to be kept of the devices' health.
    records: watch::Sender<Records>,
    /// How long a GPU may stay lost before NVML is initialised again.
    patience: Duration,
    telemetry: watch::Sender<Arc<Telemetry>>,
    /// The library while there is a connection, for whoever cuts GPUs.
    library_in_use: watch::Sender<Option<Nvml>>,
    /// What is done to GPUs by those who cut them.
    cuts: mpsc::Receiver<Cut>,
    to_cuts: mpsc::Sender<Cut>,
    /// Who has to have the GPUs closed for a while.
    recesses: Recesses,
    to_recesses: RecessDesk,
}

/// Why there is no connection to the driver.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no libnvidia-ml.so.1 in {searched}; --nvml-library names one")]
    NoLibrary { searched: String },
    #[error("no PCI function is a GPU of NVIDIA's, and there is no {NVML}")]
    NoFunction,
    #[error("no {NVML}, and whether it is needed is unknown: {0}")]
    Unread(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("cannot ask the driver")]
    Ask(#[from] NvmlError),
    #[error("cannot start a thread for the driver's events")]
    Thread(#[from] std::io::Error),
    #[error("the driver did not answer within {0:?}")]
    Overdue(Duration),
}

/// Why a connection ended.
enum Ended {
    /// The agent stops.
    Stopped,
    /// The driver or its set of GPUs changed.
    Changed,
    /// A GPU stays lost; what a reset brought back is seen by a new initialisation only.
    Lost,
    /// Somebody resets a GPU, which takes that nobody has it open.
    Recess(oneshot::Sender<Recess>),
}

/// NVIDIA as PCI has it.
const VENDOR: &str = "10de";

/// The longest time between two initialisations for the sake of a lost GPU.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// What was done and not looked at since; what is more is found by the regular look.
const MOST_CUTS: usize = 64;

/// How many slow calls it takes to cut a GPU: two that make, or two that undo, and time to wait for
/// another order.
const CUT_CALLS: u32 = 4;

// === impl Nvidia ===

impl Nvidia {
    pub(super) fn new(places: &Places, policy: PolicyWatch, host: Host, clock: Clock) -> Self {
        let quiet_period = policy.current().quiet_period;
        let (to_cuts, cuts) = mpsc::channel(MOST_CUTS);
        let (to_recesses, recesses) = RecessDesk::new();
        Self {
            library: places.driver.nvml_library.clone(),
            roots: Roots::new(host.clone(), &places.driver),
            policy,
            known: Known::new(quiet_period, clock),
            state: SourceState::Starting,
            simulated: None,
            attempt: JoinSet::new(),
            evidence: EvidenceFile::new(&places.state_dir, "nvidia", host),
            records: watch::Sender::new(Records::new()),
            patience: quiet_period,
            telemetry: watch::Sender::default(),
            library_in_use: watch::Sender::default(),
            cuts,
            to_cuts,
            recesses,
            to_recesses,
        }
    }

    /// Who cuts its GPUs, and how others have that done.
    pub(super) fn partitions(&self) -> (PartitionDesk, Cutter) {
        let limit = self.policy.current().call_deadline * CUT_CALLS;
        let to_source = (self.to_cuts.clone(), self.to_recesses.clone());
        let (library, smi) = (self.library_in_use.subscribe(), NvidiaSmi::new(&self.roots));
        mig::open(limit, library, smi, to_source)
    }

    /// What the GPUs measure. It is read while there is a receiver.
    pub(super) fn telemetry(&self) -> TelemetryReceiver {
        self.telemetry.subscribe()
    }

    /// Writes the evidence down until stopped; a look at the host that changes nothing is without it.
    pub(super) fn keep(&self, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
        self.evidence.clone().keep(self.records.subscribe(), stop)
    }

    async fn remember(&mut self) {
        let (evidence, now) = (self.evidence.clone(), self.known.now());
        let records = spawn_blocking(move || evidence.load(now)).await;
        self.known.remember(records.expect("loading neither panics nor is cancelled"));
        self.write_down();
    }

    fn write_down(&self) {
        let records = self.known.records();
        windlass_host::watch::publish(&self.records, records);
    }

    /// Looks for the driver until stopped; serves its GPUs while it is there.
    pub(super) async fn run(mut self, to: Publisher, stop: CancellationToken) {
        self.remember().await;
        loop {
            let attempt = tokio::select! {
                () = stop.cancelled() => return,
                attempt = self.connect() => attempt,
            };
            match attempt {
                Ok(connection) => match self.serve(connection, &to, &stop).await {
                    Ended::Stopped => return,
                    Ended::Changed | Ended::Lost => continue,
                    Ended::Recess(request) => {
                        self.rest(request, &stop).await;
                        continue;
                    }
                },
                Err(error) => self.go_without(&error, &to),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.policy.current().probe_interval) => {}
                Some(request) = self.recesses.recv() => self.rest(request, &stop).await,
                () = self.policy.changed() => self.known.set_quiet_period(self.quiet_period()),
            }
        }
    }

    /// Leaves the driver alone until whoever asked for that is done.
    async fn rest(&mut self, first: oneshot::Sender<Recess>, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = rest(first, &mut self.recesses) => {}
        }
    }

    /// Loads NVML and asks for the driver's facts, on a thread that may be lost. An attempt that
    /// hangs is waited for again the next time, not made a second time.
    async fn connect(&mut self) -> Result<Connection, ConnectError> {
        if self.attempt.is_empty() {
            let (library, roots) = (self.library.clone(), self.roots.clone());
            let event_wait = self.policy.current().event_wait;
            self.attempt.spawn_blocking(move || load(library, &roots, event_wait));
        }
        let deadline = self.policy.current().call_deadline;
        match deadline::timeout(deadline, self.attempt.join_next()).await {
            Ok(Some(Ok(driver))) => {
                let policy = self.policy.current();
                let samples = Samples::new(self.telemetry.clone());
                Ok(Connection::new(driver?, &self.roots, policy, self.patience, samples))
            }
            Ok(Some(Err(_)) | None) | Err(_) => Err(ConnectError::Overdue(deadline)),
        }
    }

    async fn serve(
        &mut self,
        mut connection: Connection,
        to: &Publisher,
        stop: &CancellationToken,
    ) -> Ended {
        let driver = connection.driver();
        let DriverFacts { version, cuda, simulated } = driver;
        tracing::info!(version, cuda, simulated, "NVIDIA driver found");
        let ready = SourceState::Ready(describe_driver(driver));
        self.simulated = simulated.clone().or_else(|| self.roots.host.simulated());
        self.library_in_use.send_replace(Some(connection.nvml()));
        let ended = self.follow(&mut connection, &ready, to, stop).await;
        self.library_in_use.send_replace(None);
        match ended {
            Ended::Stopped => {
                connection.abandon();
                return Ended::Stopped;
            }
            Ended::Changed => {
                tracing::info!("NVIDIA driver or GPUs changed; initialising NVML again");
                self.patience = self.quiet_period();
            }
            Ended::Recess(_) => tracing::info!("NVML is shut down while a GPU is reset"),
            Ended::Lost => {
                tracing::info!(after = ?self.patience, "a GPU stays lost; initialising NVML again");
                self.patience = (self.patience * 2).min(MOST_PATIENCE);
            }
        }
        shut_down(connection, ended, stop).await
    }

    /// Takes in what happens and publishes it, until the connection ends.
    async fn follow(
        &mut self,
        connection: &mut Connection,
        ready: &SourceState,
        to: &Publisher,
        stop: &CancellationToken,
    ) -> Ended {
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => Some(Ended::Stopped),
                () = self.policy.changed() => {
                    self.known.set_quiet_period(self.quiet_period());
                    connection.adopt(self.policy.current());
                    None
                }
                Some(cut) = self.cuts.recv() => {
                    match cut {
                        Cut::Done(gpu) => connection.look_again(&gpu, &self.known),
                        Cut::Removed(device) => self.known.forget(&device),
                    }
                    None
                }
                Some(request) = self.recesses.recv() => Some(Ended::Recess(request)),
                ended = connection.step(&mut self.known) => ended,
            };
            if let Some(ended) = ended {
                return ended;
            }
            if connection.has_seen_every_gpu() {
                if connection.take_heart(self.quiet_period()) {
                    self.patience = self.quiet_period();
                }
                let failing = |why: &str| SourceState::Failing(why.to_owned());
                self.state = connection.trouble().map_or_else(|| ready.clone(), failing);
                self.publish(to);
            }
        }
    }

    fn quiet_period(&self) -> Duration {
        self.policy.current().quiet_period
    }

    /// Says so once, and keeps what was known as devices that are gone.
    fn go_without(&mut self, error: &ConnectError, to: &Publisher) {
        let why = causes(error);
        let absent = error.is_absence();
        let state = if absent { SourceState::Absent } else { SourceState::Failing }(why.clone());
        if self.state != state && absent {
            tracing::info!(why, "no NVIDIA driver; looking for one regularly");
        } else if self.state != state {
            tracing::warn!(why, "the NVIDIA driver fails; trying again regularly");
        }
        self.state = state;
        self.known.fail_all(Reason::DriverGone, &why);
        self.publish(to);
    }

    fn publish(&self, to: &Publisher) {
        self.write_down();
        let devices = self.known.devices();
        let simulated = self.simulated.clone();
        let states = [(SourceName::NVIDIA, self.state.clone())].into();
        to.publish(SourceSnapshot { states, simulated, devices });
    }
}

/// Shuts NVML down before the next initialisation; the agent's own end is not kept waiting.
async fn shut_down(connection: Connection, ended: Ended, stop: &CancellationToken) -> Ended {
    tokio::select! {
        () = stop.cancelled() => Ended::Stopped,
        () = connection.shut_down() => ended,
    }
}

// === impl ConnectError ===

impl ConnectError {
    /// Whether there is no driver, as opposed to one that does not work.
    fn is_absence(&self) -> bool {
        match self {
            Self::NoLibrary { .. } | Self::NoFunction => true,
            Self::Load(LoadError::Open { path, .. }) => {
                path.is_absolute() && matches!(path.try_exists(), Ok(false))
            }
            Self::Load(LoadError::Init { source, .. }) => source.is_driver_absent(),
            Self::Unread(_) | Self::Ask(_) | Self::Thread(_) | Self::Overdue(_) => false,
        }
    }

    /// The error of a library that the dynamic linker does not find. Where there is no GPU of NVIDIA's nobody expects
    /// one.
    fn unloaded(error: LoadError, host: &Host) -> Self {
        match &error {
            LoadError::Open { path, .. } if path.is_relative() => match host.has_pci_vendor(VENDOR)
            {
                Ok(true) => Self::Load(error),
                Ok(false) => Self::NoFunction,
                Err(unread) => Self::Unread(unread),
            },
            LoadError::Open { .. } | LoadError::Init { .. } => Self::Load(error),
        }
    }
}

/// Loads the library that was named, or the one that is found. Blocks, perhaps for ever.
fn load(
    library: Option<PathBuf>,
    roots: &Roots,
    event_wait: Duration,
) -> Result<Driver, ConnectError> {
    let host = &roots.host;
    let found = roots.nvml_library(library);
    let library = found.ok_or_else(|| ConnectError::NoLibrary { searched: searched(roots) })?;
    // Read before NVML is, so that a change in between is noticed.
    let fingerprint = procfs::fingerprint(host);
    let nvml = Nvml::load(&library).map_err(|error| ConnectError::unloaded(error, host))?;
    let facts = DriverFacts::read(&nvml)?;
    let listening = listen(&nvml, event_wait)?;
    tracing::debug!(library = %library.display(), "NVML loaded");
    Ok(Driver { nvml, facts, listening, fingerprint })
}

/// Where was looked, the host's places after the driver's.
fn searched(roots: &Roots) -> String {
    let (driver, host) = (roots.driver.nvml_folders(), roots.host.nvml_folders());
    if driver == host { host } else { format!("{driver}, {host}") }
}

/// Makes a set for events and a thread that waits for them. Blocks.
fn listen(nvml: &Nvml, event_wait: Duration) -> Result<Listening, ConnectError> {
    let set = Arc::new(nvml.event_set()?);
    Ok(Listening { watch: EventWatch::start(set.clone(), event_wait)?, set })
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
    fn a_missing_library_is_a_failure_only_where_a_gpu_is_or_cannot_be_looked_for() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        let judged = || {
            // The driver's own name may be loaded in this process, by another test or from the machine.
            let error = Nvml::load("libnvidia-nowhere.so.1".as_ref()).expect_err("no such library");
            let error = ConnectError::unloaded(error, &host);
            (error.is_absence(), causes(&error))
        };
        let (is_absent, why) = judged();
        assert!(is_absent && why.starts_with("no PCI function is a GPU of NVIDIA's"), "{why}");

        let bus = root.path().join("sys/bus/pci");
        let plug = |address: &str, vendor: &str| {
            let folder = bus.join("devices").join(address);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("vendor"), vendor).expect("written");
        };
        plug("0000:00:1f.0", "0x8086\n");
        assert!(judged().0, "another vendor's function");
        plug("0000:01:00.0", "0x10de\n");
        let (is_absent, why) = judged();
        assert!(!is_absent && why.starts_with("cannot load libnvidia-nowhere.so.1"), "{why}");

        fs::remove_dir_all(bus.join("devices")).expect("removed");
        // Root may read everything but a folder that is none.
        fs::write(bus.join("devices"), "").expect("written");
        let (is_absent, why) = judged();
        assert!(!is_absent && why.contains("cannot read /sys/bus/pci/devices: "), "{why}");
    }
}
