//! The page of the node: its inventory, where it comes from, what is offered and registered.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use windlass_core::inventory::SourceState;
use windlass_deviceplugin::registration::Standing;
use windlass_resources::NodeState;

use super::{
    Sights,
    family::{Head, Value},
};

/// Reads the newest snapshots.
#[derive(Debug)]
pub(super) struct NodePage(pub(super) Sights);

const GENERATION: Head =
    Head::new("inventory_generation", "Changes of the inventory since the agent started");
const SIMULATED: Head =
    Head::new("simulated", "Whether the machine is simulated, and after which profile");
const SOURCE: Head = Head::new("source_state", "How each source of devices fares");
const RESOURCE: Head =
    Head::new("resource_devices", "What the kubelet is offered, by whether it may be allocated");
const REGISTERED: Head =
    Head::new("kubelet_registered", "Whether the kubelet reads the resource's device list");
const HOLDERS: Head = Head::new(
    "kubelet_pod_resources_up",
    "Whether the kubelet said who holds devices when it was last asked",
);

const DISK: Head =
    Head::new("disk_slow", "Whether the disk has kept what the agent writes waiting for too long");

/// The states of a source by name.
const SOURCE_STATES: [&str; 4] = ["starting", "ready", "absent", "failing"];

// === impl NodePage ===

impl Collector for NodePage {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.state.borrow().clone();
        let inventory = &state.inventory;
        GENERATION.gauges(&mut to, [(Vec::new(), Value::Whole(inventory.generation))])?;
        let profile = inventory.simulated.iter().map(|profile| ("profile", profile.clone()));
        let simulated = inventory.simulated.is_some().into();
        SIMULATED.gauges(&mut to, [(profile.collect(), simulated)])?;
        sources(&mut to, &state)?;
        DISK.gauges(&mut to, [(Vec::new(), state.slow_since.is_some().into())])?;
        self.resources(&mut to, &state)?;
        let holders = self.0.holders.borrow().clone();
        let answered = holders.answered.as_ref().map(Result::is_ok);
        HOLDERS.gauges(&mut to, answered.map(|answered| (Vec::new(), answered.into())))
    }
}

impl NodePage {
    fn resources(&self, to: &mut DescriptorEncoder<'_>, state: &NodeState) -> fmt::Result {
        let resources = state.resources();
        let counts = resources.iter().flat_map(|(name, (all, allocatable))| {
            let withheld = all.saturating_sub(*allocatable);
            [("allocatable", *allocatable), ("withheld", withheld)].map(|(state, count)| {
                let labels = vec![("resource", name.to_string()), ("state", state.to_owned())];
                (labels, Value::Whole(count as u64))
            })
        });
        RESOURCE.gauges(to, counts)?;
        let standings = self.0.standings.borrow().clone();
        let registered = resources.keys().map(|name| {
            let registered = standings.get(name) == Some(&Standing::Registered);
            (vec![("resource", name.to_string())], registered.into())
        });
        REGISTERED.gauges(to, registered)
    }
}

fn sources(to: &mut DescriptorEncoder<'_>, state: &NodeState) -> fmt::Result {
    let lines = state.inventory.sources.iter().flat_map(|(source, now)| {
        SOURCE_STATES.map(|state| {
            let labels = vec![("source", source.clone()), ("state", state.to_owned())];
            (labels, (state == name_of(now)).into())
        })
    });
    SOURCE.gauges(to, lines)
}

fn name_of(state: &SourceState) -> &'static str {
    let [starting, ready, absent, failing] = SOURCE_STATES;
    match state {
        SourceState::Starting => starting,
        SourceState::Ready(_) => ready,
        SourceState::Absent(_) => absent,
        SourceState::Failing(_) => failing,
    }
}
