//! Pool of devices as one node sees it, in its newest generation: its contents, or the reason why it is unusable.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};

use super::{PoolId, counters::Stock, place};

/// Pool of a driver, as seen by one node.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) state: State,
}

/// State of a pool: its contents, or the reason why its devices cannot be taken.
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
    pub(super) here: Vec<Arc<ResourceSlice>>,
    pub(super) stock: Stock,
}

// === impl Pool ===

impl Pool {
    /// The pool with all these slices. `None` if it has nothing for the node, or its newer generation is for other
    /// nodes.
    pub(super) fn of(slices: &[&Arc<ResourceSlice>], node: &Node) -> Option<Self> {
        let generation = |slice: &Arc<ResourceSlice>| slice.spec.pool.generation;
        let (relevant, others): (Vec<&Arc<ResourceSlice>>, Vec<_>) =
            slices.iter().copied().partition(|slice| place::is_relevant(slice, node));
        let newest = relevant.iter().map(|slice| generation(slice)).max()?;
        let is_newest = |slice: &&Arc<ResourceSlice>| generation(slice) == newest;
        let mut here: Vec<_> = relevant.into_iter().filter(is_newest).collect();
        let spec = &here[0].spec;
        let id = PoolId { driver: spec.driver.clone(), name: spec.pool.name.clone() };
        let wanted = usize::try_from(spec.pool.resource_slice_count).unwrap_or_default();
        // If the node's own slices are already complete, slices for other nodes do not matter.
        let is_whole = here.len() == wanted;
        if !is_whole && others.iter().any(|slice| generation(slice) > newest) {
            return None;
        }
        let elsewhere: Vec<_> =
            others.into_iter().filter(is_newest).filter(|_| !is_whole).collect();
        if here.len() + elsewhere.len() != wanted {
            return Some(Self { id, state: State::Incomplete });
        }
        here.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let state = Contents::of(&here, &elsewhere).map_or_else(State::Invalid, State::Ready);
        // A pool may have only counters here, and its devices on other nodes. It has nothing to allocate then.
        let is_empty = matches!(&state, State::Ready(contents) if contents.here.is_empty());
        (!is_empty).then_some(Self { id, state })
    }

    pub(super) fn needs_conditions(&self) -> bool {
        let State::Ready(contents) = &self.state else { return false };
        contents.here.iter().flat_map(devices).any(|device| device.binding_conditions.is_some())
    }
}

// === impl Contents ===

impl Contents {
    /// Contents from slices for the node and slices for other nodes, whose devices may consume counters too.
    fn of(
        slices: &[&Arc<ResourceSlice>],
        elsewhere: &[&Arc<ResourceSlice>],
    ) -> Result<Self, String> {
        let (with, here): (Vec<_>, Vec<_>) =
            slices.iter().copied().partition(|slice| place::has_counters(slice));
        let mut names = BTreeSet::new();
        for device in here.iter().copied().flat_map(devices) {
            if !names.insert(&device.name) {
                return Err(format!("duplicate device name {}", device.name));
            }
        }
        let mut stock = Stock::default();
        for set in with.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten()) {
            if !stock.add_set(&set.name, &set.counters) {
                return Err(format!("duplicate counter set name {}", set.name));
            }
        }
        let all = slices.iter().chain(elsewhere).copied();
        all.flat_map(devices).try_for_each(|device| stock.add_consumer(device))?;
        Ok(Self { here: here.into_iter().cloned().collect(), stock })
    }
}

fn devices(slice: &Arc<ResourceSlice>) -> impl Iterator<Item = &Device> {
    slice.spec.devices.iter().flatten()
}
