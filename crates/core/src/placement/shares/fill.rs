//! Loop that takes replicas from the policy's next devices until the request is met.

use super::{Policy, Pool, Span, Topology};
use crate::placement::{
    policy::SHARED_TERMS,
    problem::{Positions, Problem},
    remaining::count,
    search,
};

/// Candidates during the choice.
#[derive(Debug)]
pub(super) struct FillState<'a> {
    pub(super) topology: &'a Topology,
    /// In the inventory's order.
    pub(super) pools: Vec<Pool>,
    pub(super) policy: Policy,
    span: Span,
    /// The container's other devices.
    near: Vec<usize>,
    pub(super) steps: u64,
    pub(super) exact: bool,
}

// === impl FillState ===

impl<'a> FillState<'a> {
    pub(super) fn new(
        topology: &'a Topology,
        pools: Vec<Pool>,
        policy: Policy,
        span: Span,
        near: Vec<usize>,
    ) -> Self {
        Self { topology, pools, policy, span, near, steps: 0, exact: true }
    }

    /// Takes `missing` replicas. Per turn, spreading policies take one replica of a device, and packing policies all
    /// free replicas of the device.
    pub(super) fn fill(&mut self, mut missing: usize) {
        while missing > 0 {
            let tied = self.next_devices();
            let portion = match (self.span, self.policy) {
                (Span::OneDevice, _) => missing,
                (Span::AnyDevices, Policy::Packed | Policy::First) => {
                    self.pools[tied[0]].free.len()
                }
                (Span::AnyDevices, _) => 1,
            };
            for index in self.best_connected(tied, missing.div_ceil(portion)) {
                let count = portion.min(missing);
                self.pools[index].take(count);
                missing -= count;
            }
        }
    }

    /// Indices of the next devices, which the policy ranks equal; empty if no replica is free.
    pub(super) fn next_devices(&self) -> Vec<usize> {
        let compare = |a: &Pool, b: &Pool| Pool::compare(a, b, self.policy);
        let with_free = || self.pools.iter().enumerate().filter(|(_, pool)| !pool.free.is_empty());
        let Some((_, first_pool)) = with_free().min_by(|(_, a), (_, b)| compare(a, b)) else {
            return Vec::new();
        };
        let tied = with_free().filter(|(_, pool)| compare(pool, first_pool).is_eq());
        tied.map(|(index, _)| index).collect()
    }

    /// Up to `count` of the equal devices: the devices that are best connected with each other and with the container's
    /// devices.
    pub(super) fn best_connected(&mut self, mut tied: Vec<usize>, count: usize) -> Vec<usize> {
        if count < tied.len() && !self.pools[tied[0]].has_chosen() {
            let best_set = self.best_set(&tied, count);
            tied.retain(|&index| best_set.binary_search(&self.pools[index].position).is_ok());
        }
        // Only devices that the container already has can be in surplus here: prefer the least used.
        tied.sort_by_key(|&index| self.pools[index].in_use);
        tied.truncate(count);
        tied
    }

    /// Positions of the best set of the container's devices and `additional` of the equal devices.
    fn best_set(&mut self, tied: &[usize], additional: usize) -> Vec<usize> {
        let chosen = self.pools.iter().filter(|pool| pool.has_chosen());
        let required: Vec<_> = chosen.clone().map(|pool| pool.position).collect();
        let mut candidates: Vec<_> = tied.iter().map(|&index| &self.pools[index]).collect();
        candidates.extend(chosen);
        candidates.sort_by_key(|pool| pool.position);
        let available: Vec<_> = candidates.iter().map(|pool| pool.position).collect();
        let shares: Vec<_> = candidates.iter().map(|pool| count(pool.in_use)).collect();
        let positions = Positions {
            available: &available,
            required: &required,
            near: &self.near,
            shares: &shares,
            other_kind: &[],
        };
        let size = required.len() + additional;
        let problem = Problem::new(self.topology, positions, size, SHARED_TERMS, |_| true);
        let result = search::best_set(&problem);
        self.steps += result.steps;
        self.exact &= result.exact;
        result.positions
    }
}
