//! Common attributes of configured devices, which have the kind `Other`, from all sources. One device class selects all
//! of them, and a CEL expression that asks for a missing attribute fails the allocation on every node.
//!
//! Attributes of a device's own source come first; those of other sources fill the remaining room. Vendors with device
//! classes of their own are left out: an AMD GPU with NVIDIA's attributes, all zero, would look like an old NVIDIA GPU.

use std::collections::BTreeMap;

use windlass_cluster::slices::is_qualified_name;
use windlass_config::DriverName;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities},
    device::DeviceKind,
};

use super::{
    CatalogEntry, Pool,
    attributes::{MAX_PER_DEVICE, TYPE, is_placement, zero_amount, zero_value},
};

/// Attributes and capacities of all devices, each with an example value.
#[derive(Default)]
struct CommonAttributes {
    attributes: Attributes,
    capacity: Capacities,
}

/// Gives all configured devices the same attributes, in all pools.
pub(super) fn unify(pools: &mut BTreeMap<String, Pool>, driver: &DriverName) {
    let name = AttributeName::from_slice_name(driver.as_str(), TYPE);
    let other = AttributeValue::string(DeviceKind::Other.to_string());
    let is_configured = |entry: &CatalogEntry| entry.attributes.get(&name) == Some(&other);
    let mut common = CommonAttributes::default();
    for entry in pools.values().flat_map(|pool| &pool.entries).filter(|entry| is_configured(entry))
    {
        common.add(entry);
    }
    for pool in pools.values_mut() {
        let configured = pool.entries.iter_mut().filter(|entry| is_configured(entry));
        common.fill(&mut configured.collect::<Vec<_>>());
    }
}

// === impl CommonAttributes ===

impl CommonAttributes {
    fn add(&mut self, entry: &CatalogEntry) {
        let is_common =
            |name: &AttributeName| !is_placement(name) && is_qualified_name(&name.to_string());
        for (name, value) in entry.attributes.iter().filter(|(name, _)| is_common(name)) {
            self.attributes.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, amount) in entry.capacity.iter().filter(|(name, _)| is_common(name)) {
            self.capacity.entry(name.clone()).or_insert(*amount);
        }
    }

    /// Adds missing attributes, as far as there is room: the same ones to all devices of a pool.
    fn fill(&self, entries: &mut [&mut CatalogEntry]) {
        let size = |entry: &CatalogEntry| entry.attributes.len() + entry.capacity.len();
        let max_size = entries.iter().map(|entry| size(entry)).max().unwrap_or(MAX_PER_DEVICE);
        let has_attribute =
            |name: &AttributeName| entries.iter().any(|entry| entry.attributes.contains_key(name));
        let attributes = self.attributes.iter().filter(|(name, _)| !has_attribute(name));
        let attributes: Vec<_> = attributes.take(MAX_PER_DEVICE.saturating_sub(max_size)).collect();
        let has_amount =
            |name: &AttributeName| entries.iter().any(|entry| entry.capacity.contains_key(name));
        let capacity = self.capacity.iter().filter(|(name, _)| !has_amount(name));
        let limit = MAX_PER_DEVICE.saturating_sub(max_size + attributes.len());
        let capacity: Vec<_> = capacity.take(limit).collect();
        for entry in entries {
            for (name, value) in &attributes {
                entry.attributes.insert((*name).clone(), zero_value(value));
            }
            for (name, amount) in &capacity {
                entry.capacity.insert((*name).clone(), zero_amount(**amount));
            }
        }
    }
}
