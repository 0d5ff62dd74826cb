//! Pool of devices in its newest generation, for one node: its contents, or the reason why it is unusable.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};

use super::{PoolId, counters::CounterSets, node_affinity};

/// Pool of a driver, reduced to the devices for one node.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) state: State,
}

/// State of a pool: its contents, or the reason why its devices cannot be allocated.
#[derive(Clone, Debug)]
pub(super) enum State {
    Ready(Contents),
    /// Slices are missing: the driver is updating the pool.
    Incomplete,
    /// The slices contradict each other.
    Invalid(String),
}

/// Slices of a pool.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    /// Slices with devices for the node, sorted by name.
    pub(super) slices: Vec<Arc<ResourceSlice>>,
    pub(super) counter_sets: CounterSets,
}

// === impl Pool ===

impl Pool {
    /// The pool with these slices. `None` if no slice is relevant for the node, if the node's slices are incomplete and
    /// slices for other nodes have a newer generation, or if the pool has only counters for the node.
    pub(super) fn of(slices: &[&Arc<ResourceSlice>], node: &Node) -> Option<Self> {
        let generation = |slice: &Arc<ResourceSlice>| slice.spec.pool.generation;
        let (relevant, others): (Vec<&Arc<ResourceSlice>>, Vec<_>) =
            slices.iter().copied().partition(|slice| node_affinity::is_relevant(slice, node));
        let newest_generation = relevant.iter().map(|slice| generation(slice)).max()?;
        let is_newest = |slice: &&Arc<ResourceSlice>| generation(slice) == newest_generation;
        let mut node_slices: Vec<_> = relevant.into_iter().filter(is_newest).collect();
        let spec = &node_slices[0].spec;
        let id = PoolId::of_slice(node_slices[0]);
        let expected = usize::try_from(spec.pool.resource_slice_count).unwrap_or_default();
        // If the node's own slices are already complete, slices for other nodes are ignored.
        let is_complete = node_slices.len() == expected;
        if !is_complete && others.iter().any(|slice| generation(slice) > newest_generation) {
            return None;
        }
        let other_slices: Vec<_> =
            others.into_iter().filter(is_newest).filter(|_| !is_complete).collect();
        if node_slices.len() + other_slices.len() != expected {
            return Some(Self { id, state: State::Incomplete });
        }
        node_slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let state =
            Contents::of(&node_slices, &other_slices).map_or_else(State::Invalid, State::Ready);
        // The node's slices may have only counters, for devices of other nodes. The node then has no devices.
        let is_empty = matches!(&state, State::Ready(contents) if contents.slices.is_empty());
        (!is_empty).then_some(Self { id, state })
    }

    pub(super) fn has_binding_conditions(&self) -> bool {
        let State::Ready(contents) = &self.state else { return false };
        contents.slices.iter().flat_map(devices).any(|device| device.binding_conditions.is_some())
    }
}

// === impl Contents ===

impl Contents {
    /// Contents from slices for the node and slices for other nodes, whose devices may consume counters too.
    fn of(
        slices: &[&Arc<ResourceSlice>],
        other_slices: &[&Arc<ResourceSlice>],
    ) -> Result<Self, String> {
        let (counter_slices, device_slices): (Vec<_>, Vec<_>) =
            slices.iter().copied().partition(|slice| node_affinity::has_counters(slice));
        let mut names = BTreeSet::new();
        for device in device_slices.iter().copied().flat_map(devices) {
            if !names.insert(&device.name) {
                return Err(format!("duplicate device name {}", device.name));
            }
        }
        let mut counter_sets = CounterSets::default();
        for set in
            counter_slices.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten())
        {
            if !counter_sets.add_set(&set.name, &set.counters) {
                return Err(format!("duplicate counter set name {}", set.name));
            }
        }
        let all_slices = slices.iter().chain(other_slices).copied();
        all_slices.flat_map(devices).try_for_each(|device| counter_sets.add_consumer(device))?;
        Ok(Self { slices: device_slices.into_iter().cloned().collect(), counter_sets })
    }
}

fn devices(slice: &Arc<ResourceSlice>) -> impl Iterator<Item = &Device> {
    slice.spec.devices.iter().flatten()
}
