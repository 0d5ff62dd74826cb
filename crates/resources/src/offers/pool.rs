//! Pools: resources whose devices are shared together, by tokens that each stand for all devices.
//!
//! A token is a number, as in the RDMA shared device plugin: the kubelet's memory of that plugin's
//! containers stays valid under this one.

use std::borrow::Cow;

use windlass_config::Pooled;
use windlass_core::replica::token;

use super::{Allocatable, ListEntry, Offer, OfferedDevice};

// === impl Offer ===

impl Offer {
    /// Pool of its devices, if they are one.
    pub(crate) fn pool(&self) -> Option<Pooled> {
        self.representative().and_then(OfferedDevice::pooled)
    }

    /// Tokens that were allocatable since the agent started.
    pub(super) fn once_allocatable_tokens(&self) -> impl Iterator<Item = String> {
        let devices = self.devices.values().filter(|device| device.was_allocatable);
        let tokens = devices.filter_map(OfferedDevice::pooled).map(|pool| pool.tokens.get()).max();
        let tokens = tokens.unwrap_or(0).max(self.share_tokens());
        (0..tokens).map(|number| number.to_string())
    }

    pub(super) fn tokens(&self) -> usize {
        self.pool().map_or(0, |pool| pool.tokens.get() as usize)
    }

    /// True for a token of the pool, or of the amounts.
    pub fn has_token(&self, id: &str) -> bool {
        let tokens = self.tokens().max(self.share_tokens() as usize);
        token(id).is_some_and(|number| (number as usize) < tokens)
    }

    /// True if a token stands for any allocatable device.
    pub(super) fn is_pool_allocatable(&self) -> bool {
        let first = self.representative().filter(|device| device.pooled().is_some());
        first.is_some_and(|device| device.state == Allocatable::Yes)
    }

    /// All tokens. Each is as allocatable as the best device, since it stands for those that are.
    pub(super) fn list_tokens(&self) -> impl Iterator<Item = ListEntry<'_>> {
        let numa_node = self.common_numa_node();
        let device = self.representative();
        let tokens = u32::try_from(self.tokens()).unwrap_or(u32::MAX);
        device.into_iter().flat_map(move |device| {
            (0..tokens).map(move |number| ListEntry {
                id: Cow::Owned(number.to_string()),
                state: &device.state,
                numa_node,
            })
        })
    }

    /// An allocatable device, or else any: its state is the pool's.
    pub(super) fn representative(&self) -> Option<&OfferedDevice> {
        let in_use = self.devices.values().find(|device| device.state == Allocatable::Yes);
        in_use.or_else(|| self.devices.values().next())
    }

    /// NUMA node that all devices share.
    fn common_numa_node(&self) -> Option<u32> {
        let first = self.devices.values().next()?.numa_node;
        first.filter(|_| self.devices.values().all(|device| device.numa_node == first))
    }
}
