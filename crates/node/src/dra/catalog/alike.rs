//! Devices of one type that several sources found have the same facts, as far as there is room: a claim is asked of
//! all of a type, and an expression that asks a device for what it lacks keeps a pod from every node.
//!
//! What a device's own source says of it comes first, and costs no room to what others say of theirs.

use std::collections::BTreeMap;

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes, Capacities};

use super::{
    Entry, Pool,
    attributes::{MOST, TYPE, is_a_place, none, nothing},
};
use crate::{cluster::slices::is_fact_name, config::DriverName};

/// Facts that devices have, each with a value that one of them has.
#[derive(Default)]
struct Facts {
    attributes: Attributes,
    capacity: Capacities,
}

/// Gives devices of one type in all pools the same facts.
pub(super) fn make_alike(pools: &mut BTreeMap<String, Pool>, driver: &DriverName) {
    let name = AttributeName::published(driver.as_str(), TYPE);
    let kind = |entry: &Entry| match entry.attributes.get(&name) {
        Some(AttributeValue::String(kind)) => kind.clone(),
        _ => String::new(),
    };
    let mut all = BTreeMap::<String, Facts>::new();
    for entry in pools.values().flat_map(|pool| &pool.entries) {
        all.entry(kind(entry)).or_default().learn(entry);
    }
    for pool in pools.values_mut() {
        for (of_kind, facts) in &all {
            let alike = pool.entries.iter_mut().filter(|entry| kind(entry) == *of_kind);
            facts.fill(&mut alike.collect::<Vec<_>>());
        }
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
