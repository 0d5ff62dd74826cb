//! Pools: resources whose devices are shared together. Each id is a token that stands for all devices.
//!
//! A token is a number, as in the RDMA shared device plugin. So the kubelet's checkpoint stays valid if this agent
//! replaces that plugin while containers run.

use std::borrow::Cow;

use windlass_config::Pooled;
use windlass_core::replica::token_number;

use super::{Allocatability, ListEntry, Offer, OfferedDevice};

// === impl Offer ===

impl Offer {
    /// The pool, if the resource is one.
    pub(crate) fn pool(&self) -> Option<Pooled> {
        self.representative().and_then(OfferedDevice::pooled)
    }

    /// Tokens that were allocatable since the agent started.
    pub(super) fn once_allocatable_tokens(&self) -> impl Iterator<Item = String> {
        let devices = self.devices.values().filter(|device| device.was_allocatable);
        let tokens = devices.filter_map(OfferedDevice::pooled).map(|pool| pool.tokens.get()).max();
        let tokens = tokens.unwrap_or(0).max(self.share_token_count());
        (0..tokens).map(|number| number.to_string())
    }

    pub(super) fn token_count(&self) -> usize {
        self.pool().map_or(0, |pool| pool.tokens.get() as usize)
    }

    /// True for a token of the pool, or of amounts.
    pub fn has_token(&self, id: &str) -> bool {
        let tokens = self.token_count().max(self.share_token_count() as usize);
        token_number(id).is_some_and(|number| (number as usize) < tokens)
    }

    /// True if the resource is a pool with an allocatable device.
    pub(super) fn is_pool_allocatable(&self) -> bool {
        let pooled_device = self.representative().filter(|device| device.pooled().is_some());
        pooled_device.is_some_and(|device| device.state == Allocatability::Ready)
    }

    /// All tokens. Each has the state of the representative device.
    pub(super) fn list_tokens(&self) -> impl Iterator<Item = ListEntry<'_>> {
        let numa_node = self.common_numa_node();
        let device = self.representative();
        let tokens = u32::try_from(self.token_count()).unwrap_or(u32::MAX);
        device.into_iter().flat_map(move |device| {
            (0..tokens).map(move |number| ListEntry {
                id: Cow::Owned(number.to_string()),
                state: &device.state,
                numa_node,
            })
        })
    }

    /// The first allocatable device, or else the first device. A pool has its state, because a token stands for all
    /// allocatable devices.
    pub(super) fn representative(&self) -> Option<&OfferedDevice> {
        let allocatable =
            self.devices.values().find(|device| device.state == Allocatability::Ready);
        allocatable.or_else(|| self.devices.values().next())
    }

    /// NUMA node of all devices, if they have the same one.
    fn common_numa_node(&self) -> Option<u32> {
        let first = self.devices.values().next()?.numa_node;
        first.filter(|_| self.devices.values().all(|device| device.numa_node == first))
    }
}
