//! Pools of one node, prepared for many allocations.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};
use windlass_core::selector::PreparedDevice;

use super::{
    allocated_devices::AllocatedDevices,
    candidate::Candidate,
    node_affinity,
    pool::{Pool, State},
};

/// Devices of one node, from the slices of its pools. Only pools that are complete and valid in their newest generation
/// have devices.
///
/// A value owns its parts, shares the slices, and may be sent to other threads. It depends only on the slices and on
/// the node's name and labels, so it stays valid when allocations change.
#[derive(Clone, Debug)]
pub struct Pools {
    pub(super) node: Option<String>,
    /// Pools with devices for the node, and pools that are incomplete or invalid.
    pub(super) members: Vec<Pool>,
    /// Devices in the order of the search: pools without binding conditions first, then by pool and slice.
    pub(super) candidates: Vec<Candidate>,
}

/// Driver and name of a pool.
type Key<'a> = (&'a str, &'a str);

// === impl Pools ===

impl Pools {
    /// Gathers the pools of a node.
    ///
    /// # Assumptions
    ///
    /// `slices` has all slices of every pool with a [relevant](super::is_relevant) slice; other pools are ignored. A
    /// pool with missing slices counts as incomplete. It is ignored if slices for other nodes have a newer generation.
    ///
    /// In Kubernetes a slice with shared counters is relevant for all nodes, even if it has a node name. A request for
    /// all devices therefore fails on every node while one such pool is incomplete or invalid. A caller that omits the
    /// pools of other nodes avoids this failure. Its other results are the same.
    pub fn new(slices: &[Arc<ResourceSlice>], node: &Node) -> Self {
        let mut by_pool: BTreeMap<Key<'_>, Vec<&Arc<ResourceSlice>>> = BTreeMap::new();
        for slice in slices {
            by_pool.entry(key(slice)).or_default().push(slice);
        }
        let pools = by_pool.into_values().filter_map(|slices| Pool::of(&slices, node));
        let (with_conditions, mut members): (Vec<_>, Vec<_>) =
            pools.partition(Pool::has_binding_conditions);
        members.extend(with_conditions);
        let mut candidates = Vec::new();
        for (index, Pool { state, .. }) in members.iter().enumerate() {
            let State::Ready(contents) = state else { continue };
            for slice in &contents.slices {
                let devices = 0..slice.spec.devices.as_ref().map_or(0, Vec::len);
                let device = |device| Candidate::of((index, contents), (slice, device), node);
                candidates.extend(devices.map(device));
            }
        }
        Self { node: node.metadata.name.clone(), members, candidates }
    }

    /// Gathers the pools of a node from all slices of the cluster.
    pub(super) fn of_cluster(slices: &[ResourceSlice], node: &Node) -> Self {
        let relevant = slices.iter().filter(|slice| node_affinity::is_relevant(slice, node));
        let keys: BTreeSet<_> = relevant.map(key).collect();
        let pool_slices = slices.iter().filter(|slice| keys.contains(&key(slice)));
        Self::new(&pool_slices.cloned().map(Arc::new).collect::<Vec<_>>(), node)
    }

    /// A device by its position, with its slice.
    pub fn device(&self, position: usize) -> (&ResourceSlice, &Device) {
        let candidate = &self.candidates[position];
        (&candidate.slice, candidate.device())
    }

    /// Devices of the node without a holder and without taints that prevent scheduling. Devices that consume shared
    /// counters are left out: the allocation of one may exclude another.
    pub fn free_devices<'a>(
        &'a self,
        allocated: &'a AllocatedDevices,
    ) -> impl Iterator<Item = &'a PreparedDevice> {
        let holdings = allocated.of_pools(&self.members);
        self.candidates.iter().filter_map(move |candidate| {
            let has_holder = holdings[candidate.pool]
                .is_some_and(|holdings| holdings.contains_key(&candidate.device().name));
            let is_free = candidate.is_on_node
                && !has_holder
                && candidate.consumptions.is_empty()
                && candidate.taints().next().is_none();
            is_free.then(|| candidate.cel_device())
        })
    }

    /// Number of devices that the node can use.
    pub fn len(&self) -> usize {
        self.candidates.len()
    }

    /// True if the node can use no device.
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }
}

fn key(slice: &ResourceSlice) -> Key<'_> {
    (&slice.spec.driver, &slice.spec.pool.name)
}
