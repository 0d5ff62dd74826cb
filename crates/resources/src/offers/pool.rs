//! A resource whose devices are shared all together: tokens, each of which stands for every device.
//!
//! A token is a number, as the RDMA shared device plugin has it: what the kubelet remembers of that
//! plugin's containers stays true under this one.

use std::borrow::Cow;

use windlass_config::Pooled;
use windlass_core::replica::token;

use super::{Allocatable, Listed, Offer, OfferedDevice};

// === impl Offer ===

impl Offer {
    /// The pool that its devices make, if they are one.
    pub(crate) fn pool(&self) -> Option<Pooled> {
        self.representative().and_then(OfferedDevice::pooled)
    }

    /// The tokens that were allocatable since the agent started.
    pub(super) fn given_tokens(&self) -> impl Iterator<Item = String> {
        let given = self.devices.values().filter(|device| device.given);
        let tokens = given.filter_map(OfferedDevice::pooled).map(|pool| pool.tokens.get()).max();
        (0..tokens.unwrap_or(0)).map(|number| number.to_string())
    }

    pub(super) fn tokens(&self) -> usize {
        self.pool().map_or(0, |pool| pool.tokens.get() as usize)
    }

    /// Whether this is a token of the pool.
    pub fn pool_has(&self, id: &str) -> bool {
        token(id).is_some_and(|number| (number as usize) < self.tokens())
    }

    /// Whether a token stands for anything.
    pub(super) fn is_pool_allocatable(&self) -> bool {
        let first = self.representative().filter(|device| device.pooled().is_some());
        first.is_some_and(|device| device.state == Allocatable::Yes)
    }

    /// Every token does as well as the best of the devices, since it stands for those that do.
    pub(super) fn list_tokens(&self) -> impl Iterator<Item = Listed<'_>> {
        let numa_node = self.common_numa_node();
        let device = self.representative();
        let tokens = u32::try_from(self.tokens()).unwrap_or(u32::MAX);
        device.into_iter().flat_map(move |device| {
            (0..tokens).map(move |number| Listed {
                id: Cow::Owned(number.to_string()),
                state: &device.state,
                numa_node,
            })
        })
    }

    /// A device that may be allocated, or else any: its state is the pool's.
    fn representative(&self) -> Option<&OfferedDevice> {
        let in_use = self.devices.values().find(|device| device.state == Allocatable::Yes);
        in_use.or_else(|| self.devices.values().next())
    }

    /// The NUMA node that all devices are on.
    fn common_numa_node(&self) -> Option<u32> {
        let first = self.devices.values().next()?.numa_node;
        first.filter(|_| self.devices.values().all(|device| device.numa_node == first))
    }
}
