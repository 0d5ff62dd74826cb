//! Metrics: instruments that the parts of the agent count with, and pages that are made from snapshots
//! when somebody asks.
//!
//! Nothing is kept twice: what a snapshot says (health, resources, telemetry, holders) is read at the
//! scrape; only what happens in between (calls, registrations, transitions) is counted.

mod build;
mod devices;
mod family;
mod format;
mod node;
mod reload;
mod transitions;

use std::{collections::BTreeSet, sync::Arc};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::sync::watch;
use windlass_allocations::podresources::Holders;
use windlass_config::Disclosed;
use windlass_deviceplugin::{metrics::PluginMetrics, registration::Standings};
use windlass_discovery::telemetry::TelemetryReceiver;
use windlass_dra::metrics::{ClaimMetrics, DraMetrics};
use windlass_host::clock::Clock;
use windlass_lifecycle::cleanup::metrics::HandoverMetrics;
use windlass_resources::NodeState;

pub(crate) use format::Format;
pub(crate) use reload::ReloadMetrics;

use self::{build::Role, devices::DevicePage, node::NodePage, transitions::Transitions};

/// What the parts of the agent count with. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Instruments {
    plugins: PluginMetrics,
    transitions: Transitions,
    reload: ReloadMetrics,
    handover: HandoverMetrics,
    claims: ClaimMetrics,
    dra: DraMetrics,
    state_writable: Gauge,
}

/// The snapshots that pages are made from.
#[derive(Clone, Debug)]
pub(crate) struct Sights {
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) telemetry: Vec<TelemetryReceiver>,
    pub(crate) standings: watch::Receiver<Standings>,
    pub(crate) holders: watch::Receiver<Arc<Holders>>,
    pub(crate) disclosed: BTreeSet<Disclosed>,
    pub(crate) clock: Clock,
}

/// What every name begins with.
const PREFIX: &str = "windlass";

/// A registry for the agent, and the instruments in it.
pub(crate) fn registry(clock: &Clock) -> (Registry, Instruments) {
    let mut registry = Registry::with_prefix(PREFIX);
    build::register(&mut registry, Role::Serving);
    let instruments = Instruments {
        plugins: PluginMetrics::register(&mut registry),
        transitions: Transitions::register(&mut registry),
        reload: ReloadMetrics::register(&mut registry, clock.now()),
        handover: HandoverMetrics::register(&mut registry),
        claims: ClaimMetrics::register(&mut registry),
        dra: DraMetrics::register(&mut registry),
        state_writable: Gauge::default(),
    };
    let (help, gauge) = ("Whether the state folder can be written", &instruments.state_writable);
    registry.register("state_writable", help, gauge.clone());
    (registry, instruments)
}

/// What an agent measures that serves nobody yet.
pub(crate) fn standing_by() -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    build::register(&mut registry, Role::StandingBy);
    registry
}

/// Adds what is read from snapshots.
pub(crate) fn add_pages(registry: &mut Registry, sights: &Sights) {
    registry.register_collector(Box::new(NodePage(sights.clone())));
    registry.register_collector(Box::new(DevicePage(sights.clone())));
}

// === impl Instruments ===

impl Instruments {
    /// For the servers of the device plugin API.
    pub(crate) fn plugins(&self) -> PluginMetrics {
        self.plugins.clone()
    }

    /// How the resources stand with the kubelet.
    pub(crate) fn standings(&self) -> watch::Receiver<Standings> {
        self.plugins.standings()
    }

    /// For whoever reads the configuration again.
    pub(crate) fn reload(&self) -> ReloadMetrics {
        self.reload.clone()
    }

    /// For the part that does what lies between two containers.
    pub(crate) fn handover(&self) -> HandoverMetrics {
        self.handover.clone()
    }

    /// For the part that publishes devices for claims.
    pub(crate) fn dra(&self) -> DraMetrics {
        self.dra.clone()
    }

    /// For the part that looks at the state folder.
    pub(crate) fn state_writable(&self) -> Gauge {
        self.state_writable.clone()
    }

    /// For the DRA driver.
    pub(crate) fn claims(&self) -> ClaimMetrics {
        self.claims.clone()
    }

    /// Counts changes of health until the reconciler ends.
    pub(crate) async fn count_transitions(&self, state: watch::Receiver<Arc<NodeState>>) {
        self.transitions.count(state).await;
    }
}
