//! Finding devices: each source watches one family and publishes what it knows.

pub mod health_store;
pub mod mig;
pub mod telemetry;

mod amd;
mod asking;
mod crowds;
mod described;
mod facts;
mod family;
mod fpga;
mod graphics;
mod host_watch;
mod intel;
mod log;
mod nics;
mod nvidia;
mod nvme;
mod policy;
mod trouble;

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_config::{Places, Policy};
use windlass_core::{
    device::{Device, SourceName},
    inventory::SourceState,
    resource::ResourceName,
};
use windlass_host::{Host, clock::Clock};

pub use described::{CandidateVerdict, Considered, considered};
pub use fpga::{FpgaIdentity, NotIt};
pub use host_watch::HostWatch;
pub use nics::{
    AUXILIARY_DEVICE, DRIVER, PF_PCI_ADDRESS, RDMA_DEVICE, REPRESENTOR, VDPA_DEVICE, VDPA_TYPE,
};
pub use nvidia::PROFILE;

use self::{
    family::{Family, Wakes, Watched},
    policy::PolicyWatch,
};
use crate::{mig::PartitionDesk, telemetry::TelemetryReceiver};

/// What a source knows at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSnapshot {
    /// How each source that it speaks of fares.
    pub states: BTreeMap<SourceName, SourceState>,
    /// The profile, where the source is answered by a simulation.
    pub simulated: Option<String>,
    /// Its devices, those that failed or vanished included.
    pub devices: Vec<Device>,
}

/// A source that was built and waits to be run.
pub struct Source {
    /// Its name in the inventory, in logs and in `windlass devices`.
    pub name: &'static str,
    /// What it publishes.
    pub snapshots: watch::Receiver<SourceSnapshot>,
    /// What its devices measure, for a source whose devices measure something.
    pub telemetry: Option<TelemetryReceiver>,
    /// How its devices are cut, for a source whose devices can be.
    pub partitions: Option<PartitionDesk>,
    /// Its life; ends when the token is cancelled.
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Writes down what must outlive the agent, likewise; not for a look that changes nothing.
    pub keep: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Where a source publishes: the newest snapshot, and a notice that there is one.
#[derive(Debug)]
pub(crate) struct Publisher {
    snapshots: watch::Sender<SourceSnapshot>,
    news: Arc<Notify>,
}

/// What discovery knows of a family: how it is looked for, and what its devices are called.
struct Declared {
    name: SourceName,
    source: fn(&Looking<'_>, &Policy) -> Source,
    /// The resource of a device where nothing is configured: the name that the vendor's own plugin gives.
    resource: fn(&Policy, &Device) -> Option<ResourceName>,
}

#[rustfmt::skip]
static FAMILIES: [Declared; 6] = [
    Declared { name: SourceName::NVIDIA, source: |it, _| it.nvidia(), resource: nvidia::resource },
    Declared { name: SourceName::NICS, source: |it, policy| it.source("nics", nics::Nics::new(policy)), resource: |_, _| None },
    Declared { name: SourceName::AMD, source: |it, _| it.source("amd GPUs", amd::Amd::default()), resource: amd::resource },
    Declared { name: SourceName::INTEL, source: |it, _| it.source("intel GPUs", intel::Intel::default()), resource: intel::resource },
    Declared { name: SourceName::FPGA, source: |it, _| it.source("FPGAs", fpga::Fpga::default()), resource: |_, it| fpga::resource(it) },
    Declared { name: SourceName::NVME, source: |it, _| it.source("NVMe drives", nvme::Nvme), resource: |_, _| None },
];

/// The resource that a device is part of where nothing is configured.
pub fn usual_name(policy: &Policy, device: &Device) -> Option<ResourceName> {
    let family = FAMILIES.iter().find(|family| family.name == device.source)?;
    (family.resource)(policy, device)
}

/// Builds every source, of which all share what they know of the host; nothing is read from it yet. A new health
/// policy takes effect while they run. `changes` counts notices from the host, and `news` is notified of each snapshot.
pub fn sources(
    places: &Places,
    host: &Host,
    policy: &watch::Receiver<Arc<Policy>>,
    changes: &watch::Receiver<u64>,
    clock: Clock,
    news: &Arc<Notify>,
    stop: &CancellationToken,
) -> Vec<Source> {
    let first = policy.borrow().clone();
    let (described, prober) = described::Described::new(places, &first, host);
    let wakes = Wakes { policies: policy.clone(), host: changes.clone() };
    let looking = Looking { places, host, clock, wakes, news, stop };
    let described = looking.source("described devices", described).beside(prober.run(stop.clone()));
    let built_in = FAMILIES.iter().map(|family| (family.source)(&looking, &first));
    built_in.chain([described]).collect()
}

/// What every source that looks needs.
struct Looking<'a> {
    places: &'a Places,
    host: &'a Host,
    clock: Clock,
    wakes: Wakes,
    news: &'a Arc<Notify>,
    stop: &'a CancellationToken,
}

impl Looking<'_> {
    /// The one source that does not only look: NVIDIA's driver is asked, tells of faults and cuts GPUs.
    fn nvidia(&self) -> Source {
        let (stop, policy) = (self.stop, PolicyWatch::new(self.wakes.policies.clone()));
        let nvidia = nvidia::Nvidia::new(self.places, policy, self.host.clone(), self.clock);
        let (desk, cutter) = nvidia.partitions();
        let (to, snapshots) = Publisher::new([SourceName::NVIDIA], self.news);
        let source = Source {
            name: "nvidia",
            snapshots,
            keep: Some(Box::pin(nvidia.keep(stop.clone()))),
            telemetry: Some(nvidia.telemetry()),
            partitions: Some(desk),
            run: Box::pin(nvidia.run(to, stop.clone())),
        };
        source.beside(cutter.run(stop.clone()))
    }

    fn source(&self, name: &'static str, family: impl Family) -> Source {
        let (to, snapshots) = Publisher::new(family.names(), self.news);
        let watched = Watched::new(family, self.host.clone(), self.clock);
        let run = watched.run(self.wakes.clone(), to, self.stop.clone());
        Source {
            name,
            snapshots,
            keep: None,
            telemetry: None,
            partitions: None,
            run: Box::pin(run),
        }
    }
}

// === impl Source ===

impl Source {
    /// A source that has something running beside it.
    fn beside(self, other: impl Future<Output = ()> + Send + 'static) -> Self {
        let run = Box::pin(async {
            tokio::join!(self.run, other);
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
        news: &Arc<Notify>,
    ) -> (Self, watch::Receiver<SourceSnapshot>) {
        let (snapshots, receiver) = watch::channel(SourceSnapshot::starting(names));
        (Self { snapshots, news: news.clone() }, receiver)
    }

    /// Publishes that the source does not answer, and logs it; what it knew stays.
    fn publish_late(&self, why: &str) {
        let mut known = self.snapshots.borrow().clone();
        let sources: Vec<_> = known.states.keys().map(SourceName::as_str).collect();
        tracing::warn!(
            sources = sources.join(" "),
            why,
            "a look is late: its devices stay as they are"
        );
        known.states.values_mut().for_each(|state| *state = SourceState::Failing(why.to_owned()));
        self.publish(known);
    }

    /// Publishes a snapshot if it says something new.
    fn publish(&self, snapshot: SourceSnapshot) {
        if windlass_host::watch::publish(&self.snapshots, snapshot) {
            self.news.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
