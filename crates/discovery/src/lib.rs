//! Device discovery: a source per device family watches the host and publishes snapshots of its devices.

pub mod health_store;
pub mod live_driver;
pub mod mig;
pub mod telemetry;

mod amd;
mod described;
mod facts;
mod failure;
mod fpga;
mod host_watch;
mod intel;
mod log;
mod nics;
mod nvidia;
mod nvme;
mod policy;
mod scanner;
mod sensors;

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_config::{CleanupSteps, HostPaths, Policy};
use windlass_core::{
    device::{Device, SourceName},
    inventory::SourceState,
    resource::ResourceName,
};
use windlass_host::{Host, clock::Clock};

pub use described::{CandidateVerdict, SourceDiagnosis, diagnose};
pub use fpga::{FpgaIdentity, IdentityMismatch};
pub use host_watch::HostWatch;
pub use nics::{
    AUXILIARY_DEVICE, DRIVER, PF_PCI_ADDRESS, RDMA_DEVICE, REPRESENTOR, VDPA_DEVICE, VDPA_TYPE,
};

use self::{
    policy::DriverPolicyWatch,
    scanner::{ScanTriggers, Scanner, ScannerTask},
    sensors::{ReadSensors, SensorReader},
};
use crate::{live_driver::LiveDriver, mig::MigHandle, telemetry::TelemetryReceiver};

/// Snapshot of a source's devices.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    /// State of each source in the snapshot.
    pub states: BTreeMap<SourceName, SourceState>,
    /// Machine profile, if the host is simulated.
    pub simulated: Option<String>,
    /// All devices, failed and vanished ones included.
    pub devices: Vec<Device>,
}

/// A device source, ready to run.
pub struct Source {
    /// Name in the inventory, in logs and in `windlass devices`.
    pub name: &'static str,
    /// Published snapshots.
    pub snapshots: watch::Receiver<SourceSnapshot>,
    /// Measurements, for sources that have any.
    pub telemetry: Option<TelemetryReceiver>,
    /// MIG worker handle, for sources whose devices can be partitioned.
    pub mig: Option<MigHandle>,
    /// Access to the driver library while it is initialised, for sources that use one.
    pub driver: Option<LiveDriver>,
    /// Task of the source; ends when the cancellation token passed to [`sources`] is cancelled.
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Task that writes the source's state to disk for the next agent process; ends like `run`. A dry run does
    /// not start it.
    pub persist: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Sender of a source's snapshots; each change also wakes the reconciler.
#[derive(Debug)]
pub(crate) struct Publisher {
    snapshots: watch::Sender<SourceSnapshot>,
    reconciler: Arc<Notify>,
}

/// A built-in source: its method of discovery and its part of the configuration.
struct BuiltInSource {
    name: SourceName,
    method: DiscoveryMethod,
    /// Default resource name of a device, if the source has one.
    resource: fn(&Policy, &Device) -> Option<ResourceName>,
    /// Configured cleanup steps of the source's devices; `None` if the source has no cleanup keys.
    cleanup: fn(&Policy) -> Option<&CleanupSteps>,
}

/// Method by which a source discovers devices.
enum DiscoveryMethod {
    /// Calls to NVIDIA's driver, which also reports events and creates MIG instances.
    Driver,
    /// Scans of the host's files: name of the source, constructor of its scanner, reader of the devices' sensors.
    HostScan(&'static str, fn(&Policy) -> Box<dyn Scanner>, Option<ReadSensors>),
}

#[rustfmt::skip]
static BUILT_IN: &[BuiltInSource] = &[
    BuiltInSource { name: SourceName::NVIDIA, method: DiscoveryMethod::Driver, resource: nvidia::resource, cleanup: |policy| Some(&policy.families.gpu) },
    BuiltInSource { name: SourceName::NICS, method: DiscoveryMethod::HostScan("nics", |policy| Box::new(nics::Nics::new(policy)), Some(nics::sample)), resource: |_, _| None, cleanup: |policy| Some(&policy.nics.cleanup) },
    BuiltInSource { name: SourceName::AMD, method: DiscoveryMethod::HostScan("amd GPUs", |_| Box::new(amd::Amd::default()), Some(amd::sample)), resource: amd::resource, cleanup: |_| None },
    BuiltInSource { name: SourceName::INTEL, method: DiscoveryMethod::HostScan("intel GPUs", |_| Box::new(intel::Intel::default()), Some(intel::sample)), resource: intel::resource, cleanup: |_| None },
    BuiltInSource { name: SourceName::FPGA, method: DiscoveryMethod::HostScan("FPGAs", |_| Box::new(fpga::Fpga::default()), None), resource: |_, device| fpga::resource(device), cleanup: |policy| Some(&policy.families.fpga.cleanup) },
    BuiltInSource { name: SourceName::NVME, method: DiscoveryMethod::HostScan("NVMe drives", |_| Box::new(nvme::Nvme), None), resource: |_, _| None, cleanup: |_| None },
];

/// Default resource of a device.
pub fn default_resource(policy: &Policy, device: &Device) -> Option<ResourceName> {
    let built_in = BUILT_IN.iter().find(|built_in| built_in.name == device.source)?;
    (built_in.resource)(policy, device)
}

/// Configured cleanup steps of a source's devices; `None` for a source without cleanup keys.
pub fn cleanup_steps<'a>(policy: &'a Policy, source: &SourceName) -> Option<&'a CleanupSteps> {
    match BUILT_IN.iter().find(|built_in| built_in.name == *source) {
        Some(built_in) => (built_in.cleanup)(policy),
        None => policy.sources.iter().find(|rule| rule.name == *source).map(|rule| &rule.cleanup),
    }
}

/// Builds every source without reading the host. All sources share the host's caches and apply policy changes.
/// `changes` counts host events. Each published snapshot notifies `reconciler`. `stop` ends the tasks.
pub fn sources(
    places: &HostPaths,
    host: &Host,
    policy: &watch::Receiver<Arc<Policy>>,
    changes: &watch::Receiver<u64>,
    clock: Clock,
    reconciler: &Arc<Notify>,
    stop: &CancellationToken,
) -> Vec<Source> {
    let initial = policy.borrow().clone();
    let (configured_sources, prober) = described::ConfiguredSources::new(places, &initial, host);
    let triggers = ScanTriggers { policies: policy.clone(), host_events: changes.clone() };
    let builder = SourceBuilder { places, host, clock, triggers, reconciler, stop };
    let configured_sources =
        builder.scanning_source("described devices", Box::new(configured_sources));
    let configured_sources = configured_sources.with_task(prober.run(stop.clone()));
    let built_in = BUILT_IN.iter().map(|built_in| builder.built_in(&built_in.method, &initial));
    built_in.chain([configured_sources]).collect()
}

struct SourceBuilder<'a> {
    places: &'a HostPaths,
    host: &'a Host,
    clock: Clock,
    triggers: ScanTriggers,
    reconciler: &'a Arc<Notify>,
    stop: &'a CancellationToken,
}

impl SourceBuilder<'_> {
    fn built_in(&self, method: &DiscoveryMethod, policy: &Policy) -> Source {
        match *method {
            DiscoveryMethod::Driver => self.nvidia(),
            DiscoveryMethod::HostScan(name, scanner, None) => {
                self.scanning_source(name, scanner(policy))
            }
            DiscoveryMethod::HostScan(name, scanner, Some(read)) => {
                self.with_sensors(self.scanning_source(name, scanner(policy)), read)
            }
        }
    }

    /// NVIDIA's source, which also calls the driver, receives its events and creates MIG instances.
    fn nvidia(&self) -> Source {
        let (stop, policy) = (self.stop, DriverPolicyWatch::new(self.triggers.policies.clone()));
        let nvidia = nvidia::Nvidia::new(self.places, policy, self.host.clone(), self.clock);
        let (handle, worker) = nvidia.mig_channel();
        let (publisher, snapshots) = Publisher::new([SourceName::NVIDIA], self.reconciler);
        let source = Source {
            name: "nvidia",
            snapshots,
            persist: Some(Box::pin(nvidia.persist_records(stop.clone()))),
            telemetry: Some(nvidia.telemetry()),
            mig: Some(handle),
            driver: Some(nvidia.live_driver()),
            run: Box::pin(nvidia.run(publisher, stop.clone())),
        };
        source.with_task(worker.run(stop.clone()))
    }

    /// Adds the task that reads the devices' sensors.
    fn with_sensors(&self, source: Source, read: ReadSensors) -> Source {
        let (host, policies) = (self.host.clone(), self.triggers.policies.clone());
        let sensors = SensorReader::new(read, host, self.clock, source.snapshots.clone(), policies);
        let telemetry = Some(sensors.telemetry());
        Source { telemetry, ..source.with_task(sensors.run(self.stop.clone())) }
    }

    fn scanning_source(&self, name: &'static str, scanner: Box<dyn Scanner>) -> Source {
        let (publisher, snapshots) = Publisher::new(scanner.names(), self.reconciler);
        let task = ScannerTask::new(scanner, self.host.clone(), self.clock);
        let run = task.run(self.triggers.clone(), publisher, self.stop.clone());
        Source {
            name,
            snapshots,
            persist: None,
            telemetry: None,
            mig: None,
            driver: None,
            run: Box::pin(run),
        }
    }
}

// === impl Source ===

impl Source {
    /// Runs another task concurrently with the source's task.
    fn with_task(self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        let run = Box::pin(async {
            tokio::join!(self.run, task);
        });
        Self { run, ..self }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

// === impl SourceSnapshot ===

impl SourceSnapshot {
    fn starting(names: impl IntoIterator<Item = SourceName>) -> Self {
        let states = names.into_iter().map(|name| (name, SourceState::Starting)).collect();
        Self { states, simulated: None, devices: Vec::new() }
    }
}

// === impl Publisher ===

impl Publisher {
    fn new(
        names: impl IntoIterator<Item = SourceName>,
        reconciler: &Arc<Notify>,
    ) -> (Self, watch::Receiver<SourceSnapshot>) {
        let (snapshots, receiver) = watch::channel(SourceSnapshot::starting(names));
        (Self { snapshots, reconciler: reconciler.clone() }, receiver)
    }

    /// Reports a scan that missed its deadline: publishes the last devices, sets all sources to `Failing`, and logs a
    /// warning.
    fn publish_timeout(&self, reason: &str) {
        let mut snapshot = self.snapshots.borrow().clone();
        let sources: Vec<_> = snapshot.states.keys().map(SourceName::as_str).collect();
        tracing::warn!(
            sources = sources.join(" "),
            why = reason,
            "scan is late: devices stay as last seen"
        );
        snapshot
            .states
            .values_mut()
            .for_each(|state| *state = SourceState::Failing(reason.to_owned()));
        self.publish(snapshot);
    }

    /// Publishes a snapshot and wakes the reconciler, unless the snapshot equals the last one.
    fn publish(&self, snapshot: SourceSnapshot) {
        if windlass_host::watch::publish_if_changed(&self.snapshots, snapshot) {
            self.reconciler.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
