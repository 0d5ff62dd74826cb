//! Node metrics: inventory, sources, resources and registration.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use windlass_core::inventory::SourceState;
use windlass_deviceplugin::registration::RegistrationState;
use windlass_resources::NodeState;

use super::{
    MetricSources,
    family::{FamilyDescriptor, Value},
};

#[derive(Debug)]
pub(super) struct NodeCollector(pub(super) MetricSources);

const GENERATION: FamilyDescriptor = FamilyDescriptor::new(
    "inventory_generation",
    "Changes of the inventory since the agent started",
);
const SIMULATED: FamilyDescriptor =
    FamilyDescriptor::new("simulated", "1 if the machine is simulated, with its machine profile");
const SOURCE: FamilyDescriptor =
    FamilyDescriptor::new("source_state", "State of each source of devices");
const RESOURCE: FamilyDescriptor = FamilyDescriptor::new(
    "resource_devices",
    "Devices offered to the kubelet, by allocation state",
);
const REGISTERED: FamilyDescriptor = FamilyDescriptor::new(
    "kubelet_registered",
    "1 if the kubelet reads the resource's device list",
);
const POD_RESOURCES_UP: FamilyDescriptor = FamilyDescriptor::new(
    "kubelet_pod_resources_up",
    "1 if the kubelet answered the latest pod resources request",
);
const DISK_SLOW: FamilyDescriptor =
    FamilyDescriptor::new("disk_slow", "1 while the disk exceeds its deadline");

/// Label values of the source states.
const SOURCE_STATES: [&str; 4] = ["starting", "ready", "absent", "failing"];

// === impl NodeCollector ===

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.state.borrow().clone();
        let inventory = &state.inventory;
        GENERATION.gauges(&mut encoder, [(Vec::new(), Value::Integer(inventory.generation))])?;
        let profile = inventory.simulated.iter().map(|profile| ("profile", profile.clone()));
        let simulated = inventory.simulated.is_some().into();
        SIMULATED.gauges(&mut encoder, [(profile.collect(), simulated)])?;
        sources(&mut encoder, &state)?;
        DISK_SLOW.gauges(&mut encoder, [(Vec::new(), state.disk_slow_since.is_some().into())])?;
        self.resources(&mut encoder, &state)?;
        let holders = self.0.holders.borrow().clone();
        let is_up = holders.last_result.as_ref().map(Result::is_ok);
        POD_RESOURCES_UP.gauges(&mut encoder, is_up.map(|is_up| (Vec::new(), is_up.into())))
    }
}

impl NodeCollector {
    fn resources(&self, encoder: &mut DescriptorEncoder<'_>, state: &NodeState) -> fmt::Result {
        let resources = state.resources();
        let counts = resources.iter().flat_map(|(name, (all, allocatable))| {
            let withheld = all.saturating_sub(*allocatable);
            [("allocatable", *allocatable), ("withheld", withheld)].map(|(state, count)| {
                let labels = vec![("resource", name.to_string()), ("state", state.to_owned())];
                (labels, Value::Integer(count as u64))
            })
        });
        RESOURCE.gauges(encoder, counts)?;
        let registrations = self.0.registrations.borrow().clone();
        let registered = resources.keys().map(|name| {
            let registered = registrations.get(name) == Some(&RegistrationState::Registered);
            (vec![("resource", name.to_string())], registered.into())
        });
        REGISTERED.gauges(encoder, registered)
    }
}

fn sources(encoder: &mut DescriptorEncoder<'_>, state: &NodeState) -> fmt::Result {
    let lines = state.inventory.sources.iter().flat_map(|(source, current)| {
        SOURCE_STATES.map(|state| {
            let labels = vec![("source", source.clone()), ("state", state.to_owned())];
            (labels, (state == name_of(current)).into())
        })
    });
    SOURCE.gauges(encoder, lines)
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
