//! Metrics of the agent: counters for events, and collectors that read snapshots at each scrape.
//!
//! Each value has one owner: health, resources, telemetry and holders come from snapshots; calls, registrations and
//! transitions are counted.

mod build;
mod devices;
mod family;
mod format;
mod labeled_counter;
mod measures;
mod node;
mod process;
mod reload;
mod shares;
mod transitions;
mod watchdog;
mod withheld;

use std::{collections::BTreeSet, sync::Arc};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::sync::watch;
use windlass_allocations::{ledger::Ledger, podresources::Holders};
use windlass_config::Disclosed;
use windlass_core::{device::DeviceId, telemetry::Sample};
use windlass_deviceplugin::{metrics::PluginMetrics, registration::RegistrationStates};
use windlass_discovery::telemetry::TelemetryReceiver;
use windlass_dra::metrics::{ClaimMetrics, DraMetrics};
use windlass_host::clock::Clock;
use windlass_lifecycle::cleanup::metrics::CleanupMetrics;
use windlass_resources::NodeState;

pub(crate) use format::Format;
pub(crate) use reload::ReloadMetrics;
pub(crate) use shares::ShareMetrics;
pub(crate) use watchdog::{ContainerUse, HolderLimit, SharedGpu, SharedGpus, WatchdogMetrics};

use self::{
    build::Role, devices::DeviceCollector, node::NodeCollector, process::ProcessCollector,
    transitions::Transitions, watchdog::SharedGpuCollector,
};

/// Metrics that tasks of the agent update; clones share their counters.
#[derive(Clone, Debug)]
pub(crate) struct Instruments {
    pub(crate) plugins: PluginMetrics,
    pub(crate) transitions: Transitions,
    pub(crate) reload: ReloadMetrics,
    pub(crate) cleanup: CleanupMetrics,
    pub(crate) claims: ClaimMetrics,
    pub(crate) dra: DraMetrics,
    pub(crate) shares: ShareMetrics,
    pub(crate) watchdog: WatchdogMetrics,
    pub(crate) state_writable: Gauge,
}

/// Snapshots that the collectors read.
#[derive(Clone, Debug)]
pub(crate) struct MetricSources {
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) telemetry: Vec<TelemetryReceiver>,
    pub(crate) registrations: watch::Receiver<RegistrationStates>,
    pub(crate) holders: watch::Receiver<Arc<Holders>>,
    /// Devices that claims and shares hold.
    pub(crate) ledger: watch::Receiver<Ledger>,
    pub(crate) memory: watch::Receiver<Arc<SharedGpus>>,
    pub(crate) disclosed: BTreeSet<Disclosed>,
    pub(crate) clock: Clock,
}

const PREFIX: &str = "windlass";

/// Prefix of Prometheus' standard process metrics.
const PROCESS: &str = "process";

// === impl MetricSources ===

impl MetricSources {
    /// Newest sample of a device, unless it has expired.
    pub(crate) fn sample(&self, id: &DeviceId) -> Option<Sample> {
        let now = self.clock.now();
        let sample = self.telemetry.iter().find_map(|source| source.borrow().get(id).cloned());
        sample.filter(|sample| sample.stale_at >= now)
    }
}

/// Registry of a serving agent, and the metrics that its tasks update. Its sub-registries add the name prefixes.
pub(crate) fn registry(clock: &Clock) -> (Registry, Instruments) {
    let mut root = Registry::default();
    let process = root.sub_registry_with_prefix(PROCESS);
    process.register_collector(Box::new(ProcessCollector::new(clock.now())));
    let registry = root.sub_registry_with_prefix(PREFIX);
    build::register(registry, Role::Serving);
    let instruments = Instruments {
        plugins: PluginMetrics::register(registry),
        transitions: Transitions::register(registry),
        reload: ReloadMetrics::register(registry, clock.now()),
        cleanup: CleanupMetrics::register(registry),
        claims: ClaimMetrics::register(registry),
        dra: DraMetrics::register(registry),
        shares: ShareMetrics::register(registry),
        watchdog: WatchdogMetrics::register(registry),
        state_writable: Gauge::default(),
    };
    let help = "1 if the state folder is writable";
    registry.register("state_writable", help, instruments.state_writable.clone());
    (root, instruments)
}

/// Registry of an agent on standby.
pub(crate) fn standby_registry() -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    build::register(&mut registry, Role::StandingBy);
    registry
}

/// Adds the metrics that are read from snapshots.
pub(crate) fn register_collectors(root: &mut Registry, sources: &MetricSources) {
    let registry = root.sub_registry_with_prefix(PREFIX);
    registry.register_collector(Box::new(NodeCollector(sources.clone())));
    registry.register_collector(Box::new(DeviceCollector(sources.clone())));
    let memory = sources.memory.clone();
    let shows_pods = sources.disclosed.contains(&Disclosed::Pods);
    registry.register_collector(Box::new(SharedGpuCollector { memory, shows_pods }));
}
