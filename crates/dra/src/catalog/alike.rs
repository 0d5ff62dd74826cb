//! What the configuration describes has the same facts whatever its source, as far as there is room: one class has all
//! of it, and an expression that asks a device for what it lacks keeps a pod from every node.
//!
//! What a device's own source says of it comes first, and costs no room to what others say of theirs. Devices of
//! makers that have classes of their own are left as they are: a GPU of AMD's with the facts of NVIDIA's, were they
//! all zero, could be taken for an old one.

use std::collections::BTreeMap;

use windlass_cluster::slices::is_fact_name;
use windlass_config::DriverName;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Capacities},
    device::DeviceKind,
};

use super::{
    Entry, Pool,
    attributes::{MOST, TYPE, is_a_place, none, nothing},
};

/// Facts that devices have, each with a value that one of them has.
#[derive(Default)]
struct Facts {
    attributes: Attributes,
    capacity: Capacities,
}

/// Gives what the configuration describes the same facts in all pools.
pub(super) fn make_alike(pools: &mut BTreeMap<String, Pool>, driver: &DriverName) {
    let name = AttributeName::published(driver.as_str(), TYPE);
    let other = AttributeValue::string(DeviceKind::Other.to_string());
    let is_configured = |entry: &Entry| entry.attributes.get(&name) == Some(&other);
    let mut facts = Facts::default();
    for entry in pools.values().flat_map(|pool| &pool.entries).filter(|it| is_configured(it)) {
        facts.learn(entry);
    }
    for pool in pools.values_mut() {
        let alike = pool.entries.iter_mut().filter(|entry| is_configured(entry));
        facts.fill(&mut alike.collect::<Vec<_>>());
    }
}

// === impl Facts ===

impl Facts {
    fn learn(&mut self, entry: &Entry) {
        let is_told = |name: &AttributeName| !is_a_place(name) && is_fact_name(&name.to_string());
        for (name, value) in entry.attributes.iter().filter(|(name, _)| is_told(name)) {
            self.attributes.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, amount) in entry.capacity.iter().filter(|(name, _)| is_told(name)) {
            self.capacity.entry(name.clone()).or_insert(*amount);
        }
    }

    /// Where there is not room for all, devices of a pool get the same ones.
    fn fill(&self, alike: &mut [&mut Entry]) {
        let facts = |entry: &Entry| entry.attributes.len() + entry.capacity.len();
        let most = alike.iter().map(|entry| facts(entry)).max().unwrap_or(MOST);
        let has_attribute =
            |name: &AttributeName| alike.iter().any(|it| it.attributes.contains_key(name));
        let attributes = self.attributes.iter().filter(|(name, _)| !has_attribute(name));
        let attributes: Vec<_> = attributes.take(MOST.saturating_sub(most)).collect();
        let has_amount =
            |name: &AttributeName| alike.iter().any(|it| it.capacity.contains_key(name));
        let capacity = self.capacity.iter().filter(|(name, _)| !has_amount(name));
        let room = MOST.saturating_sub(most + attributes.len());
        let capacity: Vec<_> = capacity.take(room).collect();
        for entry in alike {
            for (name, value) in &attributes {
                entry.attributes.insert((*name).clone(), nothing(value));
            }
            for (name, amount) in &capacity {
                entry.capacity.insert((*name).clone(), none(**amount));
            }
        }
    }
}
