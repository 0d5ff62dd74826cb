//! Attributes and capacities of published devices. Those of NVIDIA's GPUs have the names that NVIDIA's DRA driver uses.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{DriverName, Sharing};
use windlass_core::{
    attribute::{
        AttributeName, AttributeValue, Attributes, Capacities, ISLAND, PCIE_SWITCH, Quantity,
        standard,
    },
    device::Device,
    enforcement::Enforcement,
};

use super::CatalogEntry;
use crate::published::published_name;

/// Attributes that are not published, because they identify a board.
const IDENTIFYING_ATTRIBUTES: [&str; 2] = ["serial", "serialNumber"];

/// Attributes that are not published, because they vary with load: each change would cost a write to the API server,
/// and no expression selects by them.
const TRANSIENT_ATTRIBUTES: [&str; 2] = ["powerSlowdown", "thermalSlowdown"];

/// Names, in the driver's domain, of the attributes that every device has: its kind and its source.
pub(super) const TYPE: &str = "type";
const SOURCE: &str = "source";

/// Name, in the driver's domain, of an attribute of GPUs that are shared by amounts: the enforcement of memory limits.
const ENFORCEMENT: &str = "enforcement";

/// Maximum number of attributes and capacities of a device: `ResourceSliceMaxAttributesAndCapacitiesPerDevice`.
pub(super) const MAX_PER_DEVICE: usize = 32;

/// Attributes of a device. The memory limits of its containers have this `enforcement`.
pub(super) fn of(
    device: &Device,
    enforcement: Option<Enforcement>,
    driver: &DriverName,
) -> Attributes {
    let is_published = |name: &str| {
        !IDENTIFYING_ATTRIBUTES.contains(&name) && !TRANSIENT_ATTRIBUTES.contains(&name)
    };
    let published = device.attributes.iter().filter(|(name, _)| is_published(name.name()));
    let mut attributes: Attributes =
        published.map(|(name, value)| (published_name(name), value.clone())).collect();
    let kind = AttributeValue::string(device.kind.to_string());
    let source = AttributeValue::string(device.source.as_str());
    let enforcement =
        enforcement.map(|enforcement| (ENFORCEMENT, AttributeValue::string(enforcement.as_str())));
    for (name, value) in [(TYPE, kind), (SOURCE, source)].into_iter().chain(enforcement) {
        attributes.insert(AttributeName::from_slice_name(driver.as_str(), name), value);
    }
    attributes
}

/// Capacities of a device. A device that is shared by count has a capacity of shares.
pub(super) fn capacity(device: &Device, sharing: Sharing, driver: &DriverName) -> Capacities {
    let device_capacity =
        device.capacity.iter().map(|(name, amount)| (published_name(name), *amount));
    let shares = sharing
        .replicas()
        .map(|replicas| (shares_capacity_name(driver), Quantity::Count(replicas.get().into())));
    device_capacity.chain(shares).collect()
}

/// Name of the capacity that counts shares.
pub(crate) fn shares_capacity_name(driver: &DriverName) -> AttributeName {
    AttributeName::from_slice_name(driver.as_str(), "shares")
}

/// Gives all devices of a kind the same attributes: a CEL expression that asks for a missing one fails the allocation
/// on every node. Placement attributes stay missing: with equal defaults, two devices would seem to share a PCIe root.
pub(super) fn make_uniform(entries: &mut [CatalogEntry]) {
    let kinds: BTreeSet<_> = entries.iter().map(kind).collect();
    for device_kind in kinds {
        let same_kind = || entries.iter().filter(|entry| kind(entry) == device_kind);
        let attributes: BTreeMap<_, _> =
            same_kind().flat_map(|entry| entry.attributes.clone()).collect();
        let amounts: BTreeMap<_, _> =
            same_kind().flat_map(|entry| entry.capacity.clone()).collect();
        for entry in entries.iter_mut().filter(|entry| kind(entry) == device_kind) {
            for (name, amount) in &amounts {
                entry.capacity.entry(name.clone()).or_insert_with(|| zero_amount(*amount));
            }
            for (name, value) in attributes.iter().filter(|(name, _)| !is_placement(name)) {
                entry.attributes.entry(name.clone()).or_insert_with(|| zero_value(value));
            }
            let missing_placement = attributes
                .keys()
                .filter(|name| is_placement(name) && !entry.attributes.contains_key(*name))
                .count();
            truncate_attributes(entry, MAX_PER_DEVICE - missing_placement);
        }
    }
}

fn kind(entry: &CatalogEntry) -> Option<String> {
    entry
        .attributes
        .iter()
        .find(|(name, _)| name.name() == TYPE)
        .map(|(_, value)| value.to_string())
}

pub(super) fn is_placement(name: &AttributeName) -> bool {
    [standard::PCI_BUS_ID, standard::PCIE_ROOT, standard::NUMA_NODE, PCIE_SWITCH, ISLAND]
        .contains(name)
}

/// Default of a missing amount, of the same type as `like`.
pub(super) fn zero_amount(like: Quantity) -> Quantity {
    match like {
        Quantity::Bytes(_) => Quantity::Bytes(0),
        Quantity::Count(_) => Quantity::Count(0),
    }
}

/// Default of a missing attribute, of the same type as `like`.
pub(super) fn zero_value(like: &AttributeValue) -> AttributeValue {
    match like {
        AttributeValue::String(_) => AttributeValue::String(String::new()),
        AttributeValue::Int(_) => AttributeValue::Int(0),
        AttributeValue::Bool(_) => AttributeValue::Bool(false),
        AttributeValue::Version(_) => AttributeValue::Version("0.0.0".to_owned()),
    }
}

/// Drops attributes beyond this number of attributes and capacities: first those that another domain repeats, then from
/// the end. They are the same for every device of a kind, because each has room for the placement attributes it lacks.
fn truncate_attributes(entry: &mut CatalogEntry, max_facts: usize) {
    let limit = max_facts.saturating_sub(entry.capacity.len());
    while entry.attributes.len() > limit {
        let is_needed =
            |name: &AttributeName| is_placement(name) || [TYPE, SOURCE].contains(&name.name());
        // DRANET's name of an attribute that has the same name in our domain.
        let is_repeated = |name: &&AttributeName| {
            let mut others = entry.attributes.keys().filter(|other| other.name() == name.name());
            others.any(|other| other.domain() != name.domain())
        };
        let optional = || entry.attributes.keys().filter(|name| !is_needed(name));
        let surplus = optional().find(is_repeated).or_else(|| optional().next_back());
        let Some(surplus) = surplus.cloned() else { return };
        entry.attributes.remove(&surplus);
    }
}
