//! What claims may ask of a device: its facts, under the names that NVIDIA's driver has for NVIDIA's.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{DriverName, Sharing};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities, Quantity, standard},
    device::Device,
};

use super::Entry;

/// The domain of NVIDIA's own driver. Expressions that were written for it find what they ask for.
const NVIDIA: &str = "gpu.nvidia.com";

/// The domain of the same facts in the configuration.
const OURS_OF_NVIDIA: &str = "nvidia.com";

/// What says who a board is, and is nobody's business but the node's.
const PRIVATE: [&str; 2] = ["serial", "serialNumber"];

/// What comes and goes with the load: each change would be written to the API server and looked at by the
/// scheduler, and nothing is chosen by it.
const PASSING: [&str; 2] = ["powerSlowdown", "thermalSlowdown"];

/// What every device says of itself, in the driver's domain: what it is, and who found it.
pub(super) const TYPE: &str = "type";
const SOURCE: &str = "source";

/// A device has no more attributes and capacities together (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
pub(super) const MOST: usize = 32;

/// The attributes of a device.
pub(super) fn of(device: &Device, driver: &DriverName) -> Attributes {
    let is_told = |name: &str| !PRIVATE.contains(&name) && !PASSING.contains(&name);
    let public = device.attributes.iter().filter(|(name, _)| is_told(name.name()));
    let mut attributes: Attributes =
        public.map(|(name, value)| (published(name), value.clone())).collect();
    let kind = AttributeValue::string(device.kind.to_string());
    let source = AttributeValue::string(device.source.as_str());
    for (name, value) in [(TYPE, kind), (SOURCE, source)] {
        attributes.insert(AttributeName::published(driver.as_str(), name), value);
    }
    attributes
}

/// The capacities of a device; one that is shared has as many shares as containers that it serves.
pub(super) fn capacity(device: &Device, sharing: Sharing, driver: &DriverName) -> Capacities {
    let of_device = device.capacity.iter().map(|(name, amount)| (published(name), *amount));
    let shares = sharing
        .replicas()
        .map(|replicas| (shares_of(driver), Quantity::Count(replicas.get().into())));
    of_device.chain(shares).collect()
}

/// What a claim asks for of a device that is shared.
pub(crate) fn shares_of(driver: &DriverName) -> AttributeName {
    AttributeName::published(driver.as_str(), "shares")
}

/// The name that a fact has in claims.
fn published(name: &AttributeName) -> AttributeName {
    if name.domain() == OURS_OF_NVIDIA { name.in_domain(NVIDIA) } else { name.clone() }
}

/// Gives all devices of a kind the same attributes: an expression that asks for one which a device lacks
/// keeps a pod from every node. Where a device is in the machine has no value that could stand in: two
/// devices that lack it would be taken for neighbours.
pub(super) fn make_uniform(entries: &mut [Entry]) {
    let kinds: BTreeSet<_> = entries.iter().map(kind).collect();
    for of_kind in kinds {
        let alike = || entries.iter().filter(|entry| kind(entry) == of_kind);
        let all: BTreeMap<_, _> = alike().flat_map(|entry| entry.attributes.clone()).collect();
        let amounts: BTreeMap<_, _> = alike().flat_map(|entry| entry.capacity.clone()).collect();
        for entry in entries.iter_mut().filter(|entry| kind(entry) == of_kind) {
            for (name, amount) in &amounts {
                entry.capacity.entry(name.clone()).or_insert_with(|| none(*amount));
            }
            for (name, value) in all.iter().filter(|(name, _)| !is_a_place(name)) {
                entry.attributes.entry(name.clone()).or_insert_with(|| nothing(value));
            }
            shorten(entry);
        }
    }
}

fn kind(entry: &Entry) -> Option<String> {
    entry
        .attributes
        .iter()
        .find(|(name, _)| name.name() == TYPE)
        .map(|(_, value)| value.to_string())
}

pub(super) fn is_a_place(name: &AttributeName) -> bool {
    [standard::PCI_BUS_ID, standard::PCIE_ROOT, standard::NUMA_NODE].contains(name)
}

/// What stands for an amount that a device does not tell.
pub(super) fn none(like: Quantity) -> Quantity {
    match like {
        Quantity::Bytes(_) => Quantity::Bytes(0),
        Quantity::Count(_) => Quantity::Count(0),
    }
}

/// What stands for a fact that a device lacks.
pub(super) fn nothing(like: &AttributeValue) -> AttributeValue {
    match like {
        AttributeValue::String(_) => AttributeValue::String(String::new()),
        AttributeValue::Int(_) => AttributeValue::Int(0),
        AttributeValue::Bool(_) => AttributeValue::Bool(false),
        AttributeValue::Version(_) => AttributeValue::Version("0.0.0".to_owned()),
    }
}

/// Leaves out the last of too many attributes, the same ones of every device of a kind.
fn shorten(entry: &mut Entry) {
    let room = MOST.saturating_sub(entry.capacity.len());
    while entry.attributes.len() > room {
        let is_needed =
            |name: &AttributeName| is_a_place(name) || [TYPE, SOURCE].contains(&name.name());
        let surplus = entry.attributes.keys().rev().find(|name| !is_needed(name));
        let Some(surplus) = surplus.cloned() else { return };
        entry.attributes.remove(&surplus);
    }
}
